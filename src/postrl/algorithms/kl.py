"""Distance to the reference policy, estimated on the sampled tokens (Schulman, joschu.net/blog/kl-approx.html).

The value of an estimator and the gradient it gives as a loss are two things. For tokens sampled from the live policy:

    name          value                                  expected gradient as a loss
    k1            logp - ref                             0: it only adds noise, so it is refused as a loss
    k2            (logp - ref)^2 / 2                     that of KL(policy || reference)
    k3_biased     exp(ref - logp) - (ref - logp) - 1     that of KL(reference || policy), the other direction
    k3_unbiased   r * k3, r = exp(logp - prox)           that of KL(policy || reference), also for tokens from prox
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from postrl.algorithms.lookup import lookup
from postrl.algorithms.ratios import LOG_RATIO_LIMIT, log_ratio, ratio

Estimator = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(logp_BT with gradient, ref_BT, mask_BT, prox_BT or None for the live ones) -> [B, T], 0 where the mask is not set."""


def k1(logp_BT: Tensor, ref_BT: Tensor, mask_BT: Tensor, prox_BT: Tensor | None = None) -> Tensor:
    """`logp - ref`: unbiased, may be negative. For rewards and metrics."""
    return log_ratio(logp_BT, ref_BT.detach(), mask_BT)


def k2(logp_BT: Tensor, ref_BT: Tensor, mask_BT: Tensor, prox_BT: Tensor | None = None) -> Tensor:
    """`(logp - ref)^2 / 2`: biased as a value; its gradient is right on tokens of the live policy."""
    return 0.5 * log_ratio(logp_BT, ref_BT.detach(), mask_BT) ** 2


def k3(logp_BT: Tensor, ref_BT: Tensor, mask_BT: Tensor, prox_BT: Tensor | None = None) -> Tensor:
    """`exp(x) - x - 1`, x = ref - logp: unbiased and never negative (GRPO, arXiv:2402.03300, equation 4).

    x is clamped before `exp` and the result is not: a clamp there would free the tokens that drifted furthest.
    """
    x_BT = -log_ratio(logp_BT, ref_BT.detach(), mask_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return x_BT.exp() - x_BT - 1


def k3_unbiased(logp_BT: Tensor, ref_BT: Tensor, mask_BT: Tensor, prox_BT: Tensor | None = None) -> Tensor:
    """`r * k3`, r = exp(logp - prox) with its gradient: d/dlogp = r (logp - ref) (DeepSeek-V3.2, arXiv:2512.02556)."""
    prox_BT = (logp_BT if prox_BT is None else prox_BT).detach()
    return ratio(log_ratio(logp_BT, prox_BT, mask_BT)) * k3(logp_BT, ref_BT, mask_BT)


ESTIMATORS: dict[str, Estimator] = {"k1": k1, "k2": k2, "k3_biased": k3, "k3_unbiased": k3_unbiased}


def loss_estimator(name: str) -> Estimator:
    """The estimator to use inside a loss. Raises ValueError for `k1` and unknown names."""
    if name == "k1":
        raise ValueError(
            "k1 cannot be the KL term of a loss: the gradient of logp - ref is that of logp, which averages to 0 over "
            "sampled tokens, so a larger beta would add noise and hold nothing back; use k3_unbiased (or k2)"
        )
    return lookup(ESTIMATORS, name, "kl_estimator")
