"""The rollout worker beside servers, in virtual time: the bound on staleness, what waits, what is dropped, what is kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postrl.errors import RolloutError, ServerError, WeightsLost
from postrl.rollout.sampler import derive_seed
from postrl.simulation import clock
from postrl.types import GREEDY
from simulated_worker import TimedRewards, TimedSampler, prompts, rng, train, trained, worker

PROMPTS, BATCH, GROUP = 12, 3, 2


def config(**changes: Any) -> dict[str, Any]:
    return {
        "prompts_per_step": BATCH, "num_generations": GROUP, "max_completion_length": 400, "max_prompt_length": 8,
        "num_train_epochs": 2.0, "seed": 3, **changes,
    }  # fmt: skip


def lengths(seed: int, longest: int = 60):
    return lambda request, n: rng(seed, request.seed).randint(1, longest)


STEPS = 2 * PROMPTS // BATCH

runs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "max_staleness": st.integers(0, 4),
        "stale_policy": st.sampled_from(["wait", "drop_rollout", "drop_group"]),
        "stale_wait": st.sampled_from([1.0, 30.0, 10**6]),
        "in_flight": st.sampled_from(["keep", "wait"]),
        "training": st.sampled_from([0, 5, 40, 300]),
        "scoring": st.sampled_from([0, 20]),
        "lost": st.sampled_from([0.0, 0.1]),
        "queue": st.sampled_from([None, BATCH, BATCH + 2]),
    }
)


def simulate(run: dict[str, Any]):
    seed = run["seed"]
    lost = lambda request, n: rng(seed, n, "lost").random() < run["lost"]  # noqa: E731

    async def main():
        async with asyncio.timeout(10**8):  # a wait for ever fails instead
            return await whole()

    async def whole():
        sampler = TimedSampler(lengths(seed), lost)
        rewards = TimedRewards(lambda group: rng(seed, group.group_id, "reward").random() * run["scoring"])
        made = worker(
            sampler, rewards, number=PROMPTS,
            **config(
                max_staleness=run["max_staleness"], stale_policy=run["stale_policy"], stale_wait=run["stale_wait"],
                in_flight=run["in_flight"], rollout_queue_size=run["queue"], seed=seed, **run.get("settings", {}),
            ),
        )  # fmt: skip
        batches = await train(made, STEPS, lambda step: rng(seed, step).random() * run["training"])
        return made, sampler, batches

    return clock.run(main())


@settings(max_examples=150, deadline=None)
@given(runs)
def test_no_trained_rollout_is_older_than_the_bound_whatever_the_order_of_events(run):
    _, _, batches = simulate(run)
    for version, groups in enumerate(batches):
        for rollout in (r for g in groups for r in g.rollouts if r.dropped is None):
            assert 0 <= version - rollout.oldest_version <= run["max_staleness"]


@settings(max_examples=100, deadline=None)
@given(runs)
def test_every_prompt_of_every_epoch_is_trained_once_or_left_out_and_counted(run):
    made, _, batches = simulate(run)
    seen = Counter(group.group_id for groups in batches for group in trained(groups))
    assert set(seen.values()) == {1}
    assert all(len(trained(groups)) == BATCH for groups in batches)
    expected = STEPS * BATCH + made.production.left_out
    assert len(seen) == STEPS * BATCH and max(seen) < expected


@settings(max_examples=60, deadline=None)
@given(runs)
def test_without_staleness_the_batches_are_those_of_the_data_order_alone(run):
    run = {**run, "max_staleness": 0, "lost": 0.0}
    _, sampler, batches = simulate(run)
    oracle = data_order(prompts(PROMPTS), run["seed"])
    for step, groups in enumerate(batches):
        assert [(g.group_id, g.prompt_id) for g in groups] == oracle[step * BATCH : (step + 1) * BATCH]
        assert {r.oldest_version for g in groups for r in g.rollouts} == {step}
    assert sorted(request.seed for request in sampler.asked) == sorted(
        derive_seed(run["seed"], gid, pid, i) for gid, pid in oracle for i in range(GROUP)
    )


def data_order(rows, seed: int, epochs: int = 2) -> list[tuple[int, str]]:
    """Computed here from the rule in PromptStream's docstring, and nothing else."""
    import random

    out = []
    for epoch in range(epochs):
        order = list(range(len(rows.prompts)))
        random.Random(f"{seed}::{epoch}").shuffle(order)
        out += [rows.prompts[i].prompt_id for i in order]
    return list(enumerate(out))


