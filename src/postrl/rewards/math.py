"""A simple math reward: find the answer in the completion, compare it with the gold as an exact number.

Where the answer is (on the completion only, what stands after the last `</think>` if there is one):
  1. in the last complete `\\boxed{...}` or `\\fbox{...}`; a box that is empty, or opened and never closed, is no answer
  2. after the last `####`
  3. the number that follows "answer is" or "answer:", the last such. Never just the last number in the text.

What is a number: integers, decimals, thousands separators (1,234 and 1{,}234), a/b, \\frac{a}{b}, mixed numbers,
1.5e3, 1.5 \\times 10^{3}, percent, each with a `$` before it or one word of unit behind it. A gold that is none of
these cannot be scored: expressions, sets and words need a full verifier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from postrl.rewards.score import Score
from postrl.rewards.text import final_part, text_of

LONGEST_ANSWER = 1000
"""Characters; a longer answer is wrong without being parsed. Far below Python's limit of 4300 digits for int()."""
LARGEST_EXPONENT = 1000

BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)

_DIGITS = r"(?>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?>{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_FRACTION = r"\\[dt]?frac\s*(?:\{\s*[-+]?[0-9,.]+\s*\}|[0-9])\s*(?:\{\s*[-+]?[0-9,.]+\s*\}|[0-9])"
_SIGN = r"[-+\u2212]?\s*+"
AFTER_ANCHOR = re.compile(  # possessive (`*+`): linear on any text
    rf"\banswer[\s*_]*+(?:is|:)[\s*_:]*+(?P<number>(?:\\[(\[]\s*+)?{_SIGN}(?:\\?[$£€]\s*+)?{_SIGN}"
    rf"(?>{_FRACTION}|{_DECIMAL}(?:\s*+/\s*+{_DECIMAL})?)(?:\s*+\\?%)?)"
    r"(?![ \t]*+(?:,|or\b|and\b|[-+*/=^]++|\\times|\\cdot)?[ \t]*+[-+]?[0-9])",  # "3 or 4" and "3 + 4" answer nothing
    re.IGNORECASE,
)

NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?P<number>{_DECIMAL})"
    r"(?:e(?P<e>[-+]?[0-9]{1,9})|\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*\{?(?P<power>[-+]?[0-9]{1,9})\}?)?",
    re.IGNORECASE,
)
RATIO = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>[0-9]+)\s+)?(?P<top>[-+]?{_DECIMAL})\s*/\s*(?P<bottom>[-+]?{_DECIMAL})"
)
FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|([0-9]))\s*(?:\{([^{}]*)\}|([0-9]))")
WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
ASSIGNED = re.compile(r"^[a-z]\s*=\s*", re.IGNORECASE)
PERCENT = re.compile(r"\s*(?:\\?%|percent)$", re.IGNORECASE)
DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\u00b0)$")
UNIT = re.compile(r"\s([a-z]+)$", re.IGNORECASE)
SCALES = {"hundred", "thousand", "million", "billion", "trillion", "dozen"}


def math_reward(completions: list[Any], answer: list[Any]) -> list[Score]:
    """1 where the answer equals the gold `answer` as a number, else 0.

    Statuses: correct, wrong, no_answer, gold_unscorable (the gold is no number; score None).
    """
    golds = {str(gold): read_gold(gold) for gold in answer}
    return [_score(text_of(completion), golds[str(gold)]) for completion, gold in zip(completions, answer, strict=True)]


def scorable(gold: Any) -> bool:
    """Whether completions can be compared with this gold: it is a number, `\\boxed{}` or `#### x` with one inside."""
    return read_gold(gold) is not None


@dataclass(frozen=True)
class Number:
    """An exact number, whether it was written with a percent sign, and the word of unit behind it."""

    value: Fraction
    percent: bool = False
    unit: str = ""

    def equals(self, other: Number) -> bool:
        """28 and 28% are equal (a percent sign is easily lost), so are 0.1 and 10%; 50 and 0.5 are not, nor are two
        units when both are given."""
        if self.unit and other.unit and self.unit != other.unit:
            return False
        if self.percent == other.percent:
            return self.value == other.value
        percent, plain = (self, other) if self.percent else (other, self)
        return plain.value in (percent.value, percent.value / 100)


