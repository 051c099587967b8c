"""Find the program in a completion. Nothing is compiled here: the parser is no place for hostile text.

  find_program("Sure:\\n```python\\ndef f(): ...\\n```", names=["f"])

1. Reasoning is left out (`text.final_part`).
2. Fenced blocks: a fence stands at the start of a line. The program is the last block tagged as Python (in any case)
   that defines a name under test, else the last such block without a tag, else the last block tagged as Python, else
   the last one without a tag, for a script rather one that prints. A block that the text ends in counts.
3. Without a fence the whole text; after starter code, as far as it goes on with that.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from postrl.rewards.text import final_part

FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)")
PYTHON = re.compile(r"(?:language-|lang-)?(?:py|i?python|cpython)-?(?:3(?:\.(?:\d+|x))*)?")
"""Tags of blocks that are Python; those of sessions (pycon, python-repl) and of its second version are not."""
INVISIBLE = re.compile("^[\ufeff\u200b\u2060]+", re.MULTILINE)
"""Byte order marks and spaces of no width at the start of a line, where they would hide a fence or break a program."""
PRINTS = re.compile(r"\b(?:print|write|writelines|stdout)\b")
"""Of a script that prints, and rarely of what it has printed."""
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
    text = INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")) + "\n"
    if found := list(blocks(text)):
        return Program(tuple(_with_starter(_chosen(found, names), names, starter)), fenced=True)
    if any(FENCE.fullmatch(line.rstrip()) for line in text.split("\n")):  # of other languages
        return None
    if starter:
        return Program(tuple(_with_starter(text, names, starter)), fenced=False)
    if names and not any(defines(text, name) for name in names):  # prose
        return None
    return Program(((text,),), fenced=False)


def _chosen(found: Sequence[tuple[bool, str]], names: Sequence[str]) -> str:
    """The program among blocks, as the head of this module says."""
    tagged = [block for is_tagged, block in found if is_tagged]
    plain = [block for is_tagged, block in found if not is_tagged]
    defining = [[block for block in part if any(defines(block, name) for name in names)] for part in (tagged, plain)]
    printing = [block for block in plain if PRINTS.search(block)] if not names else []
    return next(part[-1] for part in (*defining, tagged, printing, plain) if part)


def blocks(text: str) -> Iterator[tuple[bool, str]]:
    """The blocks of a text that may be Python, in order: whether they are tagged as Python, and their code. One without a
    tag or without code says nothing else."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opening = FENCE.fullmatch(lines[number].rstrip())
        number += 1
        if opening is None:
            continue
        tag = _tag(opening["info"])
        tagged = PYTHON.fullmatch(tag) is not None
        end = _end_of_block(lines, number, opening, tagged or not tag)
        code = textwrap.dedent("\n".join(lines[number:end])) + "\n"
        if (tagged or not tag) and code.strip():
            yield tagged, code
        number = end + 1


def defines(source: str, name: str) -> bool:
    """Whether the text binds the name: at the start of a line, or as a method."""
    name = re.escape(name)
    pattern = rf"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+{name}\b|^{name}[ \t]*(?::[^=\n]+)?=(?!=)"
    return re.search(pattern, source, re.MULTILINE) is not None


def _tag(info: str) -> str:
    """The language of a fence: `Python title="a.py"`, `{.python .numberLines}`, `python:main.py`."""
    words = re.split(r"[\s,:;=(]+", info.strip().strip("{}"))
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
