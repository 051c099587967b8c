"""The parts that presets name: advantage estimators and policy losses behind one signature each.

An adapter takes what its function needs out of the batch and the settings; the mathematics is in `advantages`, `returns`
and `losses`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from postrl.algorithms import advantages, losses, returns
from postrl.algorithms.algorithm import Advantage, Algorithm, Estimate, Loss
from postrl.types import Batch, Means

# -- advantages: one a completion ------------------------------------------------------------------------------------------


def outcome(batch: Batch) -> Tensor:
    """float64 [B]: rewards less the KL penalty of the whole completion, so that a baseline is one of both."""
    rewards_B = batch.rewards_B.double()
    return rewards_B if batch.kl_BT is None else rewards_B - batch.kl_BT.double().sum(-1)


def _group(batch: Batch, a: Algorithm) -> tuple[Tensor, Means]:
    if a.multi_objective_aggregation == "normalize_then_sum":
        parts_BF = present(batch.parts_BF, "scores of the single reward functions")
        return advantages.normalize_then_sum(parts_BF, outcome(batch), batch.group_B, a.reward_weights)
    return advantages.grpo(outcome(batch), batch.group_B, scale=a.scale_rewards)


def _rloo(batch: Batch, a: Algorithm) -> tuple[Tensor, Means]:
    return advantages.rloo(outcome(batch), batch.group_B)


def _opo(batch: Batch, a: Algorithm) -> tuple[Tensor, Means]:
    return advantages.opo(outcome(batch), batch.group_B, batch.mask_BT.sum(-1))


def _batch_mean(batch: Batch, a: Algorithm) -> tuple[Tensor, Means]:
    return advantages.batch_mean(outcome(batch))


# -- advantages: by token --------------------------------------------------------------------------------------------------


def _rewards_BT(batch: Batch) -> Tensor:
    return returns.token_rewards(batch.rewards_B, batch.mask_BT, batch.kl_BT)


def _reinforce_pp(batch: Batch, a: Algorithm) -> tuple[Tensor, Means]:
    return returns.reinforce_pp(_rewards_BT(batch), batch.mask_BT, gamma=a.gamma), {}


def _reinforce_pp_baseline(batch: Batch, a: Algorithm) -> tuple[Tensor, Means]:
    return returns.reinforce_pp_baseline(outcome(batch), batch.group_B, batch.mask_BT)


def _remax(batch: Batch, a: Algorithm) -> tuple[Tensor, Means]:
    greedy_B = present(batch.greedy_B, "rewards of greedy completions")
    return returns.remax(_rewards_BT(batch), greedy_B, batch.group_B, batch.mask_BT)


def _gae(batch: Batch, a: Algorithm) -> Estimate:
    """Advantages with the policy's lambda, returns with the critic's."""
    mask_BT, values_BT = batch.mask_BT, present(batch.values_BT, "values")
    end_B = present(batch.end_B, "values after the last token") if a.bootstrap_truncated else None

    def estimate(lam: float | Tensor) -> Tensor:
        return returns.gae(_rewards_BT(batch), values_BT, mask_BT, gamma=a.gamma, lam=lam, end_B=end_B)

    alpha = a.length_adaptive_alpha
    lam = a.gae_lambda if alpha is None else returns.length_adaptive_lambda(mask_BT.sum(-1), alpha)
    advantages_BT = estimate(lam)
    returns_BT = torch.where(mask_BT, estimate(a.gae_lambda_critic) + values_BT.double(), 0.0)
    return Estimate(returns.whiten(advantages_BT, mask_BT) if a.whiten_advantages else advantages_BT, {}, returns_BT)


# -- losses ----------------------------------------------------------------------------------------------------------------


def _clip(logp_BT: Tensor, prox_BT: Tensor | None, adv: Tensor, mask_BT: Tensor, a: Algorithm) -> tuple[Tensor, Means]:
    return losses.ppo_clip(
        logp_BT, prox_BT, adv, mask_BT, epsilon_low=a.epsilon, epsilon_high=a.epsilon_upper, dual_clip=a.dual_clip
    )


def _gspo(logp_BT: Tensor, prox_BT: Tensor | None, adv: Tensor, mask_BT: Tensor, a: Algorithm) -> tuple[Tensor, Means]:
    return losses.gspo(logp_BT, prox_BT, adv, mask_BT, epsilon_low=a.epsilon, epsilon_high=a.epsilon_upper)


def _cispo(logp_BT: Tensor, prox_BT: Tensor | None, adv: Tensor, mask_BT: Tensor, a: Algorithm) -> tuple[Tensor, Means]:
    return losses.cispo(logp_BT, prox_BT, adv, mask_BT, cap_low=a.is_cap_low, cap_high=a.is_cap_high)


def _sapo(logp_BT: Tensor, prox_BT: Tensor | None, adv: Tensor, mask_BT: Tensor, a: Algorithm) -> tuple[Tensor, Means]:
    return losses.sapo(
        logp_BT, prox_BT, adv, mask_BT, temperature_pos=a.sapo_temperature_pos, temperature_neg=a.sapo_temperature_neg
    )


def _reinforce(
    logp_BT: Tensor, prox_BT: Tensor | None, adv: Tensor, mask_BT: Tensor, a: Algorithm
) -> tuple[Tensor, Means]:
    """REINFORCE where the live policy is the one that ratios are taken against, else the clipped ratio.

    "prox" among the needs does not tell: with the KL in the reward it is wanted for that alone.
    """
    if a.num_updates > 1 or a.proximal == "sampler":
        return _clip(logp_BT, prox_BT, adv, mask_BT, a)
    return losses.reinforce(logp_BT, adv, mask_BT)


def present(tensor: Tensor | None, name: str) -> Tensor:
    """The tensor. Raises ValueError when the batch has none."""
    if tensor is None:
        raise ValueError(f"the batch holds no {name}, and the algorithm needs them")
    return tensor


# -- the tables ------------------------------------------------------------------------------------------------------------

ADVANTAGES: dict[str, Advantage] = {
    "group": _group,
    "rloo": _rloo,
    "opo": _opo,
    "batch_mean": _batch_mean,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "remax": _remax,
    "gae": _gae,
}
LOSSES: dict[str, Loss] = {
    "clip": _clip,
    "gspo": _gspo,
    "cispo": _cispo,
    "sapo": _sapo,
    "reinforce": _reinforce,
}
