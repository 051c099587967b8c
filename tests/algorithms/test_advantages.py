from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from postrl.algorithms.advantages import grpo

from .cases import CASES, rewards

GOLDEN = {
    "grpo_advantage_unbiased_std": "group",
    "grpo_advantage_biased_std": "group",
    "grpo_advantage_edge_groups": "group",
    "grpo_batch_std_advantage": "batch",
    "truncated_mask": "group",
}


@pytest.mark.parametrize("case_id", GOLDEN)
def test_golden(case_id: str):
    case = CASES[case_id]
    config = {name: case["config"][name] for name in ("eps", "ddof")}
    advantages, _ = grpo(
        rewards(case["inputs"]["rewards"]), torch.tensor(case["inputs"]["group"]), scale=GOLDEN[case_id], **config
    )
    assert advantages.dtype == torch.float32
    expected = torch.tensor(case["expected"]["advantages"], dtype=torch.float64)
    torch.testing.assert_close(advantages.double(), expected, rtol=1e-7, atol=1e-9)


def test_no_scaling_only_subtracts_the_mean_of_the_group():
    case = CASES["dr_grpo_advantage"]
    advantages, _ = grpo(rewards(case["inputs"]["rewards"]), torch.tensor(case["inputs"]["group"]), scale="none")
    torch.testing.assert_close(advantages, torch.tensor(case["expected"]["advantages"]))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1e6, -2.0])
def test_equal_rewards_give_exactly_zero(scale: str, reward: float):
    group = torch.tensor([0] * 8 + [1, 1])
    advantages, metrics = grpo(rewards([reward] * 8 + [0.0, 1.0]), group, scale=scale)
    assert torch.equal(advantages[:8], torch.zeros(8))
    assert metrics["group/zero_std_frac"] == (1.0, 2.0)


def test_a_lone_survivor_gets_zero_and_its_group_is_reported():
    advantages, metrics = grpo(rewards([0.7, None, None, 1.0, 0.0]), torch.tensor([5, 5, 5, 9, 9]))
    assert torch.equal(advantages[:3], torch.zeros(3))
    assert advantages[3] > 0 > advantages[4]
    assert metrics == {"group/zero_std_frac": (0.0, 1.0), "group/too_small": (1.0, 2.0)}


def test_a_group_below_the_minimum_size_is_left_out():
    values, group = rewards([1.0, 0.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1, 1])
    advantages, metrics = grpo(values, group, min_group_size=3)
    assert torch.equal(advantages[:2], torch.zeros(2)) and advantages[2] > 0
    assert metrics["group/too_small"] == (1.0, 2.0)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_batch_nobody_could_score_is_all_zero(scale: str):
    advantages, metrics = grpo(rewards([None, None]), torch.tensor([0, 1]), scale=scale)
    assert torch.equal(advantages, torch.zeros(2))
    assert metrics == {"group/zero_std_frac": (0.0, 0.0), "group/too_small": (2.0, 2.0)}


def test_an_empty_batch_has_no_advantages():
    advantages, metrics = grpo(rewards([]), torch.tensor([], dtype=torch.int64))
    assert advantages.shape == (0,) and metrics["group/too_small"] == (0.0, 0.0)


def test_an_unknown_scale_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"scale_rewards is 'std', expected one of group, batch, none"):
        grpo(rewards([0.0]), torch.tensor([0]), scale="std")


scored_batches = st.lists(
    st.tuples(st.sampled_from([0, 3, 8]), st.sampled_from([None, 0.0, 0.1, 0.5, 1.0])), min_size=1, max_size=12
)


@given(batch=scored_batches, scale=st.sampled_from(["group", "batch", "none"]), data=st.data())
@settings(deadline=None, max_examples=100)
def test_the_order_of_the_rows_does_not_matter(batch, scale, data):
    order = data.draw(st.permutations(range(len(batch))))
    group, values = torch.tensor([g for g, _ in batch]), rewards([r for _, r in batch])
    advantages, metrics = grpo(values, group, scale=scale)
    shuffled, shuffled_metrics = grpo(values[list(order)], group[list(order)], scale=scale)
    torch.testing.assert_close(shuffled, advantages[list(order)], rtol=1e-6, atol=1e-9)
    assert shuffled_metrics == metrics


@given(batch=scored_batches)
@settings(deadline=None, max_examples=100)
def test_group_advantages_agree_with_the_formula_in_plain_python(batch):
    advantages, _ = grpo(rewards([r for _, r in batch]), torch.tensor([g for g, _ in batch]))
    for advantage, (group, reward) in zip(advantages.tolist(), batch, strict=True):
        peers = [r for g, r in batch if g == group and r is not None]
        if reward is None or len(peers) < 2 or max(peers) - min(peers) <= 1e-8:
            assert advantage == 0
        else:
            mean = sum(peers) / len(peers)
            std = math.sqrt(sum((r - mean) ** 2 for r in peers) / (len(peers) - 1))
            assert advantage == pytest.approx((reward - mean) / (std + 1e-6), rel=1e-6, abs=1e-9)
