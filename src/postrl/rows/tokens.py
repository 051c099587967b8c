"""From the text of a prompt to token ids: the one place that decides about special tokens at its ends.

A tokenizer may put tokens before a text (`<s>`) and behind it (`</s>`, [SEP]). A prompt has the first exactly once, also
when its text has them already, as texts have that were rendered with a chat template; and it never has the second: the
model is to go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from postrl.errors import DataError
from postrl.types import Prompt

BATCH = 1024


def encode_prompts(tokenizer: Any, texts: Sequence[str], *, templated: bool) -> list[list[int]]:
    """The token ids of prompts.

    Args:
        templated: the tokenizer's chat template made them: it has written their special tokens, all of them. Else what the
            tokenizer puts before a text comes before each, exactly once.
    """
    before, _ = ((), ()) if templated else added_tokens(tokenizer)
    found = []
    for start in range(0, len(texts), BATCH):
        batch = [_one_beginning(tokenizer, text, before) for text in texts[start : start + BATCH]]
        encoded = tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]
        found += [_begun(list(ids), before) for ids in encoded]
    return found


def encode_whole(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a text that nobody is to go on with (what a reward model reads): with the tokenizer's special tokens
    before and behind it, those before it exactly once."""
    before, behind = added_tokens(tokenizer)
    ids = tokenizer(_one_beginning(tokenizer, text, before), add_special_tokens=False, verbose=False)["input_ids"]
    ids = _begun(list(ids), before)
    return ids if behind and tuple(ids[-len(behind) :]) == behind else [*ids, *behind]


def added_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a tokenizer puts before and behind a text, seen from what it makes of one."""
    whole, bare = (list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (True, False))
    place = next((i for i in range(len(whole)) if bare and whole[i : i + len(bare)] == bare), None)
    return ((), ()) if place is None else (tuple(whole[:place]), tuple(whole[place + len(bare) :]))


def special_texts(tokenizer: Any) -> tuple[str, ...]:
    """The texts that a tokenizer reads as one special token each, the longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    found = {token.content for token in added if token.special and len(token.content) > 1}
    return tuple(sorted(found, key=len, reverse=True))


def _one_beginning(tokenizer: Any, text: str, before: Sequence[int]) -> str:
    """The text with its first special tokens written at most once, and no blanks before them."""
    if not before:
        return text
    written = "".join(map(str, tokenizer.convert_ids_to_tokens(list(before))))
    return re.sub(rf"^(\s*{re.escape(written)})+", lambda _: written, text) if written else text


def _begun(ids: list[int], before: Sequence[int]) -> list[int]:
    """The ids behind `before`, of which they may have the beginning already."""
    has = next((i for i, (mine, its) in enumerate(zip(ids, before, strict=False)) if mine != its), len(before))
    return [*before, *ids[min(has, len(ids)) :]]


def check_vocabulary(prompts: Iterable[Prompt], tokenizer: Any, vocabulary: int) -> str:
    """A line where a tokenizer has tokens that the model has not; empty where it has none.

    Args:
        vocabulary: tokens that the model knows, the rows of its embedding.

    Raises:
        DataError: a prompt holds one of them.
    """
    for prompt in prompts:
        if (largest := max(prompt.token_ids, default=0)) >= vocabulary:
            raise DataError(
                f"{prompt.prompt_id} has the token {largest} ({tokenizer.convert_ids_to_tokens(largest)!r}), and the model knows "
                f"{vocabulary} tokens; the tokenizer has {len(tokenizer)}",
                hint="give the tokenizer of this model, or enlarge it: model.resize_token_embeddings(len(tokenizer))",
            )
    more = len(tokenizer) - vocabulary
    return f"the tokenizer has {len(tokenizer)} tokens and the model {vocabulary}: no prompt holds the others" * (
        more > 0
    )
