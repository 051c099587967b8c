"""How a rollout comes about: one answer, or several with somebody else's words between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import TURN_END, tiny_tokenizer
from postrl.rollout.episode import Ask, SingleTurn
from postrl.rollout.turn_end import TurnEnd
from postrl.simulation import clock
from postrl.types import Prompt, Rollout, Sampled, Segment, VersionSpan
from simulated_worker import TimedSampler, train, trained, worker

TOKENIZER = tiny_tokenizer()
PROMPT = Prompt("rows:1", None, "p", [5, 6])


def answering(sampled: Sampled) -> tuple[Ask, list[list[int]]]:
    """(a sampler's answer to everything, what it was asked)"""
    asked: list[list[int]] = []

    async def ask(token_ids: Any) -> Sampled:
        asked.append(list(token_ids))
        return sampled

    return ask, asked


def test_a_single_turn_is_asked_once_and_keeps_what_came():
    ids = TOKENIZER("seven" + TURN_END, add_special_tokens=False)["input_ids"]
    sampled = Sampled(ids, [-0.5] * len(ids), [VersionSpan(3, 0, len(ids))], "stop", [[1]] * len(ids))
    ask, asked = answering(sampled)
    rollout = clock.run(SingleTurn(TurnEnd(eos=(TOKENIZER.eos_token_id,)), TOKENIZER).run(PROMPT, 2, ask))
    assert asked == [[5, 6]]
    assert (rollout.prompt_id, rollout.sample_index, rollout.prompt_ids) == ("rows:1", 2, [5, 6])
    assert (rollout.completion_ids, rollout.logps, rollout.version_spans) == (ids, sampled.logps, sampled.version_spans)
    assert (rollout.completion, rollout.finish_reason, rollout.support) == ("seven", "stop", [[1]] * len(ids))


def test_what_was_given_up_says_so():
    rollout = clock.run(SingleTurn(TurnEnd(), TOKENIZER).run(PROMPT, 0, answering(Sampled())[0]))
    assert (rollout.finish_reason, rollout.completion_ids) == ("abort", [])


class Asks:
    """An episode of two answers, the second one to a word of somebody else's after ten seconds."""

    WORD = 9

    async def run(self, prompt: Prompt, sample_index: int, ask: Ask) -> Rollout:
        first = await ask(prompt.token_ids)
        await asyncio.sleep(10)
        said = [*first.completion_ids, self.WORD]
        second = await ask([*prompt.token_ids, *said])
        if "abort" in (first.finish_reason, second.finish_reason):
            return Rollout(prompt.prompt_id, sample_index, prompt.token_ids, [], [], [], "abort")
        n = len(first.completion_ids)
        word = Sampled([self.WORD], [float("nan")], [VersionSpan(first.version_spans[-1].version, 0, 1)])
        whole = first.then(word).then(second)
        return Rollout(
            prompt.prompt_id, sample_index, prompt.token_ids, whole.completion_ids, whole.logps, whole.version_spans,
            second.finish_reason, loss_mask=[1] * n + [0] + [1] * len(second.completion_ids),
            segments=[Segment("policy", 0, n), Segment("tool", n, n + 1), Segment("policy", n + 1, len(whole.logps))],
        )  # fmt: skip


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_the_worker_runs_any_episode_within_the_bound_on_staleness(max_staleness):
    sampler = TimedSampler(lambda request, n: 5)

    async def main():
        made = worker(
            sampler, number=6, prompts_per_step=2, num_generations=2, max_steps=3, max_staleness=max_staleness
        )
        made.maker.episode = Asks()
        return await train(made, 3, lambda step: 12.0)

    batches = clock.run(main())
    assert len(sampler.asked) == 3 * 2 * 2 * 2
    for version, groups in enumerate(batches):
        assert len(trained(groups)) == 2
        for rollout in (rollout for group in groups for rollout in group.rollouts):
            assert rollout.completion_ids == [1] * 5 + [Asks.WORD] + [1] * 5
            assert 0 <= version - rollout.oldest_version <= max_staleness
    newest = [rollout.newest_version for groups in batches for g in groups for rollout in g.rollouts]
    assert (max(newest) > 0) and len(set(newest)) > 1
