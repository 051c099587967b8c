"""What all rewards need of a completion's text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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

_NAMES = (
    "s|[a-z]{2,8}_token|bos|eos|pad|unk|mask|cls|sep|sop|eop|user|assistant|system|observation|think|tools?|"
    "tool_calls?|tool_responses?|tool_results?|(?:start|end)_of_[a-z_]+|begin_of_[a-z_]+|unused[0-9]+|extra_id_[0-9]+|fim_[a-z_]+|image|seed:[a-z_:]+"
)
CONTROL = re.compile(
    r"(?=<\|[^<>\s]{1,64}?\|>"  # ChatML, Llama 3, Phi, gpt-oss, Command
    r"|<｜[^<>\n]{1,64}?｜>"  # DeepSeek
    r"|◁[^◁▷\s][^◁▷\n]{0,63}▷"  # Kimi
    rf"|</?(?i:{_NAMES})/?>"
    r"|<</?[A-Z]{2,}>>|\[/?[A-Z][A-Z_]+\]"  # Llama 2, Mistral, BERT
    r")\S"
)
"""Where what a model of the field may read as a special token begins."""


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


def opened_by(prompt: str, reasoning: Sequence[tuple[str, str]] = REASONING) -> str:
    """The tag with which a prompt opens the reasoning that its completions begin with, as templates of reasoning models write
    it; "" where it opens none."""
    end = prompt.rstrip()
    return next((opening for opening, _ in reasoning if end.endswith(opening)), "")


def only(tokens: Iterable[str]) -> re.Pattern[str]:
    """Where one of these tokens begins; as CONTROL."""
    each = "|".join(map(re.escape, tokens))
    return re.compile(rf"(?={each})\S" if each else r"(?!)")


def broken_up(text: str, tokens: re.Pattern[str] = CONTROL) -> str:
    """A text without special tokens: each is written with a blank behind its first character, so that a model which is
    shown the text reads words, and nobody's text writes turns of its own.

    Args:
        tokens: where they begin; default: those of the models of the field, for a model whose tokenizer is not known.
    """
    return tokens.sub(r"\g<0> ", text)
