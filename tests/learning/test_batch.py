"""Groups as tensors: what a row holds beside its tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from postrl.learning.batch import make_batch
from postrl.types import GREEDY

from .batches import make_groups


def test_a_row_knows_the_reward_of_its_prompts_greedy_completion_and_none_is_a_row():
    first, second, third = make_groups(3, 2)
    first.greedy = replace(first.rollouts[0], sample_index=GREEDY, reward=0.75, dropped="greedy")
    second.greedy = replace(second.rollouts[0], sample_index=GREEDY, reward=None, dropped="greedy")
    first.rollouts[0].dropped = "stale"
    batch = make_batch([first, second, third], 0, torch.device("cpu"))
    assert batch.greedy_B.dtype == torch.float64
    assert batch.greedy_B.tolist() == pytest.approx([0.75] + [math.nan] * 4, nan_ok=True)
    assert batch.rows([2, 0]).greedy_B.tolist() == pytest.approx([math.nan, 0.75], nan_ok=True)
    assert make_batch([third], 0, torch.device("cpu")).greedy_B is None, "none was sampled"


def test_a_row_knows_whether_a_verifier_found_it_right():
    (group,) = make_groups(1, 4)
    for rollout, correct in zip(group.rollouts, (True, False, None, False), strict=True):
        rollout.correct = correct
    batch = make_batch([group], 0, torch.device("cpu"))
    assert batch.correct_B.tolist() == [True, False, False, False]


def test_a_row_has_the_score_of_each_reward_function_in_their_order():
    (group,) = make_groups(1, 3)
    for rollout, rewards in zip(group.rollouts, ({"b": 1.0}, {"a": 0.5, "b": None}, {}), strict=True):
        rollout.rewards = rewards
    batch = make_batch([group], 0, torch.device("cpu"), ["b", "a"])
    expected = [1.0, math.nan, math.nan, 0.5, math.nan, math.nan]
    assert batch.parts_BF.flatten().tolist() == pytest.approx(expected, nan_ok=True)
    assert make_batch([group], 0, torch.device("cpu"), ["b", "a", "absent"]).parts_BF.shape == (3, 3)
    by_name = make_batch([group], 0, torch.device("cpu")).parts_BF[:2]
    assert by_name.flatten().tolist() == pytest.approx([math.nan, 1.0, 0.5, math.nan], nan_ok=True)
    assert batch.rows([1]).parts_BF.shape == (1, 2)
