"""Find the program in a completion. Nothing is compiled here: the parser is no place for hostile text.

  find_program("Sure:\\n```python\\ndef f(): ...\\n```", names=["f"])

1. Reasoning is left out (`text.final_part`).
2. Fenced blocks: a fence stands at the start of a line. Blocks tagged as Python or not at all count, in any case. The
   last one that defines a name under test is the program, else the last one. A block that the text ends in counts.
3. Without a fence the whole text; after starter code, as far as it goes on with that.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from postrl.rewards.text import final_part

FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)")
TAGS = {"", "py", "python", "python3"}
STRINGS = re.compile(r"#[^\n]*|'''|\"\"\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)


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
    text = text.replace("\r\n", "\n").replace("\r", "\n") + "\n"
    found = list(blocks(text))
    if found:
        defining = [block for block in found if any(defines(block, name) for name in names)]
        return Program(tuple(_with_starter((defining or found)[-1], names, starter)), fenced=True)
    if any(FENCE.fullmatch(line.rstrip()) for line in text.split("\n")):  # of other languages
        return None
    if starter:
        return Program(tuple(_with_starter(text, names, starter)), fenced=False)
    if names and not any(defines(text, name) for name in names):  # prose
        return None
    return Program(((text,),), fenced=False)


def blocks(text: str) -> Iterator[str]:
    """The Python blocks of a text, in order."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opening = FENCE.fullmatch(lines[number].rstrip())
        number += 1
        if opening is None:
            continue
        python = _tag(opening["info"]) in TAGS
        end = _end_of_block(lines, number, opening, python)
        if python:
            yield textwrap.dedent("\n".join(lines[number:end])) + "\n"
        number = end + 1


def defines(source: str, name: str) -> bool:
    """Whether the text binds the name: at the start of a line, or as a method."""
    name = re.escape(name)
    pattern = rf"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+{name}\b|^{name}[ \t]*(?::[^=\n]+)?=(?!=)"
    return re.search(pattern, source, re.MULTILINE) is not None


def _tag(info: str) -> str:
    """The language of a fence: `Python title="a.py"`, `{.python .numberLines}`."""
    words = info.strip().strip("{}").replace(",", " ").split()
    return words[0].lstrip(".").lower() if words else ""


def _end_of_block(lines: list[str], start: int, opening: re.Match[str], python: bool) -> int:
    """The line of the closing fence, the end of the text when there is none. A program may hold lines that look like one
    in its strings: they close it only when nothing else does."""
    first = None
    quote = ""
    for number in range(start, len(lines)):
        line = lines[number]
        if _closes(line, opening):
            first = number if first is None else first
            if not quote:
                return number
        elif python:
            quote = _open_quote(line, quote)
    return len(lines) if first is None else first


def _closes(line: str, opening: re.Match[str]) -> bool:
    closing = FENCE.fullmatch(line.rstrip())
    return (
        closing is not None
        and not closing["info"].strip()
        and closing["fence"].startswith(opening["fence"])
        and len(closing["indent"]) <= len(opening["indent"])
    )


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
