"""A finished run's completions under the same and under other rewards."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from postrl.config import GRPOConfig
from postrl.errors import DataError, UsageError
from postrl.rewards import RewardRunner, resolve
from postrl.rollout.store import read_rollouts, write_rollouts
from postrl.scoring.comparison import TOTAL, Comparison, group_changes
from postrl.scoring.rescore import rescore, rewards_of, rewards_stored_in, run_config, steps_of, write_rescored
from postrl.types import GREEDY, Group, Rollout, VersionSpan, greedy_groups

ANSWERS = (("7", "8", "no idea"), ("3", "3", "3"))
"""The completions of the two groups of a step."""


def group(number, *completions, rewards=(), gold="7", **columns):
    rollouts = [
        Rollout(f"data:{number}", i, [1], [2, 3], [-0.5, -0.5], [VersionSpan(0, 0, 2)], "stop", completion=text)
        for i, text in enumerate(completions)
    ]
    return Group(f"data:{number}", number, "3 + 4?", None, {"answer": gold, **columns}, rollouts, rewards)


@pytest.fixture
def run(tmp_path):
    """A run of two steps scored by `arithmetic`, with a function of the user's beside it."""
    (tmp_path / "rewards.py").write_text("def letters(completions):\n    return [float(len(c)) for c in completions]\n")
    config = GRPOConfig(
        model="m", dataset=["data"], reward=["arithmetic", f"{tmp_path}/rewards.py:letters"], reward_weights=[1.0, 0.1]
    )
    return make_run(tmp_path / "run", config, [[group(1, *ANSWERS[0])], [group(2, *ANSWERS[1])]])


def make_run(folder, config, steps):
    folder.mkdir()
    config.save(folder / "config.yaml")
    with RewardRunner.for_run([resolve(reward) for reward in config.reward], config) as runner:
        for number, groups in enumerate(steps, 1):
            asyncio.run(runner.score_all([*groups, *greedy_groups(groups)]))
            write_rollouts(folder / "rollouts", number, "train", groups)
    return folder


def compare(run, *rewards, steps=None, examples=5):
    specs = [resolve(reward) for reward in rewards] or rewards_of(run)
    config = run_config(run)
    config.reward_weights = [] if rewards else config.reward_weights
    comparison = Comparison(examples)
    with RewardRunner.for_run(specs, config) as runner:
        for _ in rescore(runner, steps_of(run, steps), comparison, own=not rewards):
            pass
    return comparison


def everything(folder):
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


# -- the run's own rewards ---------------------------------------------------------------------------------------------


def test_a_runs_own_rewards_give_the_same_scores_again_and_leave_the_run_alone(run):
    before = everything(run)
    found = compare(run)
    assert found.reproduced
    assert (found.completions, found.groups, found.changed, found.differing) == (6, 2, 0, 0)
    assert found.after == found.before
    assert found.before[TOTAL].mean == pytest.approx((1.1 + 0.1 + 0.7 + 3 * 0.1) / 6)
    assert found.group_changes == {} and found.examples == []
    assert everything(run) == before


def test_a_reward_file_that_has_changed_since_the_run_is_noticed_even_where_scores_are_the_same(run):
    assert compare(run).changed_rewards == {}
    path = run.parent / "rewards.py"
    path.write_text(path.read_text() + "# the same\n")
    found = compare(run)
    assert found.reproduced
    ((name, (then, now)),) = found.changed_rewards.items()
    assert name == "letters" and then != now and then.startswith("sha256 ") and now.startswith("sha256 ")


def test_one_score_that_was_another_is_noticed(run):
    path = run / "rollouts" / "step_000002.parquet"
    groups = read_rollouts(path)
    groups[0].rollouts[1].rewards["letters"] = 1.0000000000000002
    write_rollouts(path.parent, 2, "train", groups)
    found = compare(run)
    assert not found.reproduced
    assert found.differing == 1


def test_a_run_that_took_its_data_sets_reward_is_scored_with_that(tmp_path):
    run = make_run(
        tmp_path / "run",
        GRPOConfig(model="m", dataset=["x.jsonl"], reward=["arithmetic"]),
        [[group(1, "7", "8")]],
    )
    GRPOConfig(model="m", dataset=["arithmetic"]).save(run / "config.yaml")
    assert [spec.name for spec in rewards_of(run)] == ["arithmetic"]
    GRPOConfig(model="m", dataset=["x.jsonl"]).save(run / "config.yaml")  # then its rollouts say it
    assert [spec.name for spec in rewards_of(run)] == ["arithmetic"]
    assert compare(run).reproduced


def test_a_run_whose_algorithm_only_its_script_knows_is_scored_again_all_the_same(run):
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("algorithm: grpo", "algorithm: a_scripts_own"))
    assert compare(run).reproduced


