"""Groups to be scored outside of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from postrl.rewards.text import opened_by
from postrl.types import Group, Prompt, Rollout


def as_group(prompt: Prompt, number: int, completions: Sequence[str], ids: Sequence[list[int]] = ()) -> Group:
    """A prompt with completions, to be scored; without `ids` nobody has written them after this prompt: bytes stand for
    tokens, and they are not reasoning that it has opened."""
    text = prompt.text if ids or not (tag := opened_by(prompt.text)) else prompt.text.rstrip().removesuffix(tag)
    rollouts = [
        Rollout(
            prompt_id=prompt.prompt_id,
            sample_index=i,
            prompt_ids=list(prompt.token_ids),
            completion_ids=list(ids[i]) if ids else list(said.encode("utf-8", "surrogatepass")),
            logps=[],
            version_spans=[],
            finish_reason="stop",
            completion=said,
        )
        for i, said in enumerate(completions)
    ]
    return Group(prompt.prompt_id, number, text, prompt.messages, prompt.columns, rollouts, prompt.rewards)


def unscored(group: Group, rewards: tuple[str, ...]) -> Group:
    """A copy without scores, to be scored by these rewards; (): by all."""
    fresh = [replace(rollout, rewards={}, statuses={}, reward=None, correct=None) for rollout in group.completions]
    greedy = None if group.greedy is None else fresh.pop()
    return replace(group, rollouts=fresh, greedy=greedy, rewards=rewards)


def question(group: Group) -> str:
    """What the user says in a prompt, without the chat template."""
    return str(group.messages[-1].get("content")) if group.messages else group.prompt
