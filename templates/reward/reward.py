"""A reward function of your own: `postrl grpo --reward reward.py:score ...`

It is called with one group at a time, all completions of one prompt, and gets by name, one item a completion:

    completions        [{"role": "assistant", "content": text}] in a conversation, else text
    prompts            the messages of the conversation, else text
    completion_ids     the completion's token ids
    answer             the column of that name in data.jsonl; every other column comes by its name as well
    log_extra          log_extra("words", values) stores a column beside the rewards, in RUN/rollouts
    log_metric         log_metric("share", 0.5) adds a number to RUN/metrics.jsonl

Ask only for what you need; `**columns` takes the rest. It may be `async`, load a model at its first call, print, and
import files beside this one. What it raises is counted and shown, and is no 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

UNKNOWN = "?"
"""What data.jsonl has as the answer of a question that nobody can answer."""


def score(
    completions: list[Any], answer: list[str], log_extra: Callable[[str, list[Any]], None], **columns: Any
) -> list[float | None]:
    """1 for the answer alone, a little less for each further word, 0 without it; None where there is no answer."""
    words = [re.findall(r"\w+", text_of(completion).lower()) for completion in completions]
    log_extra("words", [len(spoken) for spoken in words])
    return [grade(spoken, gold) for spoken, gold in zip(words, answer, strict=True)]


def grade(spoken: list[str], gold: str) -> float | None:
    """The score of one completion, given as its words in lower case."""
    if gold == UNKNOWN:
        return None  # "cannot say": left out of the group's mean, where a 0 would count as a bad answer
    if gold.lower() not in spoken:
        return 0.0
    return max(0.1, 1.0 - 0.02 * (len(spoken) - 1))


def text_of(completion: Any) -> str:
    """The text of a completion, conversational or plain."""
    return completion if isinstance(completion, str) else completion[-1]["content"]
