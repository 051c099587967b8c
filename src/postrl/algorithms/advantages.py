"""How much better a completion was than expected: rewards of a whole batch -> advantages.

Give these functions the batch of a whole step (all ranks), before it is cut: a group that is split has another mean.
Statistics are float64: in float32 eight equal rewards of 0.1 leave a residue that the division by their standard
deviation blows up to an advantage near 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from postrl.algorithms.lookup import lookup

ZERO_SPREAD = 1e-8
"""Rewards of a group that differ by no more than this are equal: their advantage is exactly 0."""

Pairs = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class _Groups:
    """Float64 statistics over the scored rewards of each group; G entries each, `index_B` maps rollouts to them."""

    index_B: Tensor
    size_G: Tensor
    mean_G: Tensor
    var_G: Tensor
    flat_G: Tensor
    """Whether all scored rewards are equal."""


def grpo(
    rewards_B: Tensor,
    group_B: Tensor,
    *,
    scale: str = "group",
    ddof: int = 1,
    eps: float = 1e-6,
    min_group_size: int = 2,
) -> tuple[Tensor, Pairs]:
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
        float32 [B] advantages: exactly 0 for unscored rollouts, for groups that are too small and for groups with equal
        rewards; and the (sum, count) pairs `group/zero_std_frac` (of the groups that are large enough) and
        `group/too_small` (of all groups).

    Raises:
        ValueError: unknown `scale`.
    """
    divisor = lookup(SCALES, scale, "scale_rewards")
    rewards, scored = rewards_B.double(), ~rewards_B.isnan()
    groups = _statistics(rewards, scored, group_B, ddof)
    large_G = groups.size_G >= min_group_size
    trained = scored & (large_G & ~groups.flat_G)[groups.index_B]
    scaled = (rewards - groups.mean_G[groups.index_B]) / divisor(groups, rewards[scored], ddof, eps)
    n_large = float(large_G.sum())
    pairs = {
        "group/zero_std_frac": (float((large_G & groups.flat_G).sum()), n_large),
        "group/too_small": (float(large_G.numel()) - n_large, float(large_G.numel())),
    }
    return torch.where(trained, scaled, 0.0).float(), pairs


def _statistics(rewards: Tensor, scored: Tensor, group_B: Tensor, ddof: int) -> _Groups:
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
