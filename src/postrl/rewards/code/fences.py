"""Fenced blocks of a text that may hold Python.

A fence stands at the start of a line or of a list item. A bare fence ends a block, and so does one with a tag, which
begins the next: no line of a program looks like one outside of its strings. A longer fence holds shorter ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(
    r"(?P<indent>[ \t]*(?P<item>(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(?P<mark>`{3,}(?=[^`]*$)|~{3,})(?P<info>.*)"
)
LANGUAGE = re.compile(r"(?:lang(?:uage)?[-=:])?(?P<name>[\w.+#-]*)")
PYTHON = re.compile(r"(?:py|[ci]?python)-?(?:3(?:\.(?:\d+|x))*)?|.+\.pyw?")
TRANSPARENT = {"md", "markdown"}
"""Blocks in which a whole answer may stand, with fences of its own."""
INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060"))
"""Byte order mark, zero-width spaces and joiners, as a table for `str.translate`."""
SESSION = (">>>", "In [", "$ ")
"""What an interpreter's or a shell's prompt looks like: no program begins so."""
STRINGS = re.compile(r"#[^\n]*|'''|\"\"\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)


@dataclass(frozen=True)
class Block:
    source: str
    tagged: bool
    """As Python; otherwise it has no tag."""

    @property
    def is_code(self) -> bool:
        """Whether it holds more than comments, and no session of an interpreter."""
        lines = (line.strip() for line in self.source.translate(INVISIBLE).split("\n"))
        first = next((line for line in lines if line and not line.startswith("#")), None)
        return first is not None and not first.startswith(SESSION)


@dataclass(frozen=True)
class Fence:
    indent: int
    mark: str
    info: str
    item: bool
    """It begins a list item."""

    @property
    def tag(self) -> str:
        """Its language, "python" for all names of Python, "" for none."""
        info = self.info.lower()
        names = re.findall(r"[\w+#-][\w.+#-]*", info) if info.startswith("{") else [LANGUAGE.match(info)["name"]]  # type: ignore[index]
        return "python" if any(map(PYTHON.fullmatch, names)) else names[0] if names else ""

    def ends(self, block: Fence) -> bool:
        """Whether a block that another fence began ends here."""
        bare = not self.info
        return self.mark.startswith(block.mark) and self.indent <= block.indent and not (bare and self.item)


def find_blocks(text: str) -> Iterator[Block]:
    """Those tagged as Python or not at all, in order."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opening = fence(lines[number])
        number += 1
        if opening is None or opening.tag in TRANSPARENT:
            continue
        end = _end_of_block(lines, number, opening)
        if opening.tag in ("", "python"):
            yield Block("\n".join(lines[number:end]) + "\n", tagged=opening.tag != "")
        closing = fence(lines[end]) if end < len(lines) else None
        number = end if closing and closing.info else end + 1


def fence(line: str) -> Fence | None:
    found = FENCE.fullmatch(line.translate(INVISIBLE).rstrip())
    return found and Fence(len(found["indent"]), found["mark"], found["info"].strip(), found["item"] is not None)


def _end_of_block(lines: list[str], start: int, opening: Fence) -> int:
    """The line of the fence that ends it, the end of the text when there is none. A program may hold lines that look
    like one in its strings: they end it only when nothing else does."""
    first = None
    quote = ""
    for number in range(start, len(lines)):
        line = lines[number]
        found = fence(line)
        if found and found.ends(opening):
            first = number if first is None else first
            if not quote:
                return number
        elif opening.tag in ("", "python"):
            quote = _open_quote(line, quote)
    return len(lines) if first is None else first


def _open_quote(line: str, quote: str) -> str:
    """The triple quotes that are open after a line of a program, "" for none; `quote`: those open before it."""
    position = 0
    while True:
        if quote:
            end = line.find(quote, position)
            if end < 0:
                return quote
            position, quote = end + 3, ""
        token = STRINGS.search(line, position)
        if token is None:
            return ""
        position = token.end()
        quote = token[0] if token[0] in ("'''", '"""') else ""
