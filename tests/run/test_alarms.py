"""Runs that learn nothing, by their metrics: what is said, when, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from postrl.config import GRPOConfig
from postrl.run.alarms import Alarms, nothing_learned

LEARNS = {
    "reward/mean": 0.4, "reward/std": 0.4, "group/zero_std_frac": 0.5, "group/unscored": 0.0, "policy/lr": 1e-6,
    "policy/grad_norm": 0.3, "policy/nonfinite": 0.0, "completion/truncated_frac": 0.1,
    "reward/math/status/correct": 0.4, "reward/math/status/wrong": 0.5, "reward/math/status/no_answer": 0.1,
}  # fmt: skip
EQUAL = {"group/zero_std_frac": 1.0, "reward/std": 0.0, "policy/grad_norm": 0.0}
HARD = {**EQUAL, "reward/mean": 0.0, "reward/math/status/correct": 0.0, "reward/math/status/wrong": 1.0}
SOLVED = {**EQUAL, "reward/mean": 1.0, "reward/math/status/correct": 1.0, "reward/math/status/wrong": 0.0}
NO_VERDICTS = {f"reward/math/status/{status}": None for status in ("correct", "wrong", "no_answer")}


def rows(n: int, **changes: Any) -> list[dict[str, Any]]:
    """n steps; None takes a metric out."""
    row = {name: value for name, value in {**LEARNS, **changes}.items() if value is not None}
    return [{"step": i + 1, **row} for i in range(n)]


def said(steps: list[dict[str, Any]], **settings: Any) -> list[str]:
    alarms = Alarms(GRPOConfig(**settings))
    return [*alarms.at_start(), *(line for row in steps for line in alarms.see(row))]


def test_a_run_that_learns_is_left_alone():
    assert said(rows(9)) == []
    assert nothing_learned(GRPOConfig(), rows(9)) == ""


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        (HARD, {}, "100% of the groups in the last 3 steps taught nothing: the completions of a prompt got the same reward. None is right"),
        (SOLVED, {}, "All are right: this is solved, so train on harder prompts"),
        ({**EQUAL, **NO_VERDICTS, "reward/mean": 0.0}, {}, "All got 0: the prompts are too hard"),
        ({**EQUAL, **NO_VERDICTS, "reward/mean": 1.0}, {}, "All got 1: this is solved"),
        ({**EQUAL, **NO_VERDICTS, "reward/mean": 0.25}, {}, "All got 0.25: does the reward look at the completion?"),
        ({**EQUAL, "reward/std": 0.5}, {}, "Prompts are too easy or too hard: --dynamic-sampling trains on others"),
        ({"group/zero_std_frac": 0.95}, {}, "95% of the groups in the last 3 steps taught nothing"),
        ({**HARD, "policy/grad_norm": 0.1}, {"beta": 0.1}, "got the same reward; what moves the policy is beta. None is right"),
        ({**HARD, "group/zero_std_frac": None}, {"algorithm": "ppo"}, "all completions in the last 3 steps got the same reward. None"),
        ({"completion/truncated_frac": 1.0}, {"max_completion_length": 99}, "100% of the completions in the last 3 steps were cut at max_completion_length = 99: raise"),
        ({"reward/math/status/no_answer": 0.7}, {}, "the reward math found no answer in 70% of the completions in the last 3 steps"),
        ({"reward/mean": None, "group/unscored": 8.0}, {}, "no completion in the last 3 steps could be scored"),
        ({"policy/grad_norm": 0.0}, {}, "the gradient was exactly 0 in the last 3 steps although rewards differ: no weight"),
        ({"policy/grad_norm": 0.0, "mismatch/rejected_frac": 1.0}, {"is_correction": "icepop"}, "is_correction = icepop rejects every token"),
        ({"policy/grad_norm": 0.0, "group/zero_std_frac": None, "group/too_small": 1.0}, {}, "no prompt has two completions that were scored"),
        ({**EQUAL, **NO_VERDICTS, "reward/mean": 0.1, "reward/std": 1e-17}, {}, "All got 0.1: does the reward"),
        ({"policy/grad_norm": None}, {}, "no completion in the last 3 steps was trained on: none was left by the filters"),
    ],
)  # fmt: skip
def test_what_teaches_nothing_is_said_once_with_what_to_do(changes, settings, expected):
    (line,) = said(rows(8, **changes), **settings)
    assert expected in line


def test_all_that_is_cut_and_masked_is_two_lines_of_one_cause():
    steps = rows(5, **{"completion/truncated_frac": 1.0, "policy/grad_norm": None})
    first, second = said(steps, mask_truncated_completions=True)
    assert "and mask_truncated_completions leaves them out of the loss" in first
    assert second.endswith("was trained on: all were cut at max_completion_length (mask_truncated_completions)")


def test_it_is_said_again_when_the_cause_is_another():
    lines = said([*rows(5, **HARD), *rows(5, **SOLVED), *rows(5, **HARD)])
    assert [line.partition(". ")[2].partition(":")[0] for line in lines if "taught nothing" in line] == [
        "None is right", "Prompts are too easy or too hard", "All are right",
    ]  # fmt: skip


def test_a_few_groups_may_be_alike_by_chance():
    assert said(rows(5, **HARD), prompts_per_step=1) == []
    assert len(said(rows(6, **HARD), prompts_per_step=1)) == 1
    assert said(rows(2, **HARD)) == []


@pytest.mark.parametrize("changes", [{"policy/nonfinite": 1.0, "policy/grad_norm": None}, {"critic/warmup": 1.0, "policy/grad_norm": None}])  # fmt: skip
def test_steps_that_have_a_word_of_their_own_get_no_other(changes):
    assert said(rows(5, **changes)) == []


def test_a_learning_rate_of_0_is_said_at_the_start_and_at_the_end():
    assert said([], learning_rate=0.0) == ["learning_rate is 0, so the policy stays as it is (--learning-rate)"]
    steps = rows(3, **{"policy/lr": 0.0})
    assert nothing_learned(GRPOConfig(learning_rate=0.0), steps) == (
        "nothing was learned: learning_rate is 0, so the policy stays as it is (--learning-rate)"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (HARD, "nothing was learned: 100% of the groups in 2 steps taught nothing"),
        ({**HARD, "policy/grad_norm": 0.1}, "nothing was learned: 100% of the groups"),  # by the KL alone
        ({"reward/mean": None, "group/unscored": 8.0, "policy/grad_norm": None}, "nothing was learned: no completion in 2 steps could be scored"),
        ({"policy/grad_norm": 0.0}, "nothing was learned: the gradient was exactly 0 in 2 steps"),
        ({"policy/grad_norm": 0.0, "reward/std": None, "reward/mean": None}, "nothing was learned: the gradient was exactly 0"),
    ],
)  # fmt: skip
def test_the_end_of_a_run_says_that_nothing_was_learned(changes, expected):
    evaluation = {"step": 0, "eval/rows/reward": 0.1}
    assert nothing_learned(GRPOConfig(), [evaluation, *rows(2, **changes)]).startswith(expected)
    assert nothing_learned(GRPOConfig(), [*rows(2, **changes), *rows(1)]) == ""


def test_a_run_that_did_no_step_has_no_verdict():
    assert nothing_learned(GRPOConfig(), [{"step": 0, "eval/rows/reward": 0.1}]) == ""
