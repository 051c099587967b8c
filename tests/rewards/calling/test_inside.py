"""Rewards in the process that scores: what they leave in lists and globals is there afterwards."""

from __future__ import annotations

import asyncio
import os

import cloudpickle
import pytest

from helpers import tiny_model_dir
from postrl import GRPOConfig, GRPOTrainer
from postrl.errors import RewardError
from postrl.rewards.registry import RewardSpec, resolve
from rewards.groups import group, runner, score, statuses, values


class Counting:
    """A callable with state."""

    def __init__(self):
        self.calls = 0

    def __call__(self, completions, **columns):
        self.calls += 1
        return [float(self.calls)] * len(completions)


def test_a_list_a_counter_and_an_object_are_the_callers_own():
    seen, counting = [], Counting()

    def noting(prompts, completions, **columns):
        seen.append((os.getpid(), list(completions)))
        prompts.clear()  # a copy: what it does to its arguments is its own affair
        return [1.0] * len(completions)

    with runner(noting, counting, processes=0) as rewards:
        for _ in range(2):
            g = group("a", "b")
            score(rewards, g)
    assert seen == [(os.getpid(), ["a", "b"])] * 2
    assert counting.calls == 2 and values(g, "Counting") == [2.0, 2.0]
    assert values(g, "noting") == [1.0, 1.0]


def test_async_functions_and_the_two_ways_to_log_work_as_elsewhere():
    loops = set()

    async def later(completions, log_extra, log_metric, **columns):
        loops.add(asyncio.get_running_loop())
        log_extra("length", [len(c) for c in completions])
        log_metric("calls", 1.0)
        return [float(len(c)) for c in completions]

    with runner(later, processes=0) as rewards:
        for _ in range(2):
            g = group("a", "bcd")
            score(rewards, g)
        assert rewards.metrics([g])["reward/later/calls"].total == 2.0
    assert len(loops) == 1
    assert [rollout.extra["length"] for rollout in g.rollouts] == [1, 3]


def test_what_it_raises_is_counted_and_the_process_goes_on():
    def failing(completions, **columns):
        raise SystemExit(3)

    with runner(failing, processes=0) as rewards:
        g = group("a")
        score(rewards, g)
    assert statuses(g, "failing") == ["infra_error"]
    assert "SystemExit: 3" in rewards.failures["failing"].first


def test_a_function_that_cannot_be_loaded_says_so(tmp_path):
    (tmp_path / "broken.py").write_text("def f(completions): ...\nraise ValueError('no table')\n")
    with runner(f"{tmp_path}/broken.py:f", processes=0) as rewards, pytest.raises(RewardError, match="no table"):
        asyncio.run(rewards.start())


def test_the_callable_itself_does_not_travel():
    spec = resolve(Counting())
    assert isinstance(spec.live, Counting)
    sent = cloudpickle.loads(cloudpickle.dumps(spec))
    assert sent == spec and sent.live is None
    assert RewardSpec.from_wire(spec.to_wire()) == spec


def test_a_script_reads_back_what_its_reward_has_seen(tmp_path):
    seen = []

    def lengths(completions, **columns):
        seen.extend(completions)
        return [float(len(text)) for text in completions]

    args = GRPOConfig(
        output_dir=str(tmp_path / "run"), dataset=["arithmetic"], engine="transformers", max_completion_length=8,
        prompts_per_step=2, num_generations=4, max_steps=1, reward_workers=0,
    )  # fmt: skip
    trainer = GRPOTrainer(model=str(tiny_model_dir(tmp_path / "m")), reward_funcs=lengths, args=args)
    trainer.train()
    trainer.close()
    assert len(seen) == 8
