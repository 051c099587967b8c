"""Sampler against learner: weights for tokens that were not drawn from the policy that is trained.

Three policies: `behav` (the sampler, perhaps with older weights and other kernels) -> `prox` (the learner when the phase
starts) -> the live one. `rho = exp(prox - behav)` is corrected here by a weight without gradient; exp(logp - prox) is
what the policy loss clips, so no part of the way is counted twice. Weights do not change the denominators: a rejected
token is a sample with weight 0.

A correction is a row of `CORRECTIONS`: a rule below with its bounds. Rules truncate (a ratio outside the bounds becomes
the bound) or reject (it becomes 0), by the ratio of each token or by one number for the whole completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from postrl.algorithms.lookup import lookup
from postrl.algorithms.losses import select_advantages
from postrl.algorithms.ratios import LOG_RATIO_LIMIT, log_ratio, ratio
from postrl.algorithms.reduce import masked_max, masked_mean
from postrl.types import Means

MISSING_BELOW = -9998.0
"""A sampler log-prob of this or less stands for "none given" (JSON has no -inf, servers send -9999); NaN does too."""


def is_missing(behav_BT: Tensor) -> Tensor:
    """bool: where the sampler gave no log-prob."""
    return behav_BT.isnan() | (behav_BT <= MISSING_BELOW)


@dataclass(frozen=True)
class Drift:
    """How far the learner is from the sampler, without gradient. A rule decides on this and nothing else."""

    log_rho_BT: Tensor
    """log(prox / behav); 0, a ratio of 1, where the mask is not set and where the sampler gave no log-prob."""
    log_live_BT: Tensor
    """log(live / behav), the same way. It differs from `log_rho_BT` after the first of several optimizer steps."""
    behav_BT: Tensor
    """log-probs of the sampler, 0 where the mask is not set and where it gave none."""
    advantages_BT: Tensor
    """0 where the mask is not set."""
    mask_BT: Tensor
    """bool: the trainable tokens."""

    @property
    def rho_BT(self) -> Tensor:
        return ratio(self.log_rho_BT)

    @property
    def product_B1(self) -> Tensor:
        """The ratio of a whole completion: the product over its tokens."""
        return ratio(self.log_rho_BT.sum(-1, keepdim=True))

    @property
    def geometric_mean_B1(self) -> Tensor:
        """The same per token."""
        return ratio(self._mean_B1(self.log_rho_BT))

    @property
    def kl_B1(self) -> Tensor:
        """Mean of log(behav / live) over the tokens of a completion, in nats."""
        return self._mean_B1(-self.log_live_BT)

    @property
    def binary_kl_B1(self) -> Tensor:
        """Mean over the tokens of a completion of KL(behav || prox) between "this token" and "another one", in nats.

        Probabilities are clamped to [1e-6, 1 - 1e-6]."""
        p, q = (x.exp().clamp(1e-6, 1 - 1e-6) for x in (self.behav_BT, self.behav_BT + self.log_rho_BT))
        kl_BT = p * (p.log() - q.log()) + (1 - p) * ((1 - p).log() - (1 - q).log())
        return self._mean_B1(torch.where(self.mask_BT, kl_BT, 0.0))

    def _mean_B1(self, x_BT: Tensor) -> Tensor:
        return x_BT.sum(-1, keepdim=True) / self.mask_BT.sum(-1, keepdim=True).clamp(min=1)


Flags = dict[str, Tensor]
"""What happened to which tokens: bool [B, T], or [B, 1] for whole completions, by the name of its metric."""
Rule = Callable[..., tuple[Tensor, Flags]]
"""(drift, **bounds) -> weights, [B, T] or [B, 1] for whole completions; flags."""

# -- the rules -----------------------------------------------------------------------------------------------------------


def tis(d: Drift, *, low: float, high: float) -> tuple[Tensor, Flags]:
    """Truncated importance sampling per token: `w = clip(rho, low, high)` (Ionides 2008; Yao et al. 2025)."""
    return _truncate(d.rho_BT, low, high)


def seed(d: Drift, *, eps: float) -> tuple[Tensor, Flags]:
    """Two-sided truncation around 1: `w = clip(rho, 1 - eps, 1 + eps)`.

    The floor raises the weight of tokens that the learner now finds unlikely: a bias toward what the sampler did.
    """
    return _truncate(d.rho_BT, 1 - eps, 1 + eps)


def tis_seq(d: Drift, *, low: float, high: float) -> tuple[Tensor, Flags]:
    """`w = clip(product of rho, low, high)` for every token of a completion: unbiased but for the truncation.

    A product leaves any fixed bounds as completions grow: 1000 tokens with a mean log rho of 0.002 give e^2.
    """
    return _truncate(d.product_B1, low, high)


def icepop(d: Drift, *, low: float, high: float) -> tuple[Tensor, Flags]:
    """`w = rho` between the bounds, 0 outside (IcePop: Ring-1T, arXiv:2510.18855).

    With `low` 0 it is the weight of decoupled PPO (arXiv:2110.00641; AReaL, arXiv:2505.24298), whose other half, the
    clip of live / prox, is the policy loss.
    """
    return _reject(d.rho_BT, d.rho_BT, low, high)


def mis_seq(d: Drift, *, low: float, high: float) -> tuple[Tensor, Flags]:
    """`w = product of rho` between the bounds, 0 outside, for every token of a completion (Liu et al. 2025).

    Long completions are rejected first: see `tis_seq`.
    """
    return _reject(d.product_B1, d.product_B1, low, high)


def seq_mask_tis(d: Drift, *, low: float, high: float) -> tuple[Tensor, Flags]:
    """`w = rho` in completions whose geometric mean of rho is between the bounds, 0 in the others (Liu et al. 2025)."""
    return _reject(d.rho_BT, d.geometric_mean_B1, low, high)


def opsm(d: Drift, *, delta: float) -> tuple[Tensor, Flags]:
    """Off-policy sequence masking: 0 where A < 0 and the completion's mean of log(behav / live) is above `delta`, else 1.

    Bad completions that the live policy would hardly write any more teach nothing and disturb (DeepSeek-V3.2,
    arXiv:2512.02556). The only rule that looks at the live policy.
    """
    rejected_BT = (d.advantages_BT < 0) & (d.kl_B1 > delta)
    return (~rejected_BT).to(d.log_rho_BT.dtype), {"mismatch/rejected_frac": rejected_BT}


def binary_kl(d: Drift, *, delta: float) -> tuple[Tensor, Flags]:
    """`w = rho` in completions whose mean binary KL from the sampler is at most `delta`, 0 in the others
    (FlashREINFORCE).

    No lower bound on the gate: completions of any age count in full as long as the policy is near where they came from.
    """
    rejected_B1 = d.binary_kl_B1 > delta
    return torch.where(rejected_B1, 0.0, d.rho_BT), {"mismatch/rejected_frac": rejected_B1}


def none(d: Drift) -> tuple[Tensor, Flags]:
    """Weight 1: the difference is measured and not corrected."""
    return torch.ones_like(d.log_rho_BT), {}


def _truncate(raw: Tensor, low: float, high: float) -> tuple[Tensor, Flags]:
    return raw.clamp(low, high), {"mismatch/truncated_frac": (raw < low) | (raw > high)}


def _reject(raw: Tensor, gate: Tensor, low: float, high: float) -> tuple[Tensor, Flags]:
    outside = (gate < low) | (gate > high)
    return torch.where(outside, 0.0, raw), {"mismatch/rejected_frac": outside}


# -- the table -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Correction:
    rule: Rule
    bounds: Mapping[str, float] = field(default_factory=dict)
    """The keyword arguments of the rule; each is the setting of that name with `is_` before it."""


CORRECTIONS: dict[str, Correction] = {
    "tis": Correction(tis, {"low": 0.0, "high": 2.0}),
    "tis_seq": Correction(tis_seq, {"low": 0.0, "high": 5.0}),
    "icepop": Correction(icepop, {"low": 0.5, "high": 5.0}),
    "mis_seq": Correction(mis_seq, {"low": 0.0, "high": 3.0}),
    "seq_mask_tis": Correction(seq_mask_tis, {"low": 0.999, "high": 1.002}),
    "opsm": Correction(opsm, {"delta": 0.1}),
    "binary_kl": Correction(binary_kl, {"delta": 5e-3}),
    "decoupled": Correction(icepop, {"low": 0.0, "high": 5.0}),
    "seed": Correction(seed, {"eps": 0.2}),
    "none": Correction(none),
}
"""Bounds are those of the sources, or of the libraries that run the method. No delta is published for opsm: with 0.1 nats a token,
what is rejected became 7 times less likely in 20 tokens."""

_ALLOWED: dict[str, tuple[str, Callable[[float], bool]]] = {
    "low": ("from 0 to 1", lambda x: 0 <= x <= 1),
    "high": ("1 or more", lambda x: x >= 1),
    "eps": ("above 0, at most 1", lambda x: 0 < x <= 1),
    "delta": ("above 0", lambda x: x > 0),
}
"""Bounds hold 1 between them: where sampler and learner agree there is nothing to correct."""


def correction(name: str, bounds: Mapping[str, float]) -> Correction:
    """The row called `name` with these bounds in place of its own.

    Raises:
        ValueError: an unknown name, a bound that the rule does not have, or one that makes no sense.
    """
    row = lookup(CORRECTIONS, name, "is_correction")
    for bound, value in bounds.items():
        if bound not in row.bounds:
            takes = " and ".join(f"is_{own}" for own in row.bounds) or "no bounds"
            raise ValueError(f"is_{bound} is {value}, and is_correction {name} takes {takes}")
        words, inside = _ALLOWED[bound]
        if not inside(value):
            raise ValueError(f"is_{bound} is {value}, expected {words}")
    return Correction(row.rule, {**row.bounds, **bounds})


# -- weights and measurement ---------------------------------------------------------------------------------------------


def importance_weights(
    name: str,
    logp_BT: Tensor,
    prox_BT: Tensor,
    behav_BT: Tensor,
    advantages: Tensor,
    mask_BT: Tensor,
    *,
    bounds: Mapping[str, float] | None = None,
) -> tuple[Tensor, Means]:
    """The weight of each token's policy loss under the correction called `name`.

    Completions must be whole: give all trainable tokens of a row.

    Args:
        name: a key of `CORRECTIONS`.
        logp_BT: log-probs under the live policy.
        prox_BT: log-probs of the learner at the start of the phase; the live ones with one optimizer step per batch.
        behav_BT: log-probs the sampler reported; NaN, or a value of at most -9998, where it gave none: ratio 1.
        advantages: [B] or [B, T].
        mask_BT: bool, the trainable tokens.
        bounds: in place of the correction's own.

    Returns:
        [B, T] weights without gradient, 0 where the mask is not set; and the metrics of `mismatch`, with
        `mismatch/truncated_frac` or `mismatch/rejected_frac` where the correction does that: the share of the trainable
        tokens whose raw ratio, or that of their completion, left the bounds.

    Raises:
        ValueError: see `correction`.
    """
    row = correction(name, bounds or {})
    drift, metrics = mismatch(logp_BT, prox_BT, behav_BT, advantages, mask_BT)
    weights, flags = row.rule(drift, **row.bounds)
    for metric, flag in flags.items():
        metrics[metric] = masked_mean(flag.to(weights.dtype), mask_BT)
    return torch.where(mask_BT, weights, 0.0), metrics


def mismatch(
    logp_BT: Tensor, prox_BT: Tensor, behav_BT: Tensor, advantages: Tensor, mask_BT: Tensor
) -> tuple[Drift, Means]:
    """How far sampler and learner are apart; arguments as for `importance_weights`.

    All of it is measured on the raw ratio, before any truncation, over the tokens that have a sampler log-prob:

        mismatch/kl             mean of -log rho, the k1 estimate of KL(behav || prox)
        mismatch/k3             mean of rho - 1 - log rho, the same, never negative
        mismatch/max_abs        largest |log rho|
        mismatch/ratio, _sq     moments of rho, from which `reduce.finish` makes mismatch/ess
        mismatch/missing_logps  share of the trainable tokens without one
    """
    logp_BT, prox_BT, behav_BT = logp_BT.detach(), prox_BT.detach(), behav_BT.detach()
    missing_BT = is_missing(behav_BT)
    present_BT = mask_BT & ~missing_BT
    log_rho_BT, log_live_BT = (log_ratio(x_BT, behav_BT, present_BT) for x_BT in (prox_BT, logp_BT))
    x_BT = log_rho_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    known_BT = torch.where(present_BT, behav_BT, 0.0)
    return Drift(log_rho_BT, log_live_BT, known_BT, select_advantages(advantages, mask_BT), mask_BT), {
        "mismatch/kl": masked_mean(-log_rho_BT, present_BT),
        "mismatch/k3": masked_mean(x_BT.exp() - 1 - x_BT, present_BT),
        "mismatch/max_abs": masked_max(log_rho_BT.abs(), present_BT),
        "mismatch/ratio": masked_mean(x_BT.exp(), present_BT),
        "mismatch/ratio_sq": masked_mean(x_BT.exp() ** 2, present_BT),
        "mismatch/missing_logps": masked_mean(missing_BT.float(), mask_BT),
    }
