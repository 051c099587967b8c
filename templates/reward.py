"""A reward function to start from: postrl grpo ... --reward reward.py:score"""

from __future__ import annotations

from typing import Any


def score(completions: list[Any], answer: list[str], **columns: Any) -> list[float | None]:
    """1 for a completion that contains the row's answer, else 0; None would leave a completion out.

    Args:
        completions: texts, or for conversational prompts lists of one message.
        answer: the column of that name, one entry a completion; every other column comes by its name as well.
    """
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [1.0 if gold in text else 0.0 for text, gold in zip(texts, answer, strict=True)]