@settings(max_examples=40, deadline=None)
@given(runs)
def test_any_bound_trains_the_same_prompts_in_an_epoch(run):
    run = {**run, "lost": 0.0}
    batches = simulate(run)[2]
    assert Counter(g.prompt_id for groups in batches for g in trained(groups)) == Counter(
        {f"rows:{i}": 2 for i in range(PROMPTS)}
    )


@settings(max_examples=40, deadline=None)
@given(runs)
def test_under_wait_the_trained_lengths_are_those_that_were_sampled(run):
    run = {**run, "stale_policy": "wait", "stale_wait": 10.0**6, "lost": 0.0}
    _, sampler, batches = simulate(run)
    got = Counter(len(r.completion_ids) for groups in batches for g in groups for r in g.rollouts)
    assert not any(r.dropped for groups in batches for g in groups for r in g.rollouts)
    # every request that was sent was finished and trained on: nothing was left out for being long
    assert got == Counter(lengths(run["seed"])(request, 0) for request in sampler.asked)


def test_dropping_what_is_late_trains_on_what_is_short():
    """The reason why `wait` is the default; the alarm is a metric."""
    long = lambda request, n: 300 if rng(request.seed).random() < 0.2 else 10  # noqa: E731

    def mean_length(policy: str) -> float:
        async def main():
            made = worker(TimedSampler(long), number=60, **config(max_staleness=1, stale_policy=policy))
            return await train(made, 40, lambda step: 20.0)

        batches = clock.run(main())
        got = [len(r.completion_ids) for gs in batches for g in gs for r in g.rollouts if r.dropped is None]
        return sum(got) / len(got)

    assert mean_length("drop_group") < 0.7 * mean_length("wait")


# -- overlap -----------------------------------------------------------------------------------------------------------


def seconds_of(max_staleness: int) -> float:
    async def main():
        made = worker(TimedSampler(lambda request, n: 50), number=PROMPTS, **config(max_staleness=max_staleness))
        await train(made, STEPS, lambda step: 50.0)
        return asyncio.get_running_loop().time()

    return clock.run(main())


def test_generation_and_training_overlap():
    assert seconds_of(0) == STEPS * 100.0
    assert seconds_of(1) == (STEPS + 1) * 50.0


def test_metrics_say_which_side_waits_and_an_evaluation_is_work_for_the_samplers():
    async def main(training: float, max_staleness: int, evaluation: int = 0):
        sampler = TimedSampler(lambda request, n: 50)
        made = worker(sampler, number=PROMPTS, **config(max_staleness=max_staleness))
        made.evaluation = prompts(evaluation)
        made.pushed(0)
        for version in range(4):
            _, metrics = await made.groups(version)
            await asyncio.sleep(training)
            if evaluation:
                await made.evaluate(version)
            made.pushed(version + 1)
        made.close()
        return metrics

    overlapping, synchronous = clock.run(main(80.0, 1)), clock.run(main(20.0, 0))
    assert (overlapping["time/wait_for_rollouts"], overlapping["time/samplers_idle"]) == (0.0, 30.0)
    assert (synchronous["time/wait_for_rollouts"], synchronous["time/samplers_idle"]) == (50.0, 20.0)
    assert synchronous["throughput/rollout_tokens_per_s"] == BATCH * GROUP * 50 / 50.0  # per second of generation
    assert overlapping["rollout/queue_groups"] == 0.0
    evaluated = clock.run(main(20.0, 0, evaluation=2))
    assert (evaluated["time/wait_for_rollouts"], evaluated["time/samplers_idle"]) == (50.0, 20.0)


def test_the_queue_is_never_longer_than_it_may_be():
    async def main():
        made = worker(TimedSampler(lengths(1)), number=PROMPTS, **config(max_staleness=4, rollout_queue_size=4))
        longest = 0
        made.pushed(0)
        for version in range(STEPS):
            await made.groups(version)
            for _ in range(100):
                await asyncio.sleep(1)
                longest = max(longest, len(made.production.buffer.entries))
            made.pushed(version + 1)
        made.close()
        return longest

    assert clock.run(main()) == 4


# -- greedy completions ------------------------------------------------------------------------------------------------

REMAX = {"algorithm": "remax", "loss_aggregation": "seq_mean_token_sum"}


@settings(max_examples=60, deadline=None)
@given(runs)
def test_where_the_algorithm_needs_one_every_group_that_is_trained_has_its_greedy_completion(run):
    made, sampler, batches = simulate({**run, "settings": REMAX})
    assert {request.sampling.temperature for request in sampler.asked} == {0.0, 1.0}
    for version, groups in enumerate(batches):
        for group in trained(groups):
            assert group.greedy is not None and group.greedy.dropped == "greedy"
            assert group.greedy.sample_index == GREEDY not in [r.sample_index for r in group.rollouts]
            assert group.greedy.statuses == {"task": "correct"} and group.greedy.reward == 1.0
            assert 0 <= version - group.greedy.oldest_version <= run["max_staleness"]
    assert all(len(trained(groups)) == BATCH for groups in batches)
    assert made.production.stream.position == STEPS * BATCH + made.production.left_out


