"""What all rewards need of a completion's text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

END_OF_TURN = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
)
REASONING = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis", "<|channel|>final<|message|>"),
)
"""Pairs of tags between which models reason, text or special tokens. What one answers stands after the last closing one."""


SPECIAL = re.compile(
    r"(?=<\|[^|<>\s]{1,40}\|>|<[a-z_]{1,24}>|</[a-z_]{1,24}>|<\uff5c[^<>]{1,40}\uff5c>|\[/?[A-Z_]{3,24}\])[<\[]"
)
"""The bracket that begins a text as tokenizers have them for one special token each: `<|im_end|>`, `</s>`, `[/INST]`."""


def broken_up(text: str) -> str:
    """The text with a blank behind the bracket of whatever a tokenizer, of which nothing is known, may read as a special
    token: a model that reads it sees no turn that the text has written."""
    return SPECIAL.sub(r"\g<0> ", text)


def text_of(completion: Any) -> str:
    """A completion's text, plain or conversational."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def strip_end_of_turn(text: str) -> str:
    """The text without the end-of-turn tokens and blanks at its end."""
    end = len(text)  # an index, not a shorter copy each time: a text of nothing but these tokens stays linear
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        if not text.endswith(END_OF_TURN, 0, end):
            return text[:end]
        end = text.rindex("<", 0, end)


def final_part(text: str, reasoning: Sequence[tuple[str, str]] = REASONING) -> str | None:
    """What stands after the last closing reasoning tag, end-of-turn tokens removed; all of it where there are no tags.

    None when reasoning was opened and never closed: the completion was cut before it answered.
    """
    text = strip_end_of_turn(text)
    for opening, closing in reasoning:
        _, closed, after = text.rpartition(closing)
        if not closed and opening in text:
            return None
        text = after
    return text
