"""Which groups teach something, and what becomes of the others: replaced in the order of the data, up to a bound."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.rewards.registry import resolve
from postrl.rewards.runner import RewardRunner
from postrl.simulation import clock
from postrl.types import Group, Rollout, VersionSpan
from postrl.worker.informative import informative, unjudged
from simulated_worker import TimedRewards, TimedSampler, prompts, rng, train, trained, worker
from worker.test_overlap import data_order, lengths

# -- what teaches ------------------------------------------------------------------------------------------------------


def scored(*scores: dict[str, tuple[float | None, str]]) -> Group:
    """A group whose completions have these scores: name -> (value, status)."""
    rollouts = [
        Rollout("rows:0", i, [1], [2], [-0.5], [VersionSpan(0, 0, 1)], "stop",
                rewards={name: value for name, (value, _) in by_name.items()},
                statuses={name: status for name, (_, status) in by_name.items()})
        for i, by_name in enumerate(scores)
    ]  # fmt: skip
    return Group("rows:0", 0, "", None, {}, rollouts)


RIGHT, WRONG = {"math": (1.0, "correct")}, {"math": (0.0, "wrong")}


def test_the_golden_case():
    (case,) = (
        case
        for case in json.loads((Path(__file__).parent.parent / "golden_cases.json").read_text())["cases"]
        if case["id"] == "dynamic_sampling"
    )
    rows = list(zip(case["inputs"]["group"], case["inputs"]["acc"], case["inputs"]["shaped_reward"], strict=True))
    for number, keep in enumerate(case["expected"]["keep_group"]):
        group = scored(*({"math": (float(a), "correct" if a else "wrong")} for g, a, _ in rows if g == number))
        for rollout, (_, _, shaped) in zip(group.rollouts, (row for row in rows if row[0] == number), strict=True):
            rollout.rewards["soft_overlong"], rollout.statuses["soft_overlong"] = shaped, "scored"
            rollout.reward = shaped
        assert informative(group) is keep


@pytest.mark.parametrize(
    ("group", "teaches"),
    [
        (scored(RIGHT, WRONG), True),
        (scored(RIGHT, RIGHT), False),
        (scored(WRONG, {"math": (0.0, "no_answer")}), False),
        (scored(RIGHT, {"math": (0.0, "format_error")}, WRONG), True),
        (scored(RIGHT, {"math": (None, "timeout")}), False),
        (scored(RIGHT, {"math": (None, "gold_unscorable")}), False),
        (scored({"code": (0.5, "wrong")}, {"code": (0.2, "wrong")}), False),  # a verdict counts, not its shades
        (scored({"cosine": (0.9, "correct")}, {"cosine": (0.6, "correct")}), False),
        (scored({"mine": (0.1, "scored")}, {"mine": (0.2, "scored")}), True),
        (scored({"mine": (0.1, "scored")}, {"mine": (0.1 + 1e-9, "scored")}), False),
        (scored({"mine": (0.1, "scored")}, {"mine": (None, "none")}), False),
        (scored({"mine": (None, "none")}, {"mine": (None, "none")}), False),
        (scored(*({"mine": (x, "scored"), "repetition": (-x, "scored")} for x in (1.0, 2.0))), True),
        (scored(*({"mine": (1.0, "scored"), "soft_overlong": (-x, "scored")} for x in (0.0, 1.0))), False),
        (scored(*(RIGHT | {"format": (x, s)} for x, s in ((1.0, "correct"), (0.0, "format_error")))), False),
        (scored({"format": (1.0, "correct")}, {"format": (0.0, "format_error")}), True),  # shaping is all the task here
        (scored(), False),
    ],
)  # fmt: skip
def test_a_group_teaches_when_its_completions_differ_in_what_the_task_asks_for(group, teaches):
    assert informative(group) is teaches


def test_scores_are_added_with_the_weights_of_the_run():
    group = scored(*({"a": (x, "scored"), "b": (-x, "scored")} for x in (1.0, 2.0)))
    assert not informative(group, {"a": 1.0, "b": 1.0})
    assert informative(group, {"a": 1.0, "b": 0.5})
    assert not informative(group, {"a": 0.0})


def test_a_completion_is_right_when_all_verdicts_say_so():
    def correct(**scores: tuple[float | None, str]) -> bool | None:
        return scored(scores).rollouts[0].verdict(scores)

    assert correct(math=(1.0, "correct"), format=(1.0, "correct"), mine=(0.3, "scored")) is True
    assert correct(math=(1.0, "correct"), format=(0.0, "format_error")) is False
    assert correct(code=(0.0, "timeout")) is False
    assert [correct(math=(None, status)) for status in ("timeout", "infra_error", "gold_unscorable")] == [None] * 3
    assert correct(code=(0.0, "gold_unscorable")) is None
    assert correct(mine=(0.3, "scored")) is correct() is None


def test_a_group_for_which_a_reward_failed_is_not_judged():
    assert unjudged(scored(RIGHT, {"math": (None, "timeout")}))
    assert unjudged(scored({"mine": (None, "infra_error")}))
    assert not unjudged(scored(RIGHT, {"mine": (None, "none")}))


def format(completions):
    """A reward of the user's own, with the name of a built-in that shapes."""
    return [1.0] * len(completions)


