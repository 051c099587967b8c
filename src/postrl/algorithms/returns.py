"""Advantages by token: what came after each token, less what was expected there.

Steps are the trainable tokens, side by side: what stands where the mask is not set (padding, what a tool said) carries no
reward, no value and no decay. As in `advantages`, these functions take the batch of a whole step, which every rank holds,
and compute and return float64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from postrl.algorithms.advantages import ZERO_SPREAD, grpo, has_baseline
from postrl.types import Mean, Means

MIN_VARIANCE = 1e-8
"""Whitening divides by the root of at least this."""


def token_rewards(rewards_B: Tensor, mask_BT: Tensor, kl_BT: Tensor | None = None) -> Tensor:
    """[B, T]: the reward of a completion on its last trainable token, less the KL penalty of each token.

    Args:
        rewards_B: of scored rollouts; take others out of the mask.
        kl_BT: beta * KL of each token, taken off; None: nothing.
    """
    rewards_BT = torch.where(last_token(mask_BT), rewards_B.double().unsqueeze(-1), 0.0)
    return rewards_BT if kl_BT is None else rewards_BT - torch.where(mask_BT, kl_BT.double(), 0.0)


def last_token(mask_BT: Tensor) -> Tensor:
    """bool [B, T]: the last trainable token of each completion."""
    return mask_BT & (mask_BT.cumsum(-1) == mask_BT.sum(-1, keepdim=True))


def gae(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    end_B: Tensor | None = None,
) -> Tensor:
    """`A_t = sum over s >= t of (gamma lam)^(s-t) delta_s`, `delta_s = r_s + gamma V_{s+1} - V_s` (GAE, arXiv:1506.02438,
    equation 16).

    What the critic is to predict is `A + V`. With another lambda for it than for the policy call this twice (VC-PPO,
    arXiv:2503.01491).

    Args:
        rewards_BT: reward of each token, see `token_rewards`.
        values_BT: V_t, what the critic expects before token t is written.
        gamma: discount by token, 0 to 1.
        lam: lambda, 0 to 1; a number, or [B]: one for each completion, see `length_adaptive_lambda`.
        end_B: V after the last trainable token; None: 0, the completion has ended.

    Returns:
        float64 [B, T], 0 where the mask is not set.
    """
    order_BT = mask_BT.int().argsort(dim=-1, descending=True, stable=True)  # trainable tokens first, in their order
    on_BT = mask_BT.gather(-1, order_BT)
    r_BT, v_BT = (torch.where(on_BT, x.double().gather(-1, order_BT), 0.0) for x in (rewards_BT, values_BT))
    next_BT = pad(v_BT, (0, 1))[:, 1:]
    if end_B is not None:
        last_BT = on_BT & ~pad(on_BT, (0, 1))[:, 1:]
        next_BT = torch.where(last_BT, end_B.double().unsqueeze(-1), next_BT)
    delta_BT = torch.where(on_BT, r_BT + gamma * next_BT - v_BT, 0.0)
    decay = gamma * (lam.double().unsqueeze(-1) if isinstance(lam, Tensor) else lam)
    advantages_BT = torch.where(on_BT, _sum_of_later(delta_BT, decay), 0.0)
    return torch.zeros_like(advantages_BT).scatter(-1, order_BT, advantages_BT)


def _sum_of_later(x_BT: Tensor, decay: float | Tensor) -> Tensor:
    """`sum over s >= t of decay^(s-t) x_s`, each pass covering twice as many tokens as the one before."""
    step = 1
    while step < x_BT.shape[-1]:
        x_BT = x_BT + decay**step * pad(x_BT[:, step:], (0, step))
        step *= 2
    return x_BT


def length_adaptive_lambda(lengths_B: Tensor, alpha: float) -> Tensor:
    """`lambda = 1 - 1 / (alpha l)`, at least 0, for completions of l trainable tokens (VAPO, arXiv:2504.05118).

    The weights of later tokens then add up to alpha * l: credit reaches over the same share of a completion, whatever its
    length. float64 [B].
    """
    return (1 - 1 / (alpha * lengths_B.double())).clamp(0.0, 1.0)


def rewards_to_go(rewards_BT: Tensor, mask_BT: Tensor, gamma: float = 1.0) -> Tensor:
    """`G_t = sum over s >= t of gamma^(s-t) r_s`; float64 [B, T], 0 where the mask is not set."""
    return gae(rewards_BT, torch.zeros_like(rewards_BT), mask_BT, gamma=gamma, lam=1.0)


def whiten(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`(x - mean) / sqrt(max(variance, 1e-8))` over all trainable tokens of the batch, with the population's variance.

    Exactly 0 everywhere when all of them are equal. float64 [B, T], 0 where the mask is not set.
    """
    x_BT = x_BT.double()
    values = x_BT[mask_BT]
    if not len(values) or values.max() - values.min() <= ZERO_SPREAD:
        return torch.zeros_like(x_BT)
    deviation = values.var(correction=0).clamp(min=MIN_VARIANCE).sqrt()
    return torch.where(mask_BT, (x_BT - values.mean()) / deviation, 0.0)


def reinforce_pp(rewards_BT: Tensor, mask_BT: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Rewards to go, whitened over the batch: no group, no critic (REINFORCE++, arXiv:2501.03262)."""
    return whiten(rewards_to_go(rewards_BT, mask_BT, gamma), mask_BT)


def reinforce_pp_baseline(rewards_B: Tensor, group_B: Tensor, mask_BT: Tensor) -> tuple[Tensor, Means]:
    """Rewards less the mean of their group, whitened over the tokens of the batch (REINFORCE++-baseline, arXiv:2501.03262).

    The mean is taken over tokens, so a group with equal rewards does not stay at 0 unless all groups are such: that is the
    algorithm, and dynamic sampling keeps such groups out. A group with less than two scored rollouts stays at 0 and does
    not enter. Arguments and metrics as for `grpo`, plus the mask.
    """
    advantages_B, metrics = grpo(rewards_B, group_B, scale="none")
    compared_BT = mask_BT & has_baseline(rewards_B, group_B).unsqueeze(-1)
    return whiten(advantages_B.unsqueeze(-1).expand(mask_BT.shape), compared_BT), metrics


def remax(rewards_BT: Tensor, greedy_B: Tensor, group_B: Tensor, mask_BT: Tensor) -> tuple[Tensor, Means]:
    """`A_t = sum over s >= t of r_s - R_greedy` (ReMax, arXiv:2310.10505).

    Args:
        rewards_BT: reward of each token, see `token_rewards`.
        greedy_B: reward of the greedy completion of the same prompt; NaN where there is none: advantage exactly 0.

    Returns:
        float64 [B, T], 0 where the mask is not set; and the metric `group/too_small`: prompts without a baseline.
    """
    known_B = ~greedy_B.isnan()
    advantages_BT = rewards_to_go(rewards_BT, mask_BT) - greedy_B.double().unsqueeze(-1)
    n_groups, n_known = len(set(group_B.tolist())), len(set(group_B[known_B].tolist()))
    return torch.where(mask_BT & known_B.unsqueeze(-1), advantages_BT, 0.0), {
        "group/too_small": Mean(float(n_groups - n_known), float(n_groups))
    }
