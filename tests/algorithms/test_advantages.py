from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from postrl.algorithms.advantages import batch_mean, grpo, has_baseline, normalize_then_sum, opo, rloo

from .cases import rewards


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1e6, -2.0])
def test_equal_rewards_give_exactly_zero(scale: str, reward: float):
    group = torch.tensor([0] * 8 + [1, 1])
    advantages, metrics = grpo(rewards([reward] * 8 + [0.0, 1.0]), group, scale=scale)
    assert torch.equal(advantages[:8], torch.zeros(8).double())
    assert metrics["group/zero_std_frac"] == (1.0, 2.0)


def test_a_lone_survivor_gets_zero_and_its_group_is_reported():
    advantages, metrics = grpo(rewards([0.7, None, None, 1.0, 0.0]), torch.tensor([5, 5, 5, 9, 9]))
    assert torch.equal(advantages[:3], torch.zeros(3).double())
    assert advantages[3] > 0 > advantages[4]
    assert metrics == {"group/zero_std_frac": (0.0, 1.0), "group/too_small": (1.0, 2.0)}


def test_a_group_below_the_minimum_size_is_left_out():
    values, group = rewards([1.0, 0.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1, 1])
    advantages, metrics = grpo(values, group, min_group_size=3)
    assert torch.equal(advantages[:2], torch.zeros(2).double()) and advantages[2] > 0
    assert metrics["group/too_small"] == (1.0, 2.0)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_batch_nobody_could_score_is_all_zero(scale: str):
    advantages, metrics = grpo(rewards([None, None]), torch.tensor([0, 1]), scale=scale)
    assert torch.equal(advantages, torch.zeros(2).double())
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


# -- other baselines ---------------------------------------------------------------------------------------------------

LENGTHS = torch.tensor([3, 1, 2, 5, 4])
BASELINES = {"rloo": rloo, "opo": lambda values, group: opo(values, group, LENGTHS[: len(values)])}
baselines = pytest.mark.parametrize("estimate", BASELINES.values(), ids=BASELINES)


@baselines
def test_without_two_scored_completions_there_is_no_baseline(estimate):
    """The lone one keeps 0, never its reward, and its group is reported; so does the group of equal rewards."""
    advantages, pairs = estimate(rewards([0.7, None, None, 0.1, 0.1]), torch.tensor([5, 5, 5, 9, 9]))
    assert torch.equal(advantages, torch.zeros(5).double())
    assert pairs == {"group/zero_std_frac": (1.0, 1.0), "group/too_small": (1.0, 2.0)}


@baselines
def test_rewards_that_differ_by_rounding_alone_give_exactly_zero(estimate):
    advantages, pairs = estimate(rewards([0.1, 0.1 + 1e-9, 0.1 + 2e-9]), torch.tensor([0, 0, 0]))
    assert not advantages.any() and pairs["group/zero_std_frac"] == (1.0, 1.0)


def test_the_baseline_of_opo_is_weighted_by_length_and_knows_no_unscored_completion():
    """(3 * 1 + 1 * 0) / 4; the unscored one of length 2 does not count."""
    advantages, _ = opo(rewards([1.0, 0.0, None]), torch.tensor([0, 0, 0]), torch.tensor([3, 1, 2]))
    assert advantages.tolist() == [0.25, -0.75, 0.0]


