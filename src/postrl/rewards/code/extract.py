"""Find the program in a completion. Nothing is compiled here: the parser is no place for hostile text.

  find_program("Sure:\\n```python\\ndef f(): ...\\n```", names=["f"])

1. Reasoning is left out (`text.final_part`).
2. Fenced blocks (`fences`) that are tagged as Python or not at all, unless they hold nothing or an interpreter's
   session. One that defines a name under test goes before one that does not, then a tagged one before one without a
   tag, which is most often a sample or a note, and of those a script that prints; of equals the last is the program. A block that the text ends in counts.
3. Without a fence the whole text; after starter code, as far as it goes on with that.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from postrl.rewards.code import fences
from postrl.rewards.text import final_part

PRINTS = re.compile(r"\b(?:print|write|writelines|stdout)\b")
"""Of a script that prints, and rarely of what it has printed."""
HIDING = re.compile("^[\ufeff\u200b\u2060]+", re.MULTILINE)
"""At the start of a line, where they would hide a fence or break a program."""
INVISIBLE = {**fences.INVISIBLE, 0xA0: " "}
"""What Python refuses outside of strings and nobody sees, and what takes its place."""


@dataclass(frozen=True)
class Program:
    """What may be the program; the sandbox takes the first that compiles."""

    alternatives: tuple[tuple[str, ...], ...]
    """Each the sources to run one after the other in one module."""
    fenced: bool
    """Whether it was marked as code, so that one that does not compile is a broken program and not prose."""


def find_program(completion: str, names: Sequence[str] = (), starter: str | None = None) -> Program | None:
    """What the completion offers as its program; None when that is nothing.

    Args:
        completion: what the model wrote.
        names: what the program has to define, the entry point first; empty for a script.
        starter: code that the program may go on with (HumanEval's prompt). It is put before a program that does not
            define the first name, and run before one that does if it runs by itself, for its imports and helpers.
    """
    text = final_part(completion)
    if text is None or not text.strip():
        return None
    text = HIDING.sub("", text.replace("\r\n", "\n").replace("\r", "\n")) + "\n"
    found = [block for block in fences.find_blocks(text) if block.is_code]
    if found:
        likeliest = max(reversed(found), key=lambda block: _rank(block, names))
        return Program(tuple(_alternatives(likeliest.source, names, starter, fenced=True)), fenced=True)
    if any(map(fences.fence, text.split("\n"))):  # of other languages
        return None
    if not starter and names and not _defines_any(text, names):  # prose
        return None
    return Program(tuple(_alternatives(text, names, starter, fenced=False)), fenced=False)


def defines(source: str, name: str) -> bool:
    """Whether the text binds the name: at the start of a line, or as a method."""
    name = re.escape(name)
    pattern = rf"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+{name}\b|^{name}[ \t]*(?::[^=\n]+)?=(?!=)"
    return re.search(pattern, source, re.MULTILINE) is not None


def _rank(block: fences.Block, names: Sequence[str]) -> tuple[bool, bool, bool]:
    prints = not names and PRINTS.search(block.source) is not None
    return _defines_any(block.source, names), block.tagged, prints and not block.tagged


def _defines_any(source: str, names: Sequence[str]) -> bool:
    source = source.translate(INVISIBLE)
    return any(defines(source, name) for name in names)


def _alternatives(source: str, names: Sequence[str], starter: str | None, *, fenced: bool) -> Iterator[tuple[str, ...]]:
    """The program as it stands, then without what nobody sees: a string may need it, Python refuses it elsewhere."""
    for text in dict.fromkeys((source, source.translate(INVISIBLE))):
        yield from _with_starter(textwrap.dedent(text) if fenced else text, names, starter)


def _with_starter(code: str, names: Sequence[str], starter: str | None) -> Iterator[tuple[str, ...]]:
    """The program by itself and as what goes on with the starter, the likelier first."""
    if not starter:
        yield (code,)
        return
    if names and defines(code, names[0]):
        yield starter, code
        yield (code,)
    yield (starter + code,)
    yield (starter + _body(code),)
    yield (starter.rstrip(" \t") + textwrap.indent(textwrap.dedent(code), _indent(starter)),)
    yield (code,)


def _body(text: str) -> str:
    """The text up to the first line that is not indented: a base model goes on after the function."""
    lines = text.split("\n")
    for number, line in enumerate(lines[1:], 1):
        if line.strip() and line[0] not in " \t":
            return "\n".join(lines[:number]) + "\n"
    return text


def _indent(starter: str) -> str:
    """That of the starter's last line, which is the docstring of the function to write or its head."""
    last = next((line for line in reversed(starter.split("\n")) if line.strip()), "")
    return last[: len(last) - len(last.lstrip())] or "    "
