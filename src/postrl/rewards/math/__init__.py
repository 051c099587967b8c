"""The math reward: whether a completion's answer is the gold, whatever way it is written.

    math_reward(completions, answer)     a score for each completion
    verify(gold, completion)             one score
    scorable(gold)                       whether a gold can be compared with anything

`extract` finds the answer, `compare` decides: exact paths first, in this process and in microseconds; what needs
computer algebra is asked of a process of its own (`grader`), which can be killed. Safe on any text, in any thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from postrl.rewards.math.compare import Comparison
from postrl.rewards.math.extract import LONGEST_ANSWER, find_answer, read_gold
from postrl.rewards.math.grader import GraderFailure, GraderTimeout, pool
from postrl.rewards.score import Score
from postrl.rewards.text import REASONING, text_of

VERSION = "math 2"
LARGEST_CACHE = 100_000
"""Verdicts kept. The completions of a group repeat their answers a lot."""

CORRECT, WRONG = Score(1.0, "correct"), Score(0.0, "wrong")
NO_ANSWER = Score(0.0, "no_answer")
GOLD_UNSCORABLE, TIMEOUT, INFRA_ERROR = (
    Score(None, "gold_unscorable"),
    Score(None, "timeout"),
    Score(None, "infra_error"),
)

log = logging.getLogger(__name__)
Tags = Sequence[Sequence[str]]


def math_reward(
    completions: Sequence[Any],
    answer: Sequence[Any],
    *,
    anchored: bool = True,
    allow_unevaluated: bool = False,
    reasoning: Tags = REASONING,
) -> list[Score]:
    """1 where a completion's answer is the gold in the column `answer`, else 0.

    Args:
        completions: plain or conversational.
        answer: the golds, one a completion: text with a `\\boxed{}`, with `#### x`, or an answer alone; or numbers.
        anchored: whether "the answer is x" counts where there is neither a box nor a `####`.
        allow_unevaluated: whether `17 \\times 23` counts for the gold 391.
        reasoning: pairs of tags between which a model reasons; an answer in there does not count.

    Returns:
        correct (1), wrong (0), no_answer (0), and without a value: gold_unscorable, timeout (computer algebra took
        longer than 2 s of processor time), infra_error (its process died twice).
    """
    return [
        verify(gold, completion, anchored=anchored, allow_unevaluated=allow_unevaluated, reasoning=reasoning)
        for completion, gold in zip(completions, answer, strict=True)
    ]


def verify(
    gold: Any,
    completion: Any,
    *,
    anchored: bool = True,
    allow_unevaluated: bool = False,
    reasoning: Tags = REASONING,
) -> Score:
    """One completion against one gold; see `math_reward`."""
    try:
        wanted = _gold(gold if isinstance(gold, str) else read_gold(gold) or "")
    except (GraderTimeout, GraderFailure) as error:
        log.warning("no verdict for the gold %r: %s", gold, error)
        return INFRA_ERROR
    if wanted is None:
        return GOLD_UNSCORABLE
    tags = [(opening, closing) for opening, closing in reasoning]
    found = find_answer(text_of(completion), anchored=anchored, reasoning=tags)
    if found is None:
        return NO_ANSWER
    if len(found) > LONGEST_ANSWER:
        return WRONG
    return _verdicts.get(wanted, found, allow_unevaluated)


def scorable(gold: Any) -> bool:
    """Whether completions can be compared with this gold: it can be read, and it equals itself in a box."""
    wanted = read_gold(gold)
    return wanted is not None and verify(wanted, f"\\boxed{{{wanted}}}") is CORRECT


def why_unscorable(gold: Any) -> str:
    """In a few words, why no completion can be compared with this gold; "" where it can be."""
    if scorable(gold):
        return ""
    text = read_gold(gold)
    return "no answer, or more than 1000 characters" if text is None else Comparison(pool().ask).why_unreadable(text)


def version() -> str:
    """The verifier and the library behind it, as stored with each reward."""
    from importlib.metadata import version as installed

    return f"{VERSION}, math-verify {installed('math-verify')}"


math_reward.version = version  # type: ignore[attr-defined]


# -- golds and verdicts ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=20_000)
def _gold(gold: str) -> str | None:
    """The answer that a gold gives, if it can be scored. What it raises is not cached."""
    text = read_gold(gold)
    try:
        return text if text is not None and Comparison(pool().ask).readable(text) else None
    except RecursionError:
        return None


class _Verdicts:
    """Verdicts by gold, answer and option; the oldest unused ones go. Safe in threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, bool], Score] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, gold: str, answer: str, allow_unevaluated: bool) -> Score:
        key = (gold, answer, allow_unevaluated)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        score = _compare(*key)
        if score is not INFRA_ERROR:
            with self._lock:
                self._known[key] = score
                if len(self._known) > LARGEST_CACHE:
                    self._known.popitem(last=False)
        return score


_verdicts = _Verdicts()


def _unlock() -> None:
    """In a forked child: another thread of the parent may have held the lock."""
    _verdicts._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def _compare(gold: str, answer: str, allow_unevaluated: bool) -> Score:
    try:
        equal = Comparison(pool().ask, allow_unevaluated).equal(gold, answer)
    except (GraderTimeout, GraderFailure) as error:
        log.warning("no verdict for the gold %r and the answer %r: %s", gold, answer, error)
        return TIMEOUT if isinstance(error, GraderTimeout) else INFRA_ERROR
    except RecursionError:
        return WRONG
    return CORRECT if equal else WRONG