def test_a_group_whose_greedy_completion_did_not_come_is_begun_anew():
    tries: list[int] = []

    def lost(request, n):
        if request.sampling.temperature == 0.0 and list(request.prompt_ids) == [5, 7]:
            tries.append(n)
        return len(tries) < 3 and request.sampling.temperature == 0.0 and list(request.prompt_ids) == [5, 7]

    async def main():
        made = worker(TimedSampler(lengths(1), lost), number=PROMPTS, **config(num_train_epochs=1.0, **REMAX))
        return made, await train(made, PROMPTS // BATCH, lambda step: 1.0)

    made, batches = clock.run(main())
    assert len(tries) == 3
    assert made.production.left_out == 0
    assert Counter(g.prompt_id for gs in batches for g in trained(gs)) == Counter(f"rows:{i}" for i in range(PROMPTS))
    failed = [g for gs in batches for g in gs if {r.dropped for r in g.rollouts} == {"error"}]
    assert [(g.prompt_id, g.greedy, len(g.rollouts)) for g in failed] == [("rows:7", None, GROUP)] * 2


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_prompt_that_never_comes_is_left_out_and_named():
    notes: list[str] = []

    async def main():
        sampler = TimedSampler(lengths(1), lost=lambda request, n: list(request.prompt_ids) == [5, 7])
        made = worker(sampler, number=PROMPTS, note=notes.append, **config(num_train_epochs=1.0))
        return await train(made, PROMPTS // BATCH, lambda step: 1.0)

    batches = clock.run(main())
    assert Counter(g.prompt_id for gs in batches for g in trained(gs))["rows:7"] == 0
    assert all(len(trained(groups)) == BATCH for groups in batches)
    assert any("rows:7" in note and "3 times" in note for note in notes)


def test_a_prompt_that_was_dropped_for_its_age_has_not_failed():
    """Long prompts are dropped often; each may still fail three times before it is left out."""

    async def main():
        slow = lambda request, n: 100 if list(request.prompt_ids) == [5, 7] else 1  # noqa: E731
        fails_twice = {3, 4}
        sampler = TimedSampler(slow)
        tries: list[int] = []

        def lost(request, n):
            if list(request.prompt_ids) != [5, 7]:
                return False
            tries.append(n)
            return len(tries) > 2 * GROUP and len(tries) // GROUP in fails_twice

        sampler.lost = lost
        made = worker(
            sampler, number=PROMPTS, **config(num_train_epochs=1.0, max_staleness=1, stale_policy="drop_group")
        )
        batches = await train(made, PROMPTS // BATCH, lambda step: 45.0)
        return made, batches

    made, batches = clock.run(main())
    assert made.production.left_out == 0
    assert all(len(trained(groups)) == BATCH for groups in batches)


def test_a_batch_that_was_cut_together_does_not_spin_while_it_is_scored():
    """The loop goes round only when something happens: in virtual time a spin would never end."""

    async def main():
        slow = lambda request, n: 400 if request.prompt_ids[1] % 3 == 0 and request.seed % 3 == 0 else 5  # noqa: E731
        rewards = TimedRewards(lambda group: 50.0)
        made = worker(
            TimedSampler(slow), rewards, number=PROMPTS,
            **config(max_staleness=1, stale_policy="drop_rollout", stale_wait=1.0, num_generations=4),
        )  # fmt: skip
        return await train(made, STEPS, lambda step: 60.0)

    batches = clock.run(main())
    assert all(len(trained(groups)) == BATCH for groups in batches)
    assert any(len(group.rollouts) < 4 for groups in batches for group in trained(groups)), "nothing was cut"


def test_when_nothing_comes_any_more_the_run_ends_with_the_reasons():
    async def main():
        made = worker(TimedSampler(lengths(1), lost=lambda request, n: True), number=200, **config())
        await train(made, 1, lambda step: 1.0)

    with pytest.raises(RolloutError, match=r"could not be trained on\. Dropped so far: [0-9]+ error"):
        clock.run(main())


def test_a_sampler_that_gives_up_ends_the_wait():
    class Broken(TimedSampler):
        async def sample(self, request):
            await asyncio.sleep(3)
            raise ServerError("vLLM server 0 is gone")

    async def main():
        await train(worker(Broken(lengths(1)), number=PROMPTS, **config()), 1, lambda step: 1.0)

    with pytest.raises(ServerError, match="is gone"):
        clock.run(main())


def test_servers_that_lost_the_weights_get_them_again_and_nothing_else_is_lost():
    class Restarted(TimedSampler):
        blank = False

        async def sample(self, request):
            if self.blank:
                raise WeightsLost("all servers were started again")
            return await super().sample(request)

        def release(self, version):
            super().release(version)
            self.blank = False

    async def main():
        sampler = Restarted(lengths(1))
        made = worker(sampler, number=PROMPTS, **config(max_staleness=1, num_train_epochs=1.0))
        made.pushed(0)
        batches, republished = [], 0
        for version in range(PROMPTS // BATCH):
            sampler.blank = version == 0
            while True:
                try:
                    groups, _ = await made.groups(version)
                    break
                except WeightsLost:
                    republished += 1
                    made.pushed(version)
            batches.append(groups)
            made.pushed(version + 1)
        made.close()
        return batches, republished

    batches, republished = clock.run(main())
    assert republished == 1
    assert Counter(g.prompt_id for groups in batches for g in trained(groups)) == Counter(
        f"rows:{i}" for i in range(PROMPTS)
    )


def test_a_long_wait_is_explained():
    notes: list[str] = []

    async def main():
        sampler = TimedSampler(lambda request, n: 150 if list(request.prompt_ids)[1] == 2 else 1)
        made = worker(sampler, number=PROMPTS, note=notes.append, **config(shuffle=False))
        await train(made, 1, lambda step: 1.0)

    clock.run(main())
    assert notes == [
        f"waited {s} s for the rollouts of step 1: 2 of 3 groups are finished, 1 are being sampled (2 completions are "
        "missing; a simulated server)"
        for s in (60, 120)
    ]


# -- resume ------------------------------------------------------------------------------------------------------------


def test_a_run_may_be_resumed_with_a_lower_bound():
    async def first():
        made = worker(
            TimedSampler(lambda request, n: 1), number=PROMPTS, **config(max_staleness=12, num_train_epochs=5.0)
        )
        await train(made, 2, lambda step: 1000.0, stop_after=1)
        await asyncio.sleep(1000)
        return made.state(), made.finished_groups()

    async def second(state, finished):
        made = worker(TimedSampler(lambda request, n: 1), number=PROMPTS, **config(num_train_epochs=5.0))
        made.load_state(state, finished)
        return await train(made, 19, lambda step: 1.0, first=1)

    state, finished = clock.run(first())
    assert len(finished) == 12 * BATCH, "as much as ends a run whose groups all fail"
    batches = clock.run(second(state, finished))
    seen = Counter(group.prompt_id for groups in batches for group in trained(groups))
    assert sum(seen.values()) == 19 * BATCH


@settings(max_examples=60, deadline=None)
@given(runs, st.integers(1, STEPS - 1), st.booleans())
def test_a_run_that_goes_on_from_a_checkpoint_trains_every_prompt_once(run, stop, keeps_finished):
    """keeps_finished: as after a resume; otherwise the worker died and only its last position is known."""
    seed = run["seed"]
    options = config(
        max_staleness=run["max_staleness"], stale_policy=run["stale_policy"], stale_wait=run["stale_wait"], seed=seed,
        rollout_queue_size=run["queue"],
    )  # fmt: skip

    async def first():
        made = worker(TimedSampler(lengths(seed)), number=PROMPTS, **options)
        batches = await train(made, STEPS, lambda step: rng(seed, step).random() * 40, stop_after=stop)
        if keeps_finished:
            await asyncio.sleep(20)
        return batches, made.state(), made.finished_groups() if keeps_finished else []

    async def second(state, finished):
        sampler = TimedSampler(lengths(seed))
        made = worker(sampler, number=PROMPTS, **options)
        made.load_state(state, finished)
        return await train(made, STEPS - stop, lambda step: rng(seed, step).random() * 40, first=stop), sampler

    before, state, finished = clock.run(first())
    after, sampler = clock.run(second(state, finished))
    assert Counter(g.prompt_id for groups in before + after for g in trained(groups)) == Counter(
        {f"rows:{i}": 2 for i in range(PROMPTS)}
    )
    for version, groups in enumerate(before + after):
        for rollout in (r for g in groups for r in g.rollouts if r.dropped is None):
            assert version - rollout.oldest_version <= run["max_staleness"]
    kept = {group.group_id for group in finished}
    stale = {g.group_id for groups in after for g in groups if all(r.dropped for r in g.rollouts)}
    assert not {r.seed for r in sampler.asked} & {
        derive_seed(seed, g, f"rows:{i}", 0) for g in kept - stale for i in range(PROMPTS)
    }
