"""The reward of the `arithmetic` data set: the last integer in the answer is the right one.

"3+4=7."          -> 7           "10-3"              -> 3     (the minus subtracts)
"It is -12"       -> -12         "10 - 13 = -3"      -> -3
"about 1,234"     -> 1234        "1,2"               -> 2     (no thousands separator)
"7.0"             -> 7           "7.5"               -> no integer, but a number: wrong
"seven"           -> no_answer
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from postrl.rewards.score import Score
from postrl.rewards.text import text_of

NUMBER = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")
SIGN_BEFORE = re.compile(r"(?:^|[^\w)])[-\u2212]$")
OPERAND_BEFORE = re.compile(r"[0-9)][ \t]*[-\u2212]$")
MOST_DIGITS = 100


def arithmetic_reward(completions: list[Any], answer: list[Any]) -> list[Score]:
    """1 where the last number in the completion is the integer `answer`, else 0.

    Statuses: correct, wrong, no_answer (no number at all), gold_unscorable (`answer` is no integer; score None).
    """
    return [_score(text_of(completion), gold) for completion, gold in zip(completions, answer, strict=True)]


def last_number(text: str) -> str | None:
    """The last number in a text, its sign included and thousands separators removed.

    A minus belongs to the number when it touches it and no operand stands before it.
    """
    numbers = deque(NUMBER.finditer(text), maxlen=1)
    if not numbers:
        return None
    found = numbers[0]
    before = text[max(0, found.start() - 20) : found.start()]
    negative = SIGN_BEFORE.search(before) and not OPERAND_BEFORE.search(before)
    return ("-" if negative else "") + found.group().replace(",", "")


def _score(text: str, gold: Any) -> Score:
    try:
        whole_number = isinstance(gold, float) and gold.is_integer()  # pandas: integers beside a missing one
        wanted = int(gold if whole_number else str(gold).strip().replace(",", ""))
    except ValueError:
        return Score(None, "gold_unscorable")
    number = last_number(text)
    if number is None:
        return Score(0.0, "no_answer")
    whole, _, decimals = number.partition(".")
    right = len(whole) <= MOST_DIGITS and not decimals.strip("0") and int(whole) == wanted
    return Score(float(right), "correct" if right else "wrong")