def test_rewards_that_a_script_gave_are_asked_for(run):
    GRPOConfig(model="m", dataset=["x.jsonl"]).save(run / "config.yaml")
    with pytest.raises(UsageError, match="was scored with letters, given by a script") as caught:
        rewards_of(run)
    assert "--reward" in caught.value.hint


def test_greedy_completions_are_scored_again_alone_as_they_were(tmp_path):
    (tmp_path / "best.py").write_text(
        "def best(completions):\n    return [float(len(c) == max(map(len, completions))) for c in completions]\n"
    )
    config = GRPOConfig(model="m", dataset=["data"], reward=["arithmetic", f"{tmp_path}/best.py:best"])
    groups = [group(1, "7", "8"), group(2, "7 apples", "8")]
    for g in groups:
        g.greedy = replace(g.rollouts[0], sample_index=GREEDY, completion="7 it is, or 7", dropped="greedy")
    run = make_run(tmp_path / "run", config, [groups])
    assert [g.greedy.rewards for g in read_rollouts(steps_of(run)[0])] == [{"arithmetic": 1.0, "best": 1.0}] * 2
    assert [[r.rewards["best"] for r in g.rollouts] for g in read_rollouts(steps_of(run)[0])] == [
        [1.0, 1.0],
        [1.0, 0.0],
    ]
    assert compare(run).reproduced
    target = tmp_path / "math.parquet"
    with RewardRunner([resolve("math")], timeout=60.0) as runner:
        assert write_rescored(target, rescore(runner, steps_of(run), Comparison()), runner.names) == 6
    assert [g.greedy.statuses for g in read_rollouts(target)] == [{"math": "no_answer"}] * 2
    stored = read_rollouts(steps_of(run)[0])
    stored[1].greedy.rewards["best"] = 0.0
    write_rollouts(run / "rollouts", 1, "train", stored)
    assert compare(run).differing == 1


# -- other rewards -----------------------------------------------------------------------------------------------------


def test_another_reward_shows_what_changes(run):
    found = compare(run, "math")
    assert set(found.before) == {TOTAL, "arithmetic", "letters"}
    assert set(found.after) == {TOTAL, "math"}
    assert found.before["arithmetic"].statuses == {"correct": 1, "wrong": 4, "no_answer": 1}
    assert found.after["math"].statuses == {"no_answer": 6}
    assert found.after[TOTAL].mean == 0.0
    assert found.changed == 6
    assert found.examples[0].completion == "7"
    assert (found.examples[0].before, found.examples[0].after) == (1.1, 0.0)
    assert found.group_changes == {"sign": 1, "order": 1, "flat": 1}


def test_the_number_of_examples_is_bounded_and_the_largest_changes_stay(run):
    assert [change.completion for change in compare(run, "math", examples=2).examples] == ["7", "no idea"]
    assert compare(run, "math", examples=0).examples == []


def test_a_function_that_fails_is_counted(run, tmp_path):
    (tmp_path / "bad.py").write_text("def bad(completions):\n    raise ValueError('no')\n")
    found = compare(run, f"{tmp_path}/bad.py:bad")
    assert found.failed == 6
    assert found.after["bad"].statuses == {"infra_error": 6}
    assert found.after[TOTAL].mean is None


def test_a_reward_that_the_run_had_scores_the_rows_that_it_scored_there(tmp_path):
    config = GRPOConfig(model="m", dataset=["arithmetic", "gsm8k"], reward=["arithmetic", "math"])
    groups = [group(1, "7", "8", rewards=("arithmetic",)), group(2, "\\boxed{7}", "\\boxed{8}", "7", rewards=("math",))]
    run = make_run(tmp_path / "run", config, [groups])
    assert compare(run).reproduced
    found = compare(run, "math")
    assert (found.completions, found.left_out, found.changed) == (3, 2, 0)


def test_a_reward_of_the_run_that_had_no_row_to_score_yet_is_not_a_new_one(tmp_path):
    config = GRPOConfig(model="m", dataset=["data"], reward=["arithmetic", "math"])
    run = make_run(tmp_path / "run", config, [[group(1, *ANSWERS[0], rewards=("arithmetic",))]])
    assert compare(run).reproduced
    assert not compare(run, "math").reproduced


def test_a_function_that_compares_across_a_step_is_called_with_the_whole_step_again(tmp_path):
    (tmp_path / "rank.py").write_text(
        "def rank(completions):\n    return [sorted(completions).index(c) for c in completions]\n"
    )
    config = GRPOConfig(model="m", dataset=["x"], reward=[f"{tmp_path}/rank.py:rank"], reward_batch="step")
    run = make_run(tmp_path / "run", config, [[group(1, "d", "a"), group(2, "c", "b")]])
    assert [r.reward for g in read_rollouts(steps_of(run)[0]) for r in g.rollouts] == [3.0, 0.0, 2.0, 1.0]
    assert compare(run).reproduced