def test_a_function_of_the_users_is_the_task_whatever_it_is_called():
    with RewardRunner([resolve(format), resolve("format"), resolve("math")], timeout=5.0) as runner:
        assert runner.task == {"format": 1.0, "math": 1.0}


def test_rewards_that_come_after_the_batch_are_refused():
    with pytest.raises(UsageError, match="reward_batch = step"):
        GRPOConfig(dynamic_sampling=True, reward_batch="step")


# -- what becomes of the others ----------------------------------------------------------------------------------------

PROMPTS, BATCH, GROUP, EPOCHS = 12, 3, 2, 2
STEPS = EPOCHS * PROMPTS // BATCH

runs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "alike": st.sampled_from([0.0, 0.3, 0.8, 1.0]),
        "max_refills": st.integers(0, 3),
        "max_staleness": st.integers(0, 3),
        "stale_policy": st.sampled_from(["wait", "drop_rollout", "drop_group"]),
        "training": st.sampled_from([0, 40, 300]),
        "scoring": st.sampled_from([0, 20]),
        "lost": st.sampled_from([0.0, 0.1]),
        "queue": st.sampled_from([None, BATCH, BATCH + 2]),
    }
)


def options(run: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompts_per_step": BATCH, "num_generations": GROUP, "max_completion_length": 400, "max_prompt_length": 8,
        "num_train_epochs": float(EPOCHS), "seed": run["seed"], "dynamic_sampling": True, "max_refills": run["max_refills"],
        "max_staleness": run["max_staleness"], "stale_policy": run["stale_policy"], "stale_wait": 30.0,
        "rollout_queue_size": run["queue"],
    }  # fmt: skip


def alike(run: dict[str, Any], group_id: int) -> bool:
    return rng(run["seed"], group_id, "alike").random() < run["alike"]


def parts(run: dict[str, Any]) -> tuple[TimedSampler, TimedRewards]:
    lost = lambda request, n: rng(run["seed"], n, "lost").random() < run["lost"]  # noqa: E731
    return TimedSampler(lengths(run["seed"]), lost), TimedRewards(
        lambda group: rng(run["seed"], group.group_id, "reward").random() * run["scoring"],
        lambda group: alike(run, group.group_id),
    )


def simulate(run: dict[str, Any], reported: list[dict[str, Any]] | None = None):
    async def main():
        async with asyncio.timeout(10**6):  # a wait for ever fails instead
            made = worker(*parts(run), number=PROMPTS, **options(run))
            seconds = lambda step: rng(run["seed"], step).random() * run["training"]  # noqa: E731
            return made, await train(made, STEPS, seconds, reported=reported)

    return clock.run(main())


def replaced(groups: list[Group]) -> list[Group]:
    return [g for g in groups if g.rollouts and {r.dropped for r in g.rollouts} == {"uninformative"}]


def expected(run: dict[str, Any]) -> list[tuple[list[int], set[int]]]:
    """What each step trains on and what it leaves out, by the rule alone: in the order of the data, the first
    max_refills batches' worth of groups that are alike are passed over."""
    steps, drawn = [], 0
    for _ in range(STEPS):
        kept: list[int] = []
        passed: set[int] = set()
        while len(kept) < BATCH:
            if alike(run, drawn) and len(passed) < run["max_refills"] * BATCH:
                passed.add(drawn)
            else:
                kept.append(drawn)
            drawn += 1
        steps.append((kept, passed))
    return steps


@settings(max_examples=150, deadline=None)
@given(runs)
def test_without_staleness_the_batches_depend_on_the_data_alone(run):
    run = {**run, "max_staleness": 0, "lost": 0.0}
    made, batches = simulate(run)
    steps = expected(run)
    assert [[g.group_id for g in trained(groups)] for groups in batches] == [kept for kept, _ in steps]
    assert [{g.group_id for g in replaced(groups)} for groups in batches] == [passed for _, passed in steps]
    names = dict(data_order(prompts(PROMPTS), run["seed"], EPOCHS * (2 + run["max_refills"])))
    assert all(group.prompt_id == names[group.group_id] for groups in batches for group in groups)
    assert made.production.left_out == sum(len(passed) for _, passed in steps)


@settings(max_examples=60, deadline=None)
@given(runs)
def test_the_worker_inside_the_trainer_makes_the_same_batches(run):
    run = {**run, "max_staleness": 0, "lost": 0.0}

    async def main():
        made = worker(*parts(run), number=PROMPTS, **options(run))
        made.sampler.embedded = True
        batches = []
        for version in range(STEPS):
            made.pushed(version)
            batches.append((await made.groups(version))[0])
        return made, batches

    made, batches = clock.run(main())
    steps = expected(run)
    assert [[g.group_id for g in trained(groups)] for groups in batches] == [kept for kept, _ in steps]
    assert [{g.group_id for g in replaced(groups)} for groups in batches] == [passed for _, passed in steps]
    assert made.state()["left_out"] == sum(len(passed) for _, passed in steps)


