"""Policy losses: log-probs and advantages -> the loss of each token, to minimise."""

from __future__ import annotations

import torch
from torch import Tensor

from postrl.algorithms.aggregate import Denoms
from postrl.algorithms.ratios import log_ratio, ratio
from postrl.algorithms.reduce import Metrics, masked_mean


def ppo_clip(
    logp_BT: Tensor,
    prox_BT: Tensor | None,
    advantages: Tensor,
    mask_BT: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Metrics]:
    """`l = max(-A r, -A clip(r, 1 - epsilon_low, 1 + epsilon_high))`, r = exp(logp - prox).

    PPO's clipped surrogate (arXiv:1707.06347, equation 7), with separate bounds (DAPO, arXiv:2503.14476).
    `dual_clip` c adds `l = min(l, -A c)` where A < 0 (arXiv:1912.09729): it bounds the one side that the
    surrogate leaves open, a token that became much likelier although it was bad.

    Args:
        logp_BT: float32, with gradient: log-probs of the sampled tokens under the live policy.
        prox_BT: the same at the start of the phase, no gradient; None: the live ones, so that r = 1.
        advantages: [B], broadcast over the tokens, or [B, T]; no gradient.
        mask_BT: bool, the trainable tokens.
        dual_clip: c, above 1 + epsilon_high; None: off.

    Returns:
        [B, T] token losses, 0 where the mask is not set, and the pairs `policy/clip_frac` (tokens without gradient
        because r left the bounds), `policy/clip_low` and `policy/clip_high` (the same by side), with a dual clip
        `policy/clip_dual` (the same at its ceiling), `policy/kl_prox` (mean of prox - logp, the k1 estimate of
        KL(prox || live)).
    """
    prox_BT = (logp_BT if prox_BT is None else prox_BT).detach()
    a_BT = select_advantages(advantages, mask_BT)
    d_BT = log_ratio(logp_BT, prox_BT, mask_BT)
    r_BT = ratio(d_BT)
    l_BT = torch.maximum(-a_BT * r_BT, -a_BT * r_BT.clamp(1 - epsilon_low, 1 + epsilon_high))
    clipped = {
        "policy/clip_low": (r_BT < 1 - epsilon_low) & (a_BT < 0),
        "policy/clip_high": (r_BT > 1 + epsilon_high) & (a_BT > 0),
    }
    if dual_clip is not None:
        clipped["policy/clip_dual"] = above_BT = (r_BT > dual_clip) & (a_BT < 0)
        l_BT = torch.where(above_BT, -a_BT * dual_clip, l_BT)
    clipped["policy/clip_frac"] = torch.stack(list(clipped.values())).any(0)
    metrics: Metrics = {name: masked_mean(which_BT.float(), mask_BT) for name, which_BT in clipped.items()}
    return l_BT, {**metrics, "policy/kl_prox": masked_mean(-d_BT, mask_BT)}


def negative_log_likelihood(logp_BT: Tensor, right_BT: Tensor, denoms: Denoms) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """`-sum of logp / number` over the tokens of completions that are right (VAPO, arXiv:2504.05118, equation 12).

    Args:
        right_BT: bool, the trainable tokens of those completions.
        denoms: of the optimizer step; `n_correct_tokens` is the number, over all micro-batches and ranks.

    Returns:
        the loss of this micro-batch, ready for `backward`, and its (sum, count) pair. A connected 0 where none is right.
    """
    total = -torch.where(right_BT, logp_BT, 0.0).sum()
    scale = denoms.dp_size / denoms.n_correct_tokens if denoms.n_correct_tokens else 0.0
    return total * scale, (total.detach(), right_BT.sum())


def select_advantages(advantages: Tensor, mask_BT: Tensor) -> Tensor:
    """Advantages [B] or [B, T] as [B, T], without gradient, 0 where the mask is not set."""
    a = advantages.detach()
    return torch.where(mask_BT, a.unsqueeze(-1) if a.dim() == 1 else a, 0.0)