def test_steps_can_be_chosen(run):
    names = {steps: [path.name[-9] for path in steps_of(run, steps)] for steps in (None, "1", "2-", "-1", "1-2")}
    assert names == {None: ["1", "2"], "1": ["1"], "2-": ["2"], "-1": ["1"], "1-2": ["1", "2"]}
    assert compare(run, steps="2").completions == 3


@pytest.mark.parametrize("steps", ["3", "5-", "2-1"])
def test_steps_that_the_run_does_not_have_are_refused(run, steps):
    with pytest.raises(UsageError, match=f"no rollouts of steps {steps}; it has 1 to 2"):
        steps_of(run, steps)


@pytest.mark.parametrize("steps", ["", "-", "one", "1-2-3", "1.5"])
def test_what_names_no_steps_is_refused(run, steps):
    with pytest.raises(UsageError, match="--steps is"):
        steps_of(run, steps)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="nowhere is not the folder of a run: it does not exist"):
        steps_of(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"it has no config\.yaml"):
        steps_of(tmp_path)
    GRPOConfig(model="m").save(tmp_path / "config.yaml")
    with pytest.raises(UsageError, match="holds no stored rollouts"):
        steps_of(tmp_path)


def test_a_file_that_is_no_rollouts_file_is_named(run):
    (run / "rollouts" / "step_000002.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"cannot read .*step_000002\.parquet"):
        rewards_stored_in(steps_of(run))


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_new_scores_take_the_place_of_the_old_ones_in_a_file_of_their_own(run, tmp_path):
    target = tmp_path / "new" / "math.parquet"
    before = everything(run)
    with RewardRunner([resolve("math")], timeout=60.0) as runner:
        rows = write_rescored(target, rescore(runner, steps_of(run), Comparison()), runner.names)
    table = pq.read_table(target)
    assert rows == table.num_rows == 6
    assert table["step"].to_pylist() == [1, 1, 1, 2, 2, 2]
    assert table["status/math"].to_pylist() == ["no_answer"] * 6
    assert table["reward"].to_pylist() == table["reward/math"].to_pylist() == [0.0] * 6
    assert table["correct"].to_pylist() == [False] * 6
    assert not [name for name in table.column_names if "arithmetic" in name or "letters" in name]
    assert {version.partition(" ")[0] for version in table["reward_version/math"].to_pylist()} == {"math"}
    groups = read_rollouts(target)
    assert [r.completion for g in groups for r in g.rollouts] == [text for texts in ANSWERS for text in texts]
    assert groups[0].rollouts[0].statuses == {"math": "no_answer"}
    assert everything(run) == before
    assert [path.name for path in target.parent.iterdir()] == ["math.parquet"]


# -- what a group teaches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ([0, 1], [0, 1], set()),
        ([0, 1], [0, 0.2], set()),  # smaller, and the same advantages
        ([0, 1], [1, 0], {"sign", "order"}),
        ([0, 0, 1, 1], [0, 0, 1, 0], {"sign", "order"}),
        ([0, 0.4, 1], [0.3, 0.4, 1], set()),
        ([0, 0.1, 1], [0, 0.9, 1], {"sign"}),  # above the mean now, and still between the others
        ([0, 1, 2, 3], [1, 0, 2, 3], {"order"}),
        ([0, 1], [1, 1], {"sign", "order", "flat"}),
        ([1, 1], [1, 0], {"sign", "order", "no longer flat"}),
        ([1, 1], [0, 0], set()),
        ([0.1, 0.1 + 1e-12], [0.3, 0.3], set()),
        ([0, 1], [0, None], {"sign", "order", "flat"}),  # one that is scored has nothing to be compared with
        ([None, None], [0, None], set()),
        ([None, 0, 1], [0.5, 0, 1], set()),  # at the mean: advantage 0, as without a score
    ],
)
def test_what_happens_to_the_advantages_of_a_group(before, after, changes):
    assert group_changes(before, after) == changes


def test_signs_and_orders_are_those_of_the_advantages_that_training_uses():
    import torch

    from postrl.algorithms.advantages import grpo
    from postrl.scoring.comparison import _centred, _sign

    nan = float("nan")
    for rewards in ([0.0, 1.0, 1.0], [0.1] * 8, [0.2, nan, 0.7], [nan, nan], [1.0], [-1.0, 3.0, 0.5, 0.5]):
        advantages, _ = grpo(torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards), dtype=torch.long))
        ours = _centred([None if reward != reward else reward for reward in rewards])
        assert [_sign(a) for a in ours] == [_sign(float(a)) for a in advantages]


def test_groups_are_compared_rollout_by_rollout():
    old = group(1, "7", "8")
    new = replace(old, rollouts=old.rollouts[:1], rewards=("math",))
    with pytest.raises(ValueError):
        Comparison().add(1, old, new)