@settings(max_examples=150, deadline=None)
@given(runs)
def test_every_prompt_is_trained_once_or_left_out_and_counted_within_both_bounds(run):
    reported: list[dict[str, Any]] = []
    made, batches = simulate(run, reported)
    assert all(len(trained(groups)) == BATCH for groups in batches)
    seen = Counter(group.group_id for groups in batches for group in trained(groups))
    passed = Counter(group.group_id for groups in batches for group in replaced(groups))
    assert {*seen.values(), *passed.values()} <= {1} and not seen.keys() & passed.keys()
    refills = [metrics["rollout/refills"] for metrics in reported]
    assert max(refills) <= run["max_refills"]
    assert sum(refills) * BATCH == pytest.approx(made.production.left_out) or run["lost"]
    assert all(alike(run, group_id) for group_id in passed)
    assert made.production.dropped["uninformative"] >= sum(
        len(g.rollouts) for groups in batches for g in replaced(groups)
    )
    if not run["lost"]:
        assert made.production.left_out * GROUP >= made.production.dropped["uninformative"]
        assert made.production.stream.position == STEPS * BATCH + made.production.left_out
    for version, groups in enumerate(batches):
        for rollout in (r for group in trained(groups) for r in group.rollouts if r.dropped is None):
            assert 0 <= version - rollout.oldest_version <= run["max_staleness"]


@settings(max_examples=80, deadline=None)
@given(runs, st.integers(1, STEPS - 1), st.booleans())
def test_a_run_that_goes_on_from_a_checkpoint_loses_no_prompt_and_trains_none_twice(run, stop, keeps_finished):
    run = {**run, "lost": 0.0}

    async def first():
        made = worker(*parts(run), number=PROMPTS, **options(run))
        batches = await train(made, STEPS, lambda step: rng(run["seed"], step).random() * 40, stop_after=stop)
        if keeps_finished:
            await asyncio.sleep(20)
        return batches, json.loads(json.dumps(made.state())), made.finished_groups() if keeps_finished else []

    async def second(state, finished):
        made = worker(*parts(run), number=PROMPTS, **options(run))
        made.load_state(state, finished)
        async with asyncio.timeout(10**6):
            return await train(made, STEPS - stop, lambda step: rng(run["seed"], step).random() * 40, first=stop), made

    before, state, finished = clock.run(first())
    after, made = clock.run(second(state, finished))
    batches = before + after
    seen = Counter(group.group_id for groups in batches for group in trained(groups))
    assert set(seen.values()) == {1} and len(seen) == STEPS * BATCH
    assert made.production.stream.position == STEPS * BATCH + made.production.left_out
    if run["stale_policy"] == "wait":
        assert made.production.dropped["uninformative"] == GROUP * made.production.left_out
    if keeps_finished:
        replaced = [g.group_id for groups in batches for g in groups if g.rollouts[0].dropped == "uninformative"]
        assert len(replaced) == len(set(replaced)) == made.production.left_out, (
            "all that was replaced is stored, with its own batch"
        )
    if not run["max_staleness"]:
        assert [sorted(g.group_id for g in trained(groups)) for groups in batches] == [
            kept for kept, _ in expected(run)
        ]


def test_what_comes_after_the_bound_is_trained_on_and_said():
    notes: list[str] = []
    run = {"seed": 1, "alike": 1.0, "max_refills": 2, "max_staleness": 0, "stale_policy": "wait", "queue": None,
           "scoring": 0, "lost": 0.0}  # fmt: skip

    async def main():
        _, rewards = parts(run)
        made = worker(TimedSampler(lambda request, n: 1), rewards, number=PROMPTS, note=notes.append, **options(run))
        made.pushed(0)
        groups, metrics = await made.groups(0)
        made.close()
        return groups, metrics

    groups, metrics = clock.run(main())
    assert [g.group_id for g in trained(groups)] == [6, 7, 8]
    assert (metrics["rollout/refills"], metrics["rollout/uninformative"]) == (2.0, 3.0)
    assert metrics["rollout/dropped_uninformative"] == 2 * BATCH * GROUP
    assert notes == [
        "3 of 3 groups of a step are trained on although their completions are all alike: max_refills = 2 batches' worth "
        "of such groups were replaced before. Are the prompts too easy or too hard?"
    ]


def test_a_reward_that_fails_ends_the_run_with_its_first_batch_and_not_after_all_refills():
    class Failing(TimedRewards):
        async def score(self, group):
            await super().score(group)
            for rollout in group.rollouts:
                rollout.rewards, rollout.statuses, rollout.reward = {"task": None}, {"task": "infra_error"}, None

    async def main():
        made = worker(
            TimedSampler(lengths(1)), rewards := Failing(), number=PROMPTS, dynamic_sampling=True, prompts_per_step=BATCH,
            num_generations=GROUP,
        )  # fmt: skip
        made.pushed(0)
        groups, metrics = await made.groups(0)
        made.close()
        return groups, metrics, rewards

    groups, metrics, rewards = clock.run(main())
    assert {r.dropped for group in groups for r in group.rollouts} == {"unscored"}
    assert len(rewards.scored) == BATCH and metrics["rollout/refills"] == 0.0
