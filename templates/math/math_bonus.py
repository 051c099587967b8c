"""A bonus beside the built-in math reward: `--reward math --reward math_bonus.py:one_box --reward-weights 1 --reward-weights 0.1`

The math reward says whether the answer is right. A bonus says what you like besides, and should be small: whatever it
pays for without a reason, the model will learn to do.
"""

from __future__ import annotations

from typing import Any

BOX = "\\boxed{"
LONGEST_TAIL = 10
"""Characters that may follow the box: a full stop, a dollar sign."""


def one_box(completions: list[Any], **columns: Any) -> list[float]:
    """1 for a completion that boxes one answer, at its end; else 0."""
    return [
        float(is_tidy(completion if isinstance(completion, str) else completion[-1]["content"]))
        for completion in completions
    ]


def is_tidy(text: str) -> bool:
    """Whether there is exactly one box, it is closed and not empty, and nothing but a few characters follow it."""
    if text.count(BOX) != 1:
        return False
    inside = text.partition(BOX)[2]
    depth = 1
    for end, character in enumerate(inside):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return bool(inside[:end].strip()) and len(inside) - end - 1 <= LONGEST_TAIL
    return False
