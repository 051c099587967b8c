"""Rewards for the shape of a completion rather than for its answer: format, length, repetition.

Plain functions, usable from a script; by name (`--reward format`) their options are set with `--reward-arg NAME.KEY=VALUE`.
They are meant to be added to a verifier's reward with a weight, except `cosine`, which takes the verifier's place. All are linear in
the length of the completion, whatever is in it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

from postrl.errors import UsageError
from postrl.rewards.builtin import VERIFIERS
from postrl.rewards.score import Score
from postrl.rewards.text import strip_end_of_turn, text_of

VERSION = "shaping 1"
GIVEN = {True: Score(1.0, "correct"), False: Score(0.0, "wrong"), None: Score(None, "none")}


def format_reward(
    completions: list[Any],
    *,
    think_open: str = "<think>",
    think_close: str = "</think>",
    answer_open: str = "",
    answer_close: str = "",
    opened: bool = False,
) -> list[Score]:
    """1 for a completion that reasons between tags and then answers, else 0 (DeepSeek-R1, arXiv:2501.12948, 2.2.2):

        <think> reasoning </think> answer
        <think> reasoning </think> <answer> answer </answer>       with answer_open and answer_close

    Each tag stands there exactly once, in this order, with nothing but blanks before, between and after them;
    reasoning and answer are not blank. End-of-turn tokens at the end do not count.

    Args:
        think_open, think_close: the tags around the reasoning.
        answer_open, answer_close: the tags around the answer; both empty: the answer is the rest of the text.
        opened: the prompt ends with `think_open` (some chat templates write it), so the completion must not.

    Statuses: correct, format_error.

    Raises:
        UsageError: an empty tag, one of the two answer tags without the other, or two tags that are the same.
    """
    tags = [think_open, think_close, *((answer_open, answer_close) if answer_open or answer_close else ())]
    if not all(tags) or len({*tags}) < len(tags):
        raise UsageError(
            f"the tags {', '.join(map(repr, tags))} of the reward format are empty or the same",
            hint="give think_open and think_close, and answer_open and answer_close both or not at all",
        )
    head = think_open if opened else ""
    return [_format_score(head + strip_end_of_turn(text_of(completion)), tags) for completion in completions]


def _format_score(text: str, tags: Sequence[str]) -> Score:
    parts = _between(text, tags)
    blank = parts is not None and [not part.strip() for part in parts]
    if blank == [True, False, False] or blank == [True, False, True, False, True]:
        return Score(1.0, "correct")
    return Score(0.0, "format_error")


def _between(text: str, tags: Sequence[str]) -> list[str] | None:
    """What stands before, between and after the tags, when each is there once and they come in this order."""
    if any(text.count(tag) != 1 for tag in tags):
        return None
    parts = []
    for tag in tags:
        part, found, text = text.partition(tag)
        if not found:
            return None
        parts.append(part)
    return [*parts, text]


def soft_overlong_punishment(
    completion_ids: list[list[int]], *, max_completion_length: int, cache: int | None = None
) -> list[float]:
    """0 for a completion of length |y| that leaves room, then falling to -1 at the limit (DAPO, arXiv:2503.14476, eq. 13):

        0                                  |y| <= L_max - L_cache
        (L_max - L_cache - |y|) / L_cache  L_max - L_cache < |y| <= L_max
        -1                                 L_max < |y|

    Args:
        max_completion_length: L_max, in tokens; the run's setting unless given.
        cache: L_cache, tokens below L_max in which it falls; default: a fifth of L_max, as in the paper (4096 of 20480).

    Raises:
        UsageError: `cache` is negative or more than `max_completion_length`.
    """
    longest, fall = max_completion_length, max_completion_length // 5 if cache is None else cache
    if not 0 <= fall <= longest:
        raise UsageError(
            f"soft_overlong: cache = {fall}, and max_completion_length = {longest}",
            hint="give the last tokens in which the punishment grows, such as --reward-arg soft_overlong.cache=64",
        )
    free = longest - fall
    return [
        0.0 if len(ids) <= free else -1.0 if len(ids) > longest else (free - len(ids)) / fall for ids in completion_ids
    ]


def repetition_penalty(
    completion_ids: list[list[int]], *, ngram_size: int = 3, max_penalty: float = -1.0
) -> list[float]:
    """The share of repeated n-grams, times `max_penalty` (arXiv:2502.03373, appendix C.2, a value a completion):

        (1 - distinct n-grams / n-grams) * max_penalty

    0 when no n-gram comes twice, and for completions shorter than one; near `max_penalty` for one token over and over.

    Args:
        ngram_size: tokens of an n-gram. Small ones also repeat in honest text: 3-grams of a long derivation do so often.
        max_penalty: at most 0.

    Raises:
        UsageError: `ngram_size` below 1, or `max_penalty` above 0.
    """
    if ngram_size < 1 or not max_penalty <= 0:
        raise UsageError(
            f"repetition: ngram_size = {ngram_size}, max_penalty = {max_penalty}",
            hint="ngram_size is 1 or more, max_penalty at most 0",
        )
    return [_repeated(ids, ngram_size) * max_penalty or 0.0 for ids in completion_ids]  # 0.0, not -0.0


def _repeated(ids: Sequence[int], n: int) -> float:
    total = len(ids) - n + 1
    if total < 1:
        return 0.0
    return 1 - len(set(zip(*(ids[i : i + total] for i in range(n))))) / total


def cosine_length_reward(
    completions: list[Any],
    completion_ids: list[list[int]],
    *,
    max_completion_length: int,
    verifier: str = "math",
    correct: Sequence[bool | None] | None = None,
    max_value_correct: float = 1.0,
    min_value_correct: float = 0.5,
    min_value_wrong: float = -1.0,
    max_value_wrong: float = -0.5,
    exceeded: float | None = None,
    sandbox: str = "auto",
    **columns: list[Any],
) -> list[Score]:
    """Right is good, and the shorter the better; wrong is bad, and the longer the less so (arXiv:2502.03373, 3.1 and C.1):

        R(y) = end + (start - end) * (1 + cos(pi * |y| / L_max)) / 2      |y| < L_max; beyond it, `end`
        right: start = max_value_correct, end = min_value_correct
        wrong: start = min_value_wrong,   end = max_value_wrong

    It holds the verdict of its verifier, so it is given in place of `--reward math`, not beside it.

    Args:
        max_completion_length: L_max, in tokens; the run's setting unless given.
        verifier: the built-in that says what is right: math, arithmetic or code. Its columns must be there.
        correct: the verdicts themselves, from a script; None: unscorable.
        max_value_correct, min_value_correct: for a right answer of no length, and at L_max.
        min_value_wrong, max_value_wrong: for a wrong answer of no length, and at L_max.
        exceeded: for any completion that reaches L_max (the paper's r_e, there -10); default: as above.
        sandbox: for the verifier code.

    Statuses: those of the verifier, and its None where it cannot score.

    Raises:
        UsageError: `verifier` is not a verifier.
    """
    if correct is not None:
        verdicts = [GIVEN[None if right is None else bool(right)] for right in correct]
    else:
        verdicts = _verdicts(verifier, {**columns, "completions": completions}, sandbox)
    if_right, if_wrong = (max_value_correct, min_value_correct), (min_value_wrong, max_value_wrong)
    scores = []
    for verdict, ids in zip(verdicts, completion_ids, strict=True):
        start, end = if_right if verdict.status == "correct" else if_wrong
        value = end + (start - end) * (1 + math.cos(math.pi * min(len(ids) / max_completion_length, 1.0))) / 2
        if exceeded is not None and len(ids) >= max_completion_length:
            value = exceeded
        scores.append(Score(None if verdict.value is None else value, verdict.status))
    return scores


def _cosine_version(verifier: str = "math", sandbox: str = "auto") -> str:
    """With that of its verifier."""
    from postrl.rewards.calling.version import own_version
    from postrl.rewards.registry import load, resolve

    return f"{VERSION}, {own_version(verifier, load(resolve(verifier)), {'sandbox': sandbox})}"


cosine_length_reward.version = _cosine_version  # type: ignore[attr-defined]


def _verdicts(verifier: str, inputs: dict[str, Any], sandbox: str) -> list[Score]:
    """What a built-in verifier says, called with the columns that it names."""
    from postrl.rewards.registry import load, resolve

    if verifier not in VERIFIERS:
        raise UsageError(
            f"cosine: there is no verifier {verifier!r}", hint=f"--reward-arg cosine.verifier={'|'.join(VERIFIERS)}"
        )
    if not inputs["completions"]:
        return []
    function = load(resolve(verifier))
    arguments = inspect.signature(function).parameters.values()
    nothing = [None] * len(inputs["completions"])
    wanted = [p.name for p in arguments if p.name in inputs or (p.default is p.empty and p.kind is not p.VAR_KEYWORD)]
    chosen = {name: inputs.get(name, nothing) for name in wanted}
    if "sandbox" in inspect.signature(function).parameters:
        chosen["sandbox"] = sandbox
    scores: list[Score] = function(**chosen)
    return scores
