"""The critic's loss, and how much of the returns it explains."""

from __future__ import annotations

import torch
from torch import Tensor

from postrl.algorithms.reduce import masked_mean
from postrl.types import Mean, Means


def value_loss(
    values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, *, clip: float | None
) -> tuple[Tensor, Means]:
    """`l = 0.5 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)` (PPO's value clipping, arXiv:2005.12729).

    Args:
        values_BT: float32, with gradient: the live critic's values.
        old_BT: its values at the start of the phase, no gradient.
        returns_BT: what they should have been, no gradient.
        mask_BT: bool, the trainable tokens.
        clip: c, in units of the reward; None: no clipping.

    Returns:
        [B, T] token losses, 0 where the mask is not set, and the metrics `critic/clip_frac` (tokens without gradient because
        the value left the bounds) and `critic/value` (mean of V).
    """
    v_BT, old_BT, r_BT = (torch.where(mask_BT, x, 0.0) for x in (values_BT, old_BT.detach(), returns_BT.detach()))
    l_BT = (v_BT - r_BT) ** 2
    metrics: Means = {"critic/value": masked_mean(v_BT, mask_BT)}
    if clip is not None:
        held_BT = (torch.clamp(v_BT, old_BT - clip, old_BT + clip) - r_BT) ** 2
        metrics["critic/clip_frac"] = masked_mean((held_BT > l_BT).float(), mask_BT)
        l_BT = torch.maximum(l_BT, held_BT)
    return 0.5 * l_BT, metrics


def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Means:
    """`critic/explained_variance` = 1 - Var(R - V) / Var(R) over the trainable tokens of a whole step; left out where the
    returns do not vary."""
    values, returns = values_BT[mask_BT].double(), returns_BT[mask_BT].double()
    spread = float(returns.var(correction=0)) if len(returns) else 0.0
    if spread <= 1e-12:
        return {}
    return {"critic/explained_variance": Mean(1.0 - float((returns - values).var(correction=0)) / spread, 1.0)}
