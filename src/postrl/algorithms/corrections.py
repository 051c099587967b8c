"""Sampler against learner: weights for tokens that were not drawn from the policy that is trained.

Three policies: `behav` (the sampler, perhaps with older weights and other kernels) -> `prox` (the learner when the phase
starts) -> the live one. `rho = exp(prox - behav)` is corrected here by a weight without gradient; exp(logp - prox) is
what the policy loss clips. Weights do not change the denominators: a rejected token is a sample with weight 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from postrl.algorithms.ratios import LOG_RATIO_LIMIT, log_ratio, ratio
from postrl.algorithms.reduce import Metrics, masked_max, masked_mean

MISSING_BELOW = -9998.0
"""A sampler log-prob of this or less stands for "none given" (JSON has no -inf, servers send -9999); NaN does too."""

Correction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Metrics]]
"""(prox_BT, behav_BT, mask_BT) -> weights_BT without gradient, 0 where the mask is not set; metrics."""


def tis(
    prox_BT: Tensor, behav_BT: Tensor, mask_BT: Tensor, *, low: float = 0.0, high: float = 2.0
) -> tuple[Tensor, Metrics]:
    """Truncated importance sampling per token: `w = clip(rho, low, high)` (Ionides 2008; Yao et al. 2025).

    A token without a sampler log-prob gets weight 1 and is counted.

    Args:
        prox_BT: log-probs of the learner at the start of the phase.
        behav_BT: log-probs the sampler reported; NaN, or a value of at most -9998, where it gave none.
        mask_BT: bool, the trainable tokens.

    Returns:
        the weights, and the metrics of `mismatch` with `mismatch/truncated_frac` (tokens whose rho left the bounds).
    """
    log_rho_BT, metrics = mismatch(prox_BT, behav_BT, mask_BT)
    rho_BT = ratio(log_rho_BT)
    metrics["mismatch/truncated_frac"] = masked_mean(((rho_BT < low) | (rho_BT > high)).float(), mask_BT)
    return torch.where(mask_BT, rho_BT.clamp(low, high), 0.0), metrics


def none(prox_BT: Tensor, behav_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Metrics]:
    """Weight 1: the difference is measured and not corrected."""
    log_rho_BT, metrics = mismatch(prox_BT, behav_BT, mask_BT)
    return torch.where(mask_BT, torch.ones_like(log_rho_BT), 0.0), metrics


def mismatch(prox_BT: Tensor, behav_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Metrics]:
    """`log rho` without gradient, 0 where masked or missing, and how far sampler and learner are apart.

    All of it is measured on the raw ratio, before any truncation, over the tokens that have a sampler log-prob:

        mismatch/kl             mean of -log rho, the k1 estimate of KL(behav || prox)
        mismatch/k3             mean of rho - 1 - log rho, the same, never negative
        mismatch/max_abs        largest |log rho|
        mismatch/ratio, _sq     moments of rho, from which `reduce.finish` makes mismatch/ess
        mismatch/missing_logps  share of the trainable tokens without one
    """
    prox_BT, behav_BT = prox_BT.detach(), behav_BT.detach()
    missing_BT = behav_BT.isnan() | (behav_BT <= MISSING_BELOW)
    present_BT = mask_BT & ~missing_BT
    log_rho_BT = log_ratio(prox_BT, behav_BT, present_BT)
    x_BT = log_rho_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return log_rho_BT, {
        "mismatch/kl": masked_mean(-log_rho_BT, present_BT),
        "mismatch/k3": masked_mean(x_BT.exp() - 1 - x_BT, present_BT),
        "mismatch/max_abs": masked_max(log_rho_BT.abs(), present_BT),
        "mismatch/ratio": masked_mean(x_BT.exp(), present_BT),
        "mismatch/ratio_sq": masked_mean(x_BT.exp() ** 2, present_BT),
        "mismatch/missing_logps": masked_mean(missing_BT.float(), mask_BT),
    }


CORRECTIONS: dict[str, Correction] = {"tis": tis, "none": none}
