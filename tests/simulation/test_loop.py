"""Simulated runs against what can be computed by hand: one server, completions of one length, updates of one duration."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postrl.config import GRPOConfig
from postrl.errors import RolloutError
from postrl.simulation import clock
from postrl.simulation.assumptions import Assumptions, Speed
from postrl.simulation.loop import Division, Report, simulate
from postrl.simulation.sampler import SimulatedSampler
from simulated_worker import TimedRewards, rng, trained, worker

BATCH, GROUP, LENGTH, PROMPT = 3, 2, 50, 10
TOKENS = BATCH * (PROMPT + GROUP * LENGTH)
"""Of a step: each prompt is read once."""


def config(**changes: Any) -> GRPOConfig:
    return GRPOConfig(model="m", prompts_per_step=BATCH, num_generations=GROUP, **changes)


def assumed(training: float = 50.0, **changes: Any) -> Assumptions:
    """One token a second for each sequence, updates of `training` seconds, nothing else takes time."""
    values: dict[str, Any] = {
        "length_mean": float(LENGTH), "length_sigma": 0.0, "prompt_tokens": float(PROMPT), "slots": 64.0,
        "lone_tokens_per_s": 1.0, "full_tokens_per_s": 64.0, "prefill_tokens_per_s": float("inf"),
        "train_tokens_per_s": TOKENS / training, "push_seconds": 0.0,
    }  # fmt: skip
    return Assumptions(**{**values, **changes})


SETTINGS = ("in_flight", "lora_rank", "num_iterations", "beta")
ONE_EACH = Division(servers=1, ranks=1)


def report(max_staleness: int, training: float = 50.0, *, division: Division = ONE_EACH, **changes: Any) -> Report:
    """Of four steps in the middle of a run; an even number, because two batches that are in flight may take turns."""
    own = {name: changes.pop(name) for name in SETTINGS if name in changes}
    return simulate(config(max_staleness=max_staleness, **own), assumed(training, **changes), division, steps=4)


@pytest.mark.parametrize(
    ("max_staleness", "training", "step", "servers_idle", "trainer_idle", "bottleneck"),
    [
        (0, 50.0, 100.0, 1 / 2, 1 / 2, "they take turns"),
        (0, 150.0, 200.0, 3 / 4, 1 / 4, "they take turns"),
        (1, 50.0, 50.0, 0.0, 0.0, "balanced"),
        (1, 80.0, 80.0, 3 / 8, 0.0, "training"),
        # two batches at once on the server: one begins at each push and is trained after the next, 20 + 50 s later
        (1, 20.0, 35.0, 0.0, 15 / 35, "generation"),
    ],
)
def test_throughput_and_idle_shares_are_those_of_a_pencil(
    max_staleness, training, step, servers_idle, trainer_idle, bottleneck
):
    got = report(max_staleness, training)
    assert got.steps_per_hour == pytest.approx(3600 / step)
    assert got.rollout_tokens_per_s == pytest.approx(BATCH * GROUP * LENGTH / step)
    assert got.train_tokens_per_s == pytest.approx(TOKENS / step)
    assert (got.samplers_idle, got.trainer_idle) == (pytest.approx(servers_idle), pytest.approx(trainer_idle))
    assert (got.staleness_mean, got.staleness_max) == (max_staleness, max_staleness)
    assert got.bottleneck() == bottleneck
    assert got.running == pytest.approx(BATCH * GROUP * LENGTH / step)  # each is there for LENGTH seconds


def test_a_server_at_its_limit_gives_its_tokens_a_second_whatever_waits():
    limited = assumed(20.0, lone_tokens_per_s=6.0, full_tokens_per_s=6.0)
    got = simulate(config(max_staleness=2), limited, ONE_EACH, steps=40)
    assert got.samplers_idle == pytest.approx(0.0)
    assert got.rollout_tokens_per_s == pytest.approx(6.0, rel=0.03)  # batches end unevenly
    assert got.trainer_idle == pytest.approx(30 / 50, rel=0.03)
    assert got.bottleneck() == "generation"


def test_a_push_stops_both_sides():
    got = report(0, push_seconds=4.0)
    assert got.seconds / got.steps == pytest.approx(104.0)
    assert (got.samplers_idle, got.trainer_idle) == (pytest.approx(54 / 104), pytest.approx(50 / 104))


@pytest.mark.parametrize(
    ("in_flight", "waits", "two_steps"),
    [
        # Two steps repeat. In the first a batch is ready: 20 s of training, a push of 4 s. The batch that began at its
        # start has 17 tokens by then (its prompts took 3 s). In the second the trainer waits for its other 33, while the
        # prompts of the next batch take 3 s; trains, and finds that batch ready after its push.
        ("keep_kv", 3 + 33, 24 + 3 + 33 + 24),
        # and 3 prompts of 10 and 6 x 17 tokens are computed anew, 0.1 s each
        ("keep", 13.2 + 3 + 33, 24 + 13.2 + 3 + 33 + 24),
        ("abort", 13.2 + 3 + 33, 24 + 13.2 + 3 + 33 + 24),
        # every push waits until the batch that began after the last one is whole, and the trainer with it
        ("wait", 2 * (3 + 50 - 20), 2 * (3 + 50 + 4)),
    ],
)
def test_what_is_in_flight_at_a_push_costs_what_it_should(in_flight, waits, two_steps):
    got = report(1, training=20.0, push_seconds=4.0, prefill_tokens_per_s=10.0, in_flight=in_flight)
    assert 2 * got.seconds / got.steps == pytest.approx(two_steps)
    assert got.trainer_idle == pytest.approx(waits / two_steps)
    assert got.staleness_max == 1


def test_an_adapter_is_pushed_without_a_pause():
    got = report(1, training=20.0, push_seconds=4.0, lora_rank=8)
    assert got.seconds / got.steps == pytest.approx((20 + 4 + 50) / 2)
    assert got.samplers_idle == pytest.approx(0.0)


def test_more_ranks_train_faster_and_more_servers_generate_faster():
    assert report(0, division=Division(1, 3), rank_efficiency=0.5).seconds / 4 == pytest.approx(50 + 25)
    crowded = {"slots": 3.0, "full_tokens_per_s": 3.0}  # two rounds on one server
    assert report(0, **crowded).seconds / 4 == pytest.approx(150.0)
    two = report(0, division=Division(2, 1), **crowded)
    assert two.seconds / 4 == pytest.approx(100.0)
    assert (two.samplers_idle, two.running) == (pytest.approx(0.5), pytest.approx(1.5))  # of each


def test_every_pass_over_a_batch_takes_its_time():
    assert report(0, num_iterations=2).seconds / 4 == pytest.approx(50 + 2 * 50 + 50 / 3)  # and the prox log-probs
    assert report(0, beta=0.1).seconds / 4 == pytest.approx(50 + 50 + 50 / 3)


def test_rewards_and_the_rest_of_a_step_take_their_time():
    got = report(0, reward_seconds=7.0)
    assert got.seconds / got.steps == pytest.approx(107.0)
    got = report(1, 80.0, other_seconds=3.0)  # after the push: while the next batch is generated already
    assert got.seconds / got.steps == pytest.approx(83.0)


def test_the_steps_have_the_metrics_of_a_run_under_their_names():
    from postrl.run.metrics import meaning

    rows: dict[int, dict[str, float]] = {}
    simulate(
        config(max_staleness=1),
        assumed(80.0, push_seconds=4.0),
        Division(1, 1),
        steps=3,
        whole=True,
        on_step=rows.__setitem__,
    )
    assert list(rows) == [1, 2, 3]
    assert {name for row in rows.values() for name in row if meaning(name) is None} == set()
    first, second, _ = rows.values()
    assert (first["time/step"], second["time/step"]) == (pytest.approx(134.0), pytest.approx(84.0))
    assert (first["time/wait_for_rollouts"], second["time/wait_for_rollouts"]) == (pytest.approx(50.0), 0.0)
    assert second["time/update"] == pytest.approx(80.0)
    assert second["weights/push_s"] == pytest.approx(4.0)
    assert second["weights/version"] == 1.0
    assert second["rollout/staleness_max"] == 1.0
    assert second["tokens/completion"] == BATCH * GROUP * LENGTH
    assert second["throughput/train_tokens_per_s"] == pytest.approx(TOKENS / 80)
    assert not any(name.startswith("reward/") for name in second)


def test_the_same_seed_gives_the_same_run_and_another_one_does_not():
    def rows(seed: int) -> list[dict[str, float]]:
        out: list[dict[str, float]] = []
        lengths = assumed(length_sigma=0.8, reward_seconds=2.0)
        simulate(
            config(seed=seed, max_staleness=2), lengths, Division(2, 1), steps=4, on_step=lambda _, row: out.append(row)
        )
        return out

    assert rows(1) == rows(1) != rows(2)


def test_completions_that_take_longer_than_may_be_waited_for_are_counted_as_dropped():
    late = config(max_staleness=1, stale_policy="drop_group", max_completion_length=400)
    got = simulate(late, assumed(20.0, endless=0.05), Division(1, 1), steps=20)
    assert got.dropped_stale > 0


def test_a_run_that_drops_everything_ends_with_the_reasons():
    slow = config(max_staleness=0, stale_policy="drop_group", max_completion_length=400)
    made = worker(SimulatedSampler(Speed(1.0), lambda r: 50, failures=lambda r: 3), number=400, **_settings(slow))  # type: ignore[arg-type]

    async def main() -> None:
        made.pushed(0)
        await made.groups(0)

    with pytest.raises(RolloutError, match="could not be trained on"):
        clock.run(main())


# -- with trouble: nothing is lost, nothing is too old -----------------------------------------------------------------


def _settings(c: GRPOConfig) -> dict[str, Any]:
    names = ("prompts_per_step", "num_generations", "max_completion_length", "max_staleness", "stale_policy", "stale_wait",
             "in_flight", "seed", "max_steps")  # fmt: skip
    return {name: getattr(c, name) for name in names}


STEPS, PROMPTS = 6, BATCH * 6


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 3),
    st.sampled_from(["keep", "keep_kv", "wait", "abort"]),
    st.sampled_from([5.0, 60.0]),
    st.sampled_from([2, 64]),
    st.sampled_from(["wait", "drop_rollout", "drop_group"]),
)
def test_every_prompt_is_trained_once_within_the_bound_whatever_delays_and_fails(
    seed, bound, in_flight, training, slots, policy
):
    c = config(
        max_staleness=bound,
        in_flight=in_flight,
        seed=seed,
        max_steps=STEPS,
        max_completion_length=80,
        stale_policy=policy,
    )

    async def main():
        sampler = SimulatedSampler(
            Speed(1.0, 0.1, 0.01), lambda r: rng(r.seed).randint(1, 90), servers=2, slots=slots,
            delay=lambda r: rng(r.seed, "delay").random() * 9, failures=lambda r: rng(r.seed, "fail").choice([0, 0, 0, 1]),
        )  # fmt: skip
        made = worker(
            sampler, TimedRewards(lambda g: rng(seed, g.group_id).random() * 9), number=PROMPTS, **_settings(c)
        )  # type: ignore[arg-type]
        batches = []
        made.pushed(0)
        for version in range(STEPS):
            groups, _ = await made.groups(version)
            batches.append(trained(groups))
            await asyncio.sleep(training)
            if in_flight != "keep":
                made.hold()
            await sampler.push(version + 1, 3.0, in_flight)
            made.pushed(version + 1)
        made.close()
        return batches

    batches = clock.run(main())
    assert sorted(group.prompt_id for batch in batches for group in batch) == sorted(
        f"rows:{i}" for i in range(PROMPTS)
    )
    for version, batch in enumerate(batches):
        for rollout in (r for group in batch for r in group.rollouts):
            assert 0 <= version - rollout.oldest_version <= bound
            spans = rollout.version_spans
            assert [s.start for s in spans] == [0, *(s.end for s in spans[:-1])]
            assert spans[-1].end == len(rollout.completion_ids)
            assert [s.version for s in spans] == sorted({s.version for s in spans})
