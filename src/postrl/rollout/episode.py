"""How a rollout comes about: what is asked of the sampler for one completion of a prompt, and what becomes of the answers.

A single turn is the only episode there is. Turns with tools and environments come in here: `Ask` may be called again
with what the other side said, and neither the worker nor a sampler knows how often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from postrl.rollout.turn_end import TurnEnd
from postrl.types import Prompt, Rollout, Sampled

Ask = Callable[[Sequence[int]], Awaitable[Sampled]]
"""Samples what comes after these tokens, with the seed, the settings and the weights of one rollout."""


class Episode(Protocol):
    """Makes rollouts."""

    async def run(self, prompt: Prompt, sample_index: int, ask: Ask) -> Rollout:
        """One rollout; its finish_reason is "abort" where the sampler gave it up."""
        ...


class SingleTurn:
    """The policy answers once.

    Args:
        turn: what ends answers in conversations, beside what ends all; it decodes them too.
    """

    def __init__(self, turn: TurnEnd, tokenizer: Any) -> None:
        self.turn, self.tokenizer = turn, tokenizer

    async def run(self, prompt: Prompt, sample_index: int, ask: Ask) -> Rollout:
        """See `Episode.run`."""
        sampled = await ask(prompt.token_ids)
        return Rollout(
            prompt_id=prompt.prompt_id,
            sample_index=sample_index,
            prompt_ids=list(prompt.token_ids),
            completion_ids=sampled.completion_ids,
            logps=sampled.logps,
            version_spans=sampled.version_spans,
            finish_reason=sampled.finish_reason,
            completion=self.turn.said(self.tokenizer, sampled.completion_ids, prompt),
            support=sampled.support,
        )
