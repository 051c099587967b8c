"""What makes a right answer wrong: a digit, a sign, a function's name, a bracket, a factor, two named values."""

from __future__ import annotations

import re
from collections.abc import Iterator

FUNCTIONS = {
    r"\sin": r"\cos",
    r"\cos": r"\sin",
    r"\tan": r"\cot",
    r"\ln": r"\exp",
    r"\sec": r"\csc",
    r"\arctan": r"\arcsin",
}
BRACKETS = {"(": "[", "[": "(", ")": "]", "]": ")"}


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of a kind of change and the changed text; one for each place where it can be made."""
    yield from _digits(text)
    yield from _signs(text)
    for match in re.finditer(r"\\[a-z]+", text):
        if match[0] in FUNCTIONS:
            yield "function", text[: match.start()] + FUNCTIONS[match[0]] + text[match.end() :]
    if re.search(r"[\[(][^()\[\]]*,[^()\[\]]*[\])]", text):  # of a tuple or an interval
        for match in re.finditer(r"(?<!\\)[()\[\]]", text):
            yield "bracket", text[: match.start()] + BRACKETS[match[0]] + text[match.end() :]
    for match in re.finditer(r"(?<=[0-9a-z}]) ?[a-z](?:\^\{?[0-9]\}?)?(?=$|[ +-])", text):
        if (
            not re.search(r"[a-z]{2}", text[max(0, match.start() - 1) : match.end()].replace(" ", "x"))
            and "\\" not in text
        ):
            yield "factor", text[: match.start()] + text[match.end() :]
    names = re.findall(r"(?:^|[,;])\s*([^=,;]+)=([^=,;]+)(?=$|[,;])", text)
    if len(names) == 2 and len({name for name, _ in names}) == len({value.strip() for _, value in names}) == 2:
        (first, one), (second, other) = names
        yield "named values", f"{first}={other}, {second}={one}"


def _digits(text: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer("[0-9]", text):
        changed = str((int(match[0]) + 1) % 10)
        yield "digit", text[: match.start()] + changed + text[match.end() :]


def _signs(text: str) -> Iterator[tuple[str, str]]:
    if re.fullmatch(r"[-0-9a-z+*^{}().\\ ]*[0-9a-z})]", text) or re.fullmatch(r"-?\\?[a-z0-9{}\\]+", text):
        yield "sign", text[1:] if text.startswith("-") else f"-({text})"
    for match in re.finditer(r"(?<=[0-9a-z})]) ?([+-]) ?(?=[0-9a-z\\(])", text):
        changed = "-" if match[1] == "+" else "+"
        yield "sign", text[: match.start(1)] + changed + text[match.end(1) :]
