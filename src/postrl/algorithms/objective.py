"""The one composition of the parts, whatever the preset: first the advantages of a batch, then the loss of each
micro-batch.

    L = aggregate(w * policy loss) + beta * aggregate(KL to the reference)
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from postrl.algorithms.aggregate import Denoms, aggregate, totals
from postrl.algorithms.corrections import importance_weights
from postrl.algorithms.filters import truncation_mask
from postrl.algorithms.kl import loss_estimator
from postrl.algorithms.presets import Algorithm
from postrl.algorithms.reduce import Metrics, masked_mean
from postrl.types import Batch


def with_advantages(batch: Batch, algorithm: Algorithm, *, mask_truncated: bool = False) -> Batch:
    """The scored batch of a whole step with its advantages, and with the mask that its denominators are counted from.

    Unscored rollouts (reward NaN) are taken out of the mask. With `mask_truncated` so are completions that hit the
    token limit, after their rewards have counted in the statistics of their group. Metrics are added to the batch's.
    """
    advantages_B, metrics = algorithm.advantage(batch, algorithm)
    mask_BT = batch.mask_BT & ~batch.rewards_B.isnan().unsqueeze(-1)
    if mask_truncated:
        cut = [rollout.finish_reason == "length" for rollout in batch.rollouts]
        mask_BT = truncation_mask(mask_BT, torch.tensor(cut, dtype=torch.bool, device=mask_BT.device))
    return replace(batch, advantages_B=advantages_B, mask_BT=mask_BT, metrics={**batch.metrics, **metrics})


def objective(
    logp_BT: Tensor, batch: Batch, algorithm: Algorithm, denoms: Denoms, *, entropy_BT: Tensor | None = None
) -> tuple[Tensor, Metrics]:
    """The loss of one micro-batch, ready for `backward`, and its metrics.

    Without `batch.prox_BT` the proximal policy is the live one, detached: right for one optimizer step per batch. The
    weights `w` correct sampler (`behav`) against proximal policy; KL and entropy are not weighted.

    Args:
        logp_BT: float32, with gradient: log-probs of the completion tokens under the live policy.
        batch: the rows of the micro-batch; may be empty or wholly masked, the loss is then a connected 0.
        denoms: counted once per optimizer step over all its micro-batches and ranks.
        entropy_BT: entropy of the policy at each token, for the metric only.

    Returns:
        the loss, already divided by the global denominators and multiplied by dp_size; and (sum, count) pairs, for
        which it is not: `policy/loss`, `policy/kl_ref` hold local sums over local counts of tokens or sequences, so
        that adding them up over micro-batches and ranks and dividing once gives the loss of the whole step.

    Raises:
        ValueError: the batch lacks what the algorithm needs, or log-probs in less than 32 bits.
    """
    _check(logp_BT, batch, algorithm)
    mask_BT, mode, norm_const = batch.mask_BT, algorithm.aggregation, algorithm.norm_const
    prox_BT = (logp_BT if batch.prox_BT is None else batch.prox_BT).detach()
    advantages_B = _present(batch.advantages_B, "advantages")
    l_BT, metrics = algorithm.loss(logp_BT, prox_BT, advantages_B, mask_BT, algorithm)
    weights_BT, mismatch = importance_weights(
        algorithm.correction, logp_BT, prox_BT, batch.behav_BT, advantages_B, mask_BT, bounds=algorithm.bounds
    )
    l_BT = weights_BT * l_BT
    if algorithm.beta:
        kl_BT = loss_estimator(algorithm.kl)(logp_BT, _present(batch.ref_BT, "ref"), mask_BT, prox_BT)
        l_BT = l_BT + algorithm.beta * kl_BT
        metrics["policy/kl_ref"] = totals(kl_BT.detach(), mask_BT, mode, norm_const=norm_const)
    if entropy_BT is not None:
        metrics["policy/entropy"] = masked_mean(entropy_BT, mask_BT)
    metrics["policy/loss"] = totals(l_BT.detach(), mask_BT, mode, norm_const=norm_const)
    return aggregate(l_BT, mask_BT, mode, denoms, norm_const=norm_const), {**metrics, **mismatch}


def _check(logp_BT: Tensor, batch: Batch, algorithm: Algorithm) -> None:
    if logp_BT.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"log-probs are {logp_BT.dtype}, expected float32: ratios near 1 are lost below it")
    if "prox" in algorithm.needs:
        _present(batch.prox_BT, "prox")


def _present(tensor: Tensor | None, name: str) -> Tensor:
    if tensor is None:
        raise ValueError(f"the batch holds no {name}, and the algorithm needs them")
    return tensor


def idle_rows(batch: Batch, algorithm: Algorithm) -> list[int]:
    """Rows whose loss and gradient are exactly 0: no advantage, and no KL term. They need no forward pass.

    In GRPO these are the groups that are all right or all wrong, often a third of a batch and more.
    """
    if algorithm.beta or batch.advantages_B is None:
        return []
    advantages = batch.advantages_B.reshape(len(batch), -1)
    return [int(row) for row in (advantages == 0).all(-1).nonzero().flatten()]


def idle_totals(batch: Batch, rows: list[int], algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """What these rows add to `policy/loss`: nothing to its sum, their share to its count."""
    mask_BT = batch.mask_BT[rows]
    zeros = torch.zeros_like(mask_BT, dtype=torch.float32)
    return totals(zeros, mask_BT, algorithm.aggregation, norm_const=algorithm.norm_const)
