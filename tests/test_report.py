"""The arithmetic of reports. What a run writes is looked at in test_replay.py and e2e/."""

from __future__ import annotations

import math

import pytest
import torch

from learning.batches import ALONE
from postrl.report import reduce_over_ranks, sample_line
from postrl.run.metrics import rollout_summary
from postrl.types import Rollout, VersionSpan


def rollout(n: int, reward: float | None, *, staleness: int = 0, reason: str = "stop") -> Rollout:
    return Rollout(
        "a:1", 0, [1, 2], [3] * n, [-1.0] * n, [VersionSpan(0, 0, n)], reason, reward=reward, staleness=staleness
    )


def test_rewards_lengths_and_staleness_of_a_step():
    rollouts = [
        rollout(2, 1.0),
        rollout(4, 0.0, reason="length"),
        rollout(6, 0.5, staleness=2),
        rollout(8, None, staleness=1),  # could not be scored: no part of the rewards
    ]
    assert rollout_summary(rollouts, updates=4) == {
        "reward/mean": 0.5,
        "reward/std": pytest.approx(math.sqrt(1 / 6)),  # of the population: squares 1/4, 1/4 and 0
        "completion/length_mean": 5.0,
        "completion/length_max": 8.0,
        "completion/truncated_frac": 0.25,
        "rollout/staleness_mean": 0.75,
        "rollout/optimizer_steps_behind": 3.0,
        "rollout/staleness_max": 2.0,
        "tokens/prompt": 8.0,
        "tokens/completion": 20.0,
    }


def test_a_step_in_which_nothing_was_scored_has_no_mean_reward():
    summary = rollout_summary([rollout(2, None)])
    assert math.isnan(summary["reward/mean"])
    assert math.isnan(summary["reward/std"])
    assert summary["completion/length_mean"] == 2.0


def test_a_step_without_rollouts_has_no_summary():
    assert rollout_summary([]) == {}


def test_pairs_of_one_rank_stay_as_they_are():
    pairs = {"policy/loss": (torch.tensor(3.0), torch.tensor(4)), "mismatch/max_abs": (torch.tensor(0.5), 1.0)}
    assert reduce_over_ranks(pairs, ALONE) == {"policy/loss": (3.0, 4.0), "mismatch/max_abs": (0.5, 1.0)}


class TwoRanks:
    """This rank and one that holds twice as much of everything."""

    def sum(self, values: list[float]) -> list[float]:
        return [3 * value for value in values]

    def max(self, values: list[float]) -> list[float]:
        return [2 * value for value in values]


def test_maxima_are_reduced_as_maxima_and_the_rest_is_summed():
    pairs = {"policy/loss": (3.0, 4.0), "mismatch/max_abs": (0.5, 1.0), "ratio_max": (7.0, 1.0)}
    reduced = reduce_over_ranks(pairs, TwoRanks())
    assert reduced["policy/loss"] == (9.0, 12.0)
    assert (reduced["mismatch/max_abs"][0], reduced["ratio_max"][0]) == (1.0, 14.0)


def test_a_sample_is_one_line_with_the_end_of_its_prompt_and_both_ends_of_a_long_completion():
    class Words:
        def decode(self, ids: list[int]) -> str:
            return " ".join(f"w{i}" for i in ids) + "\n"

    shown = rollout(3, 0.5)
    shown.prompt_ids, shown.completion_ids = [*range(100)], [*range(200)]
    line = sample_line(shown, Words())
    asked, said = line.split(" -> ")
    assert asked.endswith("w98 w99") and asked.startswith("   ... ") and len(asked) < 90
    assert said.startswith("w0 w1 w2") and " ... " in said and said.endswith("w199 (reward 0.5)")
    shown.prompt_ids, shown.completion_ids, shown.reward = [1], [2], None
    assert sample_line(shown, Words()) == "  w1 -> w2 (reward none)"


def test_a_sample_of_the_models_words_moves_no_cursor():
    class Hostile:
        def decode(self, ids: list[int]) -> str:
            return "\x1b]0;title\x07\x1b[2J" + "x" * len(ids)

    shown = rollout(3, 0.5)
    shown.prompt_ids, shown.completion_ids = [1], [2, 3]
    assert sample_line(shown, Hostile()).isprintable()