def test_completions_without_a_token_weigh_nothing_in_opo():
    advantages, _ = opo(rewards([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([0, 0]))
    assert torch.isfinite(advantages).all()


def test_the_mean_of_the_batch_is_taken_over_what_was_scored():
    advantages, pairs = batch_mean(rewards([1.0, None, 0.0, 0.5]))
    assert advantages.tolist() == [0.5, 0.0, -0.5, 0.0]
    assert pairs == {"group/zero_std_frac": (0.0, 1.0), "group/too_small": (0.0, 1.0)}
    assert batch_mean(rewards([0.3, None]))[0].tolist() == [0.0, 0.0]
    assert batch_mean(rewards([]))[0].shape == (0,)


def test_who_has_a_baseline():
    found = has_baseline(rewards([0.7, None, 0.1, 0.1]), torch.tensor([5, 5, 9, 9]))
    assert found.tolist() == [False, False, True, True]


# -- several rewards ---------------------------------------------------------------------------------------------------


def parts(*rows: list[float | None]) -> torch.Tensor:
    return torch.stack([rewards(row) for row in rows])


def test_rewards_normalised_one_by_one_count_the_same_whatever_their_spread():
    """The second reward is 100 times smaller: in a sum it would not be heard."""
    scores = parts([1.0, 0.0], [1.0, 0.01], [0.0, 0.0], [0.0, 0.01])
    advantages, _ = normalize_then_sum(scores, scores.sum(-1), torch.zeros(4, dtype=torch.int64))
    assert advantages[0] == pytest.approx(0, abs=1e-3) and advantages[1] == pytest.approx(
        -float(advantages[2]), abs=1e-3
    )
    assert float(advantages.std()) == pytest.approx(1, rel=1e-5)
    summed, _ = grpo(scores.sum(-1), torch.zeros(4, dtype=torch.int64))
    assert float(summed[0]) == pytest.approx(float(summed[1]), abs=0.02)


def test_weights_of_rewards_weigh_what_was_normalised():
    scores = parts([1.0, 0.0], [1.0, 5.0], [0.0, 0.0], [0.0, 5.0])
    group = torch.zeros(4, dtype=torch.int64)
    only, _ = normalize_then_sum(scores, scores[:, 0], group, (1.0, 0.0))
    assert torch.equal(only[:2], only[:2].mean().expand(2)) and only[0] > 0
    with pytest.raises(ValueError, match="3 reward_weights for 2 rewards"):
        normalize_then_sum(scores, scores.sum(-1), group, (1.0, 1.0, 1.0))


def test_a_missing_part_contributes_nothing_and_an_unscored_row_has_no_part_at_all():
    scores = parts([1.0, None], [0.0, None], [1.0, None], [0.0, 9.0])
    advantages, pairs = normalize_then_sum(scores, rewards([1.0, 0.0, 1.0, None]), torch.zeros(4, dtype=torch.int64))
    assert advantages[3] == 0 and advantages[0] == advantages[2] > 0 > advantages[1]
    assert pairs == {"group/zero_std_frac": (0.0, 1.0), "group/too_small": (0.0, 1.0)}


def test_a_penalty_beyond_the_parts_keeps_its_size():
    """One reward, all equal, and a penalty of 1 for the last completion."""
    scores, group = parts([1.0], [1.0], [1.0], [1.0]), torch.zeros(4, dtype=torch.int64)
    advantages, _ = normalize_then_sum(scores, rewards([1.0, 1.0, 1.0, 0.0]), group)
    assert advantages.tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5], rel=1e-4)


def test_groups_in_which_no_part_differs_stay_at_exactly_zero_and_are_counted():
    scores = parts([0.1, 0.2], [0.1, 0.2], [1.0, 0.3], [0.0, 0.3])
    advantages, pairs = normalize_then_sum(scores, scores.sum(-1), torch.tensor([0, 0, 1, 1]))
    assert advantages[:2].tolist() == [0.0, 0.0] and advantages[2] > 0
    assert pairs["group/zero_std_frac"] == (1.0, 2.0)


def test_a_group_with_equal_sums_teaches_where_its_parts_differ():
    """Two parts prefer what one part rejects: the sums are equal, the normalised sums are not."""
    scores = parts([2.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0])
    advantages, pairs = normalize_then_sum(scores, scores.sum(-1), torch.zeros(3, dtype=torch.int64))
    assert advantages[0] < 0 < advantages[1] and pairs["group/zero_std_frac"] == (0.0, 1.0)


def test_normalised_one_by_one_nobody_could_score_is_all_zero():
    advantages, pairs = normalize_then_sum(
        parts([None, None], [0.5, None]), rewards([None, None]), torch.tensor([0, 0])
    )
    assert advantages.tolist() == [0.0, 0.0] and pairs["group/too_small"] == (1.0, 1.0)
