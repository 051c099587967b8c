"""How much better a completion was than expected: rewards of a whole batch -> one advantage a completion.

Give these functions the batch of a whole step, which every rank holds, before it is cut: a group that is split has
another mean. So no statistic needs a collective.
Statistics and results are float64: in float32 eight equal rewards of 0.1 leave a residue that the division by their
standard deviation blows up to an advantage near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from postrl.algorithms.lookup import lookup
from postrl.types import Mean, Means

ZERO_SPREAD = 1e-8
"""Rewards of a group that differ by no more than this are equal: their advantage is exactly 0."""
MIN_GROUP_SIZE = 2
"""Scored rollouts that a group must have: one alone has nothing to be compared with, and gets advantage 0."""


@dataclass(frozen=True)
class _Groups:
    """Float64 statistics over the scored rewards of each group; G entries each, `index_B` maps rollouts to them."""

    index_B: Tensor
    size_G: Tensor
    mean_G: Tensor
    var_G: Tensor
    flat_G: Tensor
    """Whether all scored rewards are equal."""

    def baseline_B(self, min_size: int) -> Tensor:
        """bool: the rollouts whose group is large enough to compare them with."""
        return (self.size_G >= min_size)[self.index_B]

    def metrics(self, idle_G: Tensor, min_size: int) -> Means:
        """The metrics of groups, `idle_G` being those in which every advantage is 0."""
        large_G = self.size_G >= min_size
        n_large = float(large_G.sum())
        return {
            "group/zero_std_frac": Mean(float((large_G & idle_G).sum()), n_large),
            "group/too_small": Mean(float(large_G.numel()) - n_large, float(large_G.numel())),
        }


def grpo(
    rewards_B: Tensor,
    group_B: Tensor,
    *,
    scale: str = "group",
    ddof: int = 1,
    eps: float = 1e-6,
    min_group_size: int = MIN_GROUP_SIZE,
) -> tuple[Tensor, Means]:
    """`A_i = (R_i - mean_g) / (std + eps)` over the scored rollouts of group g (GRPO, arXiv:2402.03300).

    Args:
        rewards_B: float64, one reward per rollout; NaN where it could not be scored or was dropped.
        group_B: int64, the group of each rollout, in any order.
        scale: what divides: "group", the standard deviation of the group; "batch", that of all scored rewards
            (arXiv:2508.08221); "none", nothing (Dr. GRPO, arXiv:2503.20783).
        ddof: 1 for the unbiased standard deviation, 0 for the population's.
        eps: added to the standard deviation.
        min_group_size: groups with fewer scored rollouts have no baseline: advantage 0.

    Returns:
        float64 [B] advantages: exactly 0 for unscored rollouts, for groups that are too small and for groups with equal
        rewards; and the metrics `group/zero_std_frac` (of the groups that are large enough) and
        `group/too_small` (of all groups).

    Raises:
        ValueError: unknown `scale`.
    """
    divisor = lookup(SCALES, scale, "scale_rewards")
    rewards, scored = rewards_B.double(), ~rewards_B.isnan()
    groups = _statistics(rewards, scored, group_B, ddof)
    trained = scored & groups.baseline_B(min_group_size) & ~groups.flat_G[groups.index_B]
    scaled = (rewards - groups.mean_G[groups.index_B]) / divisor(groups, rewards[scored], ddof, eps)
    return torch.where(trained, scaled, 0.0), groups.metrics(groups.flat_G, min_group_size)


def rloo(rewards_B: Tensor, group_B: Tensor) -> tuple[Tensor, Means]:
    """`A_i = R_i - mean of the other scored rollouts of its group` (RLOO, arXiv:2402.14740).

    It is n / (n - 1) times the reward less the mean of all n. Arguments and result as for `grpo`.
    """
    rewards, scored = rewards_B.double(), ~rewards_B.isnan()
    groups = _statistics(rewards, scored, group_B)
    size, mean = groups.size_G[groups.index_B], groups.mean_G[groups.index_B]
    others = (size * mean - rewards) / (size - 1).clamp(min=1)
    return _against(rewards, others, scored, groups)


def opo(rewards_B: Tensor, group_B: Tensor, lengths_B: Tensor) -> tuple[Tensor, Means]:
    """`A_i = R_i - b`, b = sum of l R / sum of l over the group: the baseline of least variance (OPO, arXiv:2505.23585).

    Args:
        lengths_B: l, the trainable tokens of each completion. The squared norm of a completion's gradient is taken to
            grow with them.

    The other arguments and the result are as for `grpo`.
    """
    rewards, scored = rewards_B.double(), ~rewards_B.isnan()
    groups = _statistics(rewards, scored, group_B)
    weight = torch.where(scored, lengths_B.double(), 0.0)
    total, length = (
        torch.zeros_like(groups.mean_G).index_add(0, groups.index_B, x)
        for x in (torch.where(scored, weight * rewards, 0.0), weight)
    )
    return _against(rewards, (total / length.clamp(min=1))[groups.index_B], scored, groups)


def batch_mean(rewards_B: Tensor) -> tuple[Tensor, Means]:
    """`A_i = R_i - mean of all scored rewards of the batch` (FlashREINFORCE; REINFORCE with a constant baseline).

    The result is as for `grpo`, the batch being one group.
    """
    return grpo(rewards_B, torch.zeros_like(rewards_B, dtype=torch.int64), scale="none")


def normalize_then_sum(
    parts_BF: Tensor, rewards_B: Tensor, group_B: Tensor, weights: Sequence[float] = ()
) -> tuple[Tensor, Means]:
    """Several rewards, each normalised in its group before they are added (GDPO, arXiv:2601.05242).

    `A = S / (std of S over the batch + 1e-6)`, `S_i = sum over f of w_f grpo(R_f)_i`. So a reward with a small spread
    counts as much as one with a large spread, which would drown it in a sum of raw rewards. S is not centred over the
    batch: it is centred in every group already, and a group in which nothing differs keeps advantages of exactly 0.
    What is in `rewards_B` beyond the weighted sum of the parts (overlong punishment, KL) is centred in its group and
    added to S as it is, beside parts that are normalised: a penalty of 1 weighs about as much as one of them.

    Args:
        parts_BF: float64, the scores of each reward function; NaN where there is none: it contributes nothing.
        rewards_B: float64, the reward as a whole; NaN: the rollout is unscored, whatever its parts are.
        weights: of each reward function; empty: 1 each.

    Returns:
        as for `grpo`; `group/zero_std_frac` counts groups in which no advantage differs from 0.

    Raises:
        ValueError: as many weights as reward functions were expected.
    """
    if weights and len(weights) != parts_BF.shape[-1]:
        raise ValueError(f"{len(weights)} reward_weights for {parts_BF.shape[-1]} rewards")
    weights = weights or [1.0] * parts_BF.shape[-1]
    scored = ~rewards_B.isnan()
    parts = torch.where(scored.unsqueeze(-1), parts_BF.double(), torch.nan)
    shaping = rewards_B.double() - (parts * parts.new_tensor(weights)).nansum(-1)
    total, _ = grpo(shaping, group_B, scale="none")
    for weight, part in zip(weights, parts.unbind(-1), strict=True):
        total = total + weight * grpo(part, group_B)[0]
    groups = _statistics(rewards_B.double(), scored, group_B)
    moved = torch.zeros_like(groups.mean_G).index_add(0, groups.index_B, total.abs())
    return total / _batch_std(groups, total[scored], 1, 1e-6), groups.metrics(moved == 0, MIN_GROUP_SIZE)


def has_baseline(rewards_B: Tensor, group_B: Tensor) -> Tensor:
    """bool [B]: the scored rollouts of groups with at least two of them."""
    scored = ~rewards_B.isnan()
    return scored & _statistics(rewards_B.double(), scored, group_B).baseline_B(MIN_GROUP_SIZE)


def _against(rewards: Tensor, baseline_B: Tensor, scored: Tensor, groups: _Groups) -> tuple[Tensor, Means]:
    """`R - b`, exactly 0 where `grpo` is."""
    trained = scored & groups.baseline_B(MIN_GROUP_SIZE) & ~groups.flat_G[groups.index_B]
    return torch.where(trained, rewards - baseline_B, 0.0), groups.metrics(groups.flat_G, MIN_GROUP_SIZE)


def _statistics(rewards: Tensor, scored: Tensor, group_B: Tensor, ddof: int = 1) -> _Groups:
    """Groups by id, wherever their rollouts stand in the batch."""
    ids, index = torch.unique(group_B, return_inverse=True)

    def per_group(x: Tensor) -> Tensor:
        return rewards.new_zeros(len(ids)).index_add(0, index[scored], x)

    values = rewards[scored]
    size = per_group(torch.ones_like(values))
    mean = per_group(values) / size.clamp(min=1)
    var = per_group((values - mean[index[scored]]) ** 2) / (size - ddof).clamp(min=1)
    bounds = {
        name: rewards.new_zeros(len(ids)).scatter_reduce(0, index[scored], values, name, include_self=False)
        for name in ("amin", "amax")
    }
    return _Groups(index, size, mean, var, bounds["amax"] - bounds["amin"] <= ZERO_SPREAD)


def _group_std(groups: _Groups, values: Tensor, ddof: int, eps: float) -> Tensor:
    return groups.var_G.sqrt()[groups.index_B] + eps


def _batch_std(groups: _Groups, values: Tensor, ddof: int, eps: float) -> Tensor:
    return ((values - values.mean()) ** 2).sum().div(max(values.numel() - ddof, 1)).sqrt() + eps


def _unit(groups: _Groups, values: Tensor, ddof: int, eps: float) -> float:
    return 1.0


SCALES: dict[str, Callable[[_Groups, Tensor, int, float], Tensor | float]] = {
    "group": _group_std,
    "batch": _batch_std,
    "none": _unit,
}
"""(groups, scored rewards, ddof, eps) -> what centred rewards are divided by, [B] or a number."""