# -- finding the answer ------------------------------------------------------------------------------------------------


def find_answer(completion: str) -> str | None:
    """What the completion gives as its answer; None when it gives none."""
    text = final_part(completion)
    if text is None:
        return None
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip() or None
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0].strip() or None
    numbers = [match["number"] for match in AFTER_ANCHOR.finditer(text)]
    return numbers[-1] if numbers else None


def last_boxed(text: str) -> str | None:
    """The content of the last complete box; "" when boxes were opened and none was closed; None without a box.

    One pass over the braces, whatever their nesting. `\\{` and `\\}` are characters, not braces.
    """
    open_braces: list[int | None] = []  # where a box's content starts; None for any other brace
    last: tuple[int, int] | None = None
    opened = False
    for token in BRACES.finditer(text):
        if token.group() == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None and (last is None or start > last[0]):
                last = (start, token.start())
        elif token.group().endswith("{") and token.group() != "\\{":
            box = token.group() != "{"
            opened |= box
            open_braces.append(token.end() if box else None)
    if last is not None:
        return text[last[0] : last[1]]
    return "" if opened else None


# -- reading numbers ---------------------------------------------------------------------------------------------------


def read_gold(gold: Any) -> Number | None:
    """The gold as a number: the content of its last box, else what follows its last `####`, else all of it."""
    text = str(gold)
    boxed = last_boxed(text)
    if boxed is not None:
        return read_number(boxed)
    return read_number(text.rpartition("####")[2])


def read_number(text: str) -> Number | None:
    """A whole text as an exact number; None when it is anything else or too long."""
    if len(text) > LONGEST_ANSWER:
        return None
    text, percent, unit = _normalise(text)
    if match := RATIO.fullmatch(text):
        top, bottom = _exact(match["top"]), _exact(match["bottom"])
        if bottom == 0 or (match["whole"] and (top < 0 or bottom < 0)):
            return None
        value = int(match["whole"] or 0) + top / bottom
    elif match := NUMBER.fullmatch(text):
        exponent = int(match["e"] or match["power"] or 0)
        if abs(exponent) > LARGEST_EXPONENT:
            return None
        value = _exact(match["number"]) * Fraction(10) ** exponent
    else:
        return None
    return Number(-value if match["sign"] == "-" else value, percent, unit)


def _exact(number: str) -> Fraction:
    return Fraction(number.replace(",", "").rstrip("."))


def _normalise(text: str) -> tuple[str, bool, str]:
    """The bare number in a text that holds nothing else, whether it is in percent, and its unit."""
    text = text.replace("\u2212", "-").replace("{,}", ",").replace("~", " ").replace("\\ ", " ")
    for mark in ("\\,", "\\!", "\\;", "\\(", "\\)", "\\[", "\\]", "\\$", "$", "£", "€", "**"):
        text = text.replace(mark, "")
    text = WRAPPED.sub(r" \1 ", text)
    text = FRACTION.sub(lambda m: f" {m[1] or m[2]}/{m[3] or m[4]} ", text).strip().removesuffix(".")
    bare = PERCENT.sub("", text)
    percent = bare != text
    bare = DEGREES.sub("", ASSIGNED.sub("", bare)).strip()
    unit = UNIT.search(bare)
    if unit is None or unit[1].lower() in SCALES:
        return bare, percent, ""
    return bare[: unit.start()].strip(), percent, unit[1].lower()


def _score(completion: str, gold: Number | None) -> Score:
    if gold is None:
        return Score(None, "gold_unscorable")
    answer = find_answer(completion)
    if answer is None:
        return Score(0.0, "no_answer")
    number = read_number(answer)
    right = number is not None and number.equals(gold)
    return Score(float(right), "correct" if right else "wrong")
