"""What a program printed against what it should have: a pure function of two texts.

Lines are compared one by one, blank lines at the end left out. Blanks inside a line only separate its tokens. A token
that is a number with a point or an exponent is met by a number within 1e-6 of it, absolute or relative; every other one,
whole numbers included, only by itself.
"""

from __future__ import annotations

import math
import re

TOLERANCE = 1e-6
NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,5})?")
INTEGER = re.compile(r"[-+]?[0-9]+")
LONGEST_NUMBER = 400
"""Characters. Longer ones are compared as text."""


def same_output(printed: str, expected: str) -> bool:
    """Whether a program's output is the expected one."""
    ours, theirs = _lines(printed), _lines(expected)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _lines(text: str) -> list[list[str]]:
    lines = [line.split() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_line(printed: list[str], expected: list[str]) -> bool:
    return len(printed) == len(expected) and all(map(_same_token, printed, expected))


def _same_token(printed: str, expected: str) -> bool:
    if printed == expected:
        return True
    if not _is_number(expected) or INTEGER.fullmatch(expected) or not _is_number(printed):
        return False
    ours, theirs = float(printed), float(expected)
    return math.isfinite(theirs) and abs(ours - theirs) <= TOLERANCE * max(1.0, abs(theirs))


def _is_number(token: str) -> bool:
    return len(token) <= LONGEST_NUMBER and NUMBER.fullmatch(token) is not None
