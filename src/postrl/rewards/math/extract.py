"""Where a completion gives its answer, and what a gold says.

In a completion, on what stands after its reasoning, the first of these that is there:
  1. the last complete `\\boxed{...}`, `\\boxed x` or `\\fbox{...}` that its own sentence does not deny; of boxes in each
     other the outermost. Neighbouring boxes with nothing but separators between them ("\\boxed{6} or \\boxed{7}") are one
     list. A box that is empty, or opened and never closed when there is no other, is no answer.
  2. what follows the last `####` on its line
  3. what follows the last "answer is", "answer:" or the heading "final answer", unless its sentence denies it, takes it
     back or offers another
Never just the last number in the text. Everything here is linear in the length of the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from postrl.rewards.math.denials import WINDOW, denied, taken_back_at_once, withdrawn
from postrl.rewards.text import REASONING, final_part

LONGEST_ANSWER = 1000
"""Characters. A longer answer is wrong without being parsed, a longer gold is unscorable."""
LONGEST_SEPARATOR = 100
MOST_JOINED = 1000
"""Boxes in one list; more are longer than an answer may be."""

_GROUP = r"\{(?:[^{}]|\{[^{}]{0,200}+\}){0,200}+\}"
MOST_ANCHORS = 50
"""How many denied or empty ones are passed over."""

_BLANK = re.compile(r"\s*+")
_NAKED = rf"[-+]?[0-9][0-9.,/]*|[A-Za-z](?![A-Za-z])|\\[dt]?frac\s*[0-9]\s*[0-9]|\\[a-zA-Z]+(?:\s*{_GROUP}){{1,2}}"
_BOX = r"\\\\?(?:boxed|fbox)"  # models double the backslash at times
_FIRST_BOX = re.compile(r"\\(?:boxed|fbox)")
_TOKENS = re.compile(
    rf"(?P<box>{_BOX}\s*+\{{)|{_BOX}(?![a-zA-Z])\s*+(?P<naked>{_NAKED})"
    r"|(?:\{[^{}\\]*+\}[^{}\\]*+)++|(?:\\(?!\\?(?:boxed|fbox)).[^{}\\]*+)++"  # runs without effect: {}{}, \{ \alpha
    r"|\\.|\{++|\}++",
    re.DOTALL,
)
_HEDGE = r"and|or|else|maybe|perhaps|possibly|alternatively|also|even|either"
_SEPARATORS = re.compile(
    rf"(?:[\s$,;:&/|*()]|\\[()\[\],;:!\s\\]|\\(?:q?quad|lor|vee|mid|land|wedge)(?![a-zA-Z])"
    rf"|\\(?:text|mathrm|textrm|mbox)\s*\{{\s*(?:{_HEDGE}|,)\s*\}}|\b(?:{_HEDGE})\b|\.(?=\s*(?:or|and)\b))*+",
    re.IGNORECASE,
)

_ANCHOR = re.compile(  # possessive (`*+`): linear on any text
    r"\b(?:final\s++answer[ \t*_]*+\n[\s*_#]*+|answers?[\s*_]*+(?:is|are|:|=|(?=\$|\\[(\[]))[\s*_:]*+)", re.IGNORECASE
)
_REST_ENDS = re.compile(
    r"\n|[.!](?=\s|$|\*)|,(?=\s+(?!or\b|and\b)[a-z]{2})|\s(?:because|since|so|which|as|where|when|but|although|though|"
    r"while|rather\s+than|instead\s+of)\s|\s(?=\((?:not|rather|since|because|instead)\b)",
    re.IGNORECASE,
)
_FORMULA = re.compile(r"(?:\$\$?|\\\(|\\\[)(?P<inside>.+?)(?:\$\$?|\\\)|\\\])\s*(?P<stop>[.;!]?)\s*", re.DOTALL)
_ANOTHER = re.compile(r",?\s*(?:(?:or|and|to)\b|[$\\+=*/^-]|[0-9])", re.IGNORECASE)
_BOLD = re.compile(r"(?<![^\s])\*\*|\*\*(?![^\s.,;:!?])")


def find_answer(
    completion: str, *, anchored: bool = True, reasoning: Sequence[tuple[str, str]] = REASONING
) -> str | None:
    """What the completion gives as its answer, as it is written there; None when it gives none.

    Args:
        anchored: whether to look for "the answer is ..." where there is neither a box nor a `####`.
        reasoning: pairs of tags; what stands between is not looked at.
    """
    text = final_part(completion, reasoning)
    if text is None:
        return None
    boxed = last_boxed(text, unless_denied=True)
    if boxed is not None:
        return _unbold(boxed) or None
    _, hashes, after = text.rpartition("####")
    marked = _unbold(_ANCHOR.sub("", after.strip().partition("\n")[0], count=1)) if hashes else ""
    if anchored and not any(character.isdigit() for character in marked):  # "#### Conclusion" is a heading
        return _after_anchor(after if hashes else text) or marked or None
    return marked or None


def read_gold(gold: Any) -> str | None:
    """The text of a gold's answer: its last box, else what follows its last `####`, else all of it.

    None: there is none, it is longer than LONGEST_ANSWER, or the gold is neither text nor a finite number.
    """
    if not isinstance(gold, str):
        if not isinstance(gold, int | float | Fraction | Decimal) or not math.isfinite(gold):
            return None
        gold = str(gold)
    boxed = last_boxed(gold)
    answer = (boxed if boxed is not None else gold.rpartition("####")[2]).strip()
    return answer if answer and len(answer) <= LONGEST_ANSWER else None


# -- boxes -------------------------------------------------------------------------------------------------------------


class _Box(NamedTuple):
    start: int
    end: int
    inside: int
    """Where its content starts, and `inside_end` where it ends: slices of nested boxes would take quadratic room."""
    inside_end: int


def last_boxed(text: str, *, unless_denied: bool = False) -> str | None:
    """The content of the last complete box, as a list with those joined to it; "" when boxes were opened and none was
    closed; None without a box.

    Args:
        unless_denied: pass over boxes that their own sentence denies; "" when there is no other.
    """
    boxes, opened = _boxes(text)
    if not boxes:
        return "" if opened else None
    outermost = _outermost(boxes)
    last = len(boxes) - 1
    if unless_denied:
        last = next((i for i in reversed(outermost[-MOST_ANCHORS:]) if not _denies(text, boxes[i])), -1)
        outermost = outermost[: outermost.index(last) + 1] if last >= 0 else []
    if not outermost:
        return ""
    joined = outermost[-1:]
    for place in reversed(outermost[-MOST_JOINED:-1]):
        box, following = boxes[place], boxes[joined[-1]]
        if following.start > box.end + LONGEST_SEPARATOR or not _SEPARATORS.fullmatch(text, box.end, following.start):
            break
        joined.append(place)
    contents = [_content(text, boxes, place) for place in reversed(joined)]
    return ", ".join(dict.fromkeys(filter(None, contents))) if contents[-1] else ""


def _outermost(boxes: list[_Box]) -> list[int]:
    """The places of the boxes that stand in no other one."""
    places: list[int] = []
    for place, box in enumerate(boxes):
        if not places or box.start >= boxes[places[-1]].end:
            places.append(place)
    return places


def _content(text: str, boxes: list[_Box], place: int) -> str:
    """What a box holds; of a box around nothing but a box, what that one holds."""
    box = boxes[place]
    for inner in boxes[place + 1 :]:
        if _BLANK.match(text, box.inside).end() != inner.start:  # type: ignore[union-attr]
            break
        if _BLANK.match(text, inner.end).end() != box.inside_end:  # type: ignore[union-attr]
            break
        box = inner
    return text[box.inside : box.inside_end].strip()


def _denies(text: str, box: _Box) -> bool:
    before, after = text[max(0, box.start - WINDOW) : box.start], text[box.end : box.end + WINDOW]
    return denied(before) or taken_back_at_once(after)


def _boxes(text: str) -> tuple[list[_Box], bool]:
    """The complete boxes in the order in which they open, and whether any was opened. One pass, any nesting."""
    found: list[_Box] = []
    opened = False
    braces: list[tuple[int, int] | None] = []  # of the open ones that belong to a box: where it and its content start
    first = _FIRST_BOX.search(text)
    for token in _TOKENS.finditer(text, first.start()) if first else ():
        part, start = token.group(), token.start()
        if token["box"]:
            opened = True
            braces.append((start, token.end()))
        elif token["naked"]:
            opened = True
            inside, content = token.start("naked"), token["naked"].rstrip(".,/")
            found.append(_Box(start, inside + len(content), inside, inside + len(content)))
        elif part[0] == "{" and part[-1] == "{":
            braces.extend([None] * len(part))
        elif part[0] == "}":
            for place in range(start, start + min(len(part), len(braces))):
                if box := braces.pop():
                    found.append(_Box(box[0], place + 1, box[1], place))
    found.sort()
    return found, opened


# -- "the answer is" ---------------------------------------------------------------------------------------------------


def _after_anchor(text: str) -> str | None:
    """What follows the last anchor that has something behind it and is not denied."""
    anchors = list(_ANCHOR.finditer(text)) if "answer" in text.lower() else []
    for anchor in reversed(anchors[-MOST_ANCHORS:]):
        rest = text[anchor.end() : anchor.end() + LONGEST_ANSWER]
        before = text[max(0, anchor.start() - WINDOW) : anchor.start()]
        if rest.strip(" *_") and not denied(before, supposed=True):
            return _first_answer(rest)
    return None


def _first_answer(rest: str) -> str | None:
    """The answer at the start of a text: a formula in its delimiters, else up to the end of the clause. None when its
    sentence takes it back or offers another."""
    if withdrawn(rest):
        return None
    formula = _FORMULA.match(rest)
    if formula and not re.search(r"[.!?]\s", formula["inside"]):
        more = not formula["stop"] and _ANOTHER.match(rest, formula.end())  # "$6$ or $7$" answers nothing
        return None if more else formula["inside"].strip()
    return _unbold(_REST_ENDS.split(rest, maxsplit=1)[0]).rstrip(".,;") or None


def _unbold(text: str) -> str:
    """Without Markdown's stars, ticks and underlines around it or a part of it; 2**3 stays."""
    return _BOLD.sub("", text.strip()).strip(" \n*_`")
