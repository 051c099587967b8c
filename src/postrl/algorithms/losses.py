"""Policy losses: log-probs and advantages -> the loss of each token, to minimise."""

from __future__ import annotations

import torch
from torch import Tensor

from postrl.algorithms.aggregate import Denoms
from postrl.algorithms.ratios import log_ratio, ratio
from postrl.algorithms.reduce import masked_mean
from postrl.types import Mean, Means


def ppo_clip(
    logp_BT: Tensor,
    prox_BT: Tensor | None,
    advantages: Tensor,
    mask_BT: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Means]:
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
        [B, T] token losses, 0 where the mask is not set, and the metrics `policy/clip_frac` (tokens without gradient
        because r left the bounds), `policy/clip_low` and `policy/clip_high` (the same by side), with a dual clip
        `policy/clip_dual` (the same at its ceiling), `policy/kl_prox` (mean of prox - logp, the k1 estimate of
        KL(prox || live)).
    """
    d_BT = _log_ratio(logp_BT, prox_BT, mask_BT)
    a_BT, r_BT = select_advantages(advantages, mask_BT), ratio(d_BT)
    l_BT = torch.maximum(-a_BT * r_BT, -a_BT * r_BT.clamp(1 - epsilon_low, 1 + epsilon_high))
    clipped = _clipped(r_BT, a_BT, epsilon_low, epsilon_high)
    if dual_clip is not None:
        clipped["policy/clip_dual"] = above_BT = (r_BT > dual_clip) & (a_BT < 0)
        l_BT = torch.where(above_BT, -a_BT * dual_clip, l_BT)
    return l_BT, _metrics(d_BT, mask_BT, clipped)


def gspo(
    logp_BT: Tensor,
    prox_BT: Tensor | None,
    advantages: Tensor,
    mask_BT: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
) -> tuple[Tensor, Means]:
    """PPO's surrogate on the ratio of a whole completion, `s = exp(mean over its tokens of logp - prox)` (GSPO,
    arXiv:2507.18071).

    Written as GSPO-token (section 4.3): `s_t = sg[s] exp(logp_t - sg[logp_t])`. With one advantage for all tokens and the
    mean over tokens, then sequences, value and gradient are those of GSPO: dl/dlogp_t = -A s / length. With advantages by
    token it is GSPO-token. Arguments and result as for `ppo_clip`; a completion is clipped as a whole. Completions must be
    whole: give all trainable tokens of a row.
    """
    d_BT = _log_ratio(logp_BT, prox_BT, mask_BT)
    mean_B1 = d_BT.detach().sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
    a_BT, s_BT = select_advantages(advantages, mask_BT), ratio(mean_B1 + (d_BT - d_BT.detach()))
    l_BT = torch.maximum(-a_BT * s_BT, -a_BT * s_BT.clamp(1 - epsilon_low, 1 + epsilon_high))
    return l_BT, _metrics(d_BT, mask_BT, _clipped(s_BT, a_BT, epsilon_low, epsilon_high))


def cispo(
    logp_BT: Tensor,
    prox_BT: Tensor | None,
    advantages: Tensor,
    mask_BT: Tensor,
    *,
    cap_low: float,
    cap_high: float,
) -> tuple[Tensor, Means]:
    """`l = -sg[clip(r, cap_low, cap_high)] A logp`, r = exp(logp - prox) (CISPO, MiniMax-M1, arXiv:2506.13585).

    No token loses its gradient, -w A; only its weight is held. The caps are the weight's own bounds, not distances from 1;
    0 and 5 are those of ScaleRL (arXiv:2510.13786). Other arguments and the result are as for `ppo_clip`, but that tokens
    counted in `policy/clip_low`, `policy/clip_high` and `policy/clip_frac` are those whose weight is held at a cap.
    """
    d_BT = _log_ratio(logp_BT, prox_BT, mask_BT)
    r_BT = ratio(d_BT.detach())
    held = {"policy/clip_low": r_BT < cap_low, "policy/clip_high": r_BT > cap_high}
    l_BT = -r_BT.clamp(cap_low, cap_high) * select_advantages(advantages, mask_BT) * torch.where(mask_BT, logp_BT, 0.0)
    return l_BT, _metrics(d_BT, mask_BT, held)


def sapo(
    logp_BT: Tensor,
    prox_BT: Tensor | None,
    advantages: Tensor,
    mask_BT: Tensor,
    *,
    temperature_pos: float,
    temperature_neg: float,
) -> tuple[Tensor, Means]:
    """`l = -A (4 / tau) sigmoid(tau (r - 1))`, r = exp(logp - prox) (SAPO, arXiv:2511.20347).

    A gate that closes by and by in place of the clip: dl/dlogp = -A 4 s (1 - s) r, s the sigmoid, which is -A at r = 1.
    There the loss is -2 A / tau: the value says nothing, only its gradient does. tau is `temperature_pos` where A > 0 and
    else `temperature_neg`: a larger one forgets off-policy tokens sooner. Other arguments as for `ppo_clip`.

    Returns:
        [B, T] token losses, 0 where the mask is not set, and the pair `policy/kl_prox`.
    """
    d_BT = _log_ratio(logp_BT, prox_BT, mask_BT)
    a_BT = select_advantages(advantages, mask_BT)
    tau_BT = torch.full_like(a_BT, temperature_neg).masked_fill(a_BT > 0, temperature_pos)
    return -a_BT * (4 / tau_BT) * torch.sigmoid(tau_BT * (ratio(d_BT) - 1)), _metrics(d_BT, mask_BT, {})


def reinforce(logp_BT: Tensor, advantages: Tensor, mask_BT: Tensor) -> tuple[Tensor, Means]:
    """`l = -A exp(logp - sg[logp])`: the gradient of `-A logp` (Williams 1992), with -A as value.

    Right for one optimizer step per batch: nothing keeps a second one near the policy that drew the batch.

    Returns:
        [B, T] token losses, 0 where the mask is not set; no metrics.
    """
    live_BT = ratio(log_ratio(logp_BT, logp_BT.detach(), mask_BT))
    return -select_advantages(advantages, mask_BT) * live_BT, {}


def negative_log_likelihood(logp_BT: Tensor, right_BT: Tensor, denoms: Denoms) -> tuple[Tensor, Mean]:
    """`-sum of logp / number` over the tokens of completions that are right (VAPO, arXiv:2504.05118, equation 12).

    Args:
        right_BT: bool, the trainable tokens of those completions.
        denoms: of the optimizer step; `n_correct_tokens` is the number, over all micro-batches and ranks.

    Returns:
        the loss of this micro-batch, ready for `backward`, and its mean over tokens. A connected 0 where none is right.
    """
    total = -torch.where(right_BT, logp_BT, 0.0).sum()
    scale = denoms.dp_size / denoms.n_correct_tokens if denoms.n_correct_tokens else 0.0
    return total * scale, Mean(total.detach(), right_BT.sum())


def select_advantages(advantages: Tensor, mask_BT: Tensor) -> Tensor:
    """Advantages [B] or [B, T] as [B, T], without gradient, 0 where the mask is not set."""
    a = advantages.detach()
    return torch.where(mask_BT, a.unsqueeze(-1) if a.dim() == 1 else a, 0.0)


def _log_ratio(logp_BT: Tensor, prox_BT: Tensor | None, mask_BT: Tensor) -> Tensor:
    return log_ratio(logp_BT, (logp_BT if prox_BT is None else prox_BT).detach(), mask_BT)


def _clipped(r_BT: Tensor, a_BT: Tensor, epsilon_low: float, epsilon_high: float) -> dict[str, Tensor]:
    """The tokens that lost their gradient because the ratio left the trust region in the direction of their advantage."""
    return {
        "policy/clip_low": (r_BT < 1 - epsilon_low) & (a_BT < 0),
        "policy/clip_high": (r_BT > 1 + epsilon_high) & (a_BT > 0),
    }


def _metrics(d_BT: Tensor, mask_BT: Tensor, clipped: dict[str, Tensor]) -> Means:
    """Shares of the trainable tokens, `policy/clip_frac` being that of any of them, and `policy/kl_prox`."""
    if clipped:
        clipped = {**clipped, "policy/clip_frac": torch.stack(list(clipped.values())).any(0)}
    metrics: Means = {name: masked_mean(which_BT.float(), mask_BT) for name, which_BT in clipped.items()}
    return {**metrics, "policy/kl_prox": masked_mean(-d_BT, mask_BT)}
