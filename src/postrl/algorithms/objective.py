"""The one composition of the parts, whatever the preset: first the advantages of a batch, then the loss of each
micro-batch.

    reward -> soft overlong punishment, KL penalty -> advantages -> masks
    L = aggregate(w * policy loss + beta * KL to the reference - entropy_coef * entropy) + nll_coef * NLL of right answers
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from postrl.algorithms.aggregate import Denoms, aggregate, count, totals
from postrl.algorithms.algorithm import Algorithm, Estimate
from postrl.algorithms.corrections import importance_weights, is_missing
from postrl.algorithms.filters import overlong_penalty, truncated, truncation_mask
from postrl.algorithms.kl import k1, loss_estimator
from postrl.algorithms.losses import negative_log_likelihood
from postrl.algorithms.parts import present
from postrl.algorithms.reduce import as_means, masked_mean
from postrl.algorithms.value import explained_variance, value_loss
from postrl.types import Batch, Mean, Means

# -- before the update: a whole step at once -------------------------------------------------------------------------------


def with_advantages(batch: Batch, algorithm: Algorithm) -> Batch:
    """The scored batch of a whole step with its advantages, and with the mask that its denominators are counted from.

    Unscored rollouts (reward NaN) are taken out of the mask. With `mask_truncated_completions` so are completions that hit
    the token limit, after their rewards have counted in the statistics of their group. Metrics are added to the batch's.

    Every rank calls this with the same batch, all rollouts of the step: the trainer gives each rank all groups, and the
    learner adds up the forward passes over the ranks (`Learner.assess`). So means, deviations and whitening are those of
    the whole step, and nothing here communicates.

    Raises:
        ValueError: the batch lacks what the algorithm needs.
    """
    for need in algorithm.needs:
        present(getattr(batch, _FIELDS[need][0]), _FIELDS[need][1])
    batch = _penalised(replace(batch, mask_BT=batch.mask_BT & ~batch.rewards_B.isnan().unsqueeze(-1)), algorithm)
    estimate = Estimate(*algorithm.advantage(batch, algorithm))
    mask_BT, metrics = batch.mask_BT, {**batch.metrics, **as_means(estimate.metrics)}
    if algorithm.mask_truncated_completions:
        mask_BT = truncation_mask(mask_BT, truncated(batch))
    if batch.values_BT is not None and estimate.returns_BT is not None:
        metrics |= explained_variance(batch.values_BT, estimate.returns_BT, mask_BT)
    returns_BT = None if estimate.returns_BT is None else estimate.returns_BT.float()
    return replace(
        batch, advantages=estimate.advantages.float(), returns_BT=returns_BT, mask_BT=mask_BT, metrics=metrics
    )


_FIELDS = {
    "prox": ("prox_BT", "log-probs of the proximal policy"),
    "ref": ("ref_BT", "log-probs of the reference"),
    "values": ("values_BT", "values"),
    "end": ("end_B", "values after the last token"),
    "greedy": ("greedy_B", "rewards of greedy completions"),
}
"""Field of a batch, and what it holds, by need."""


def _penalised(batch: Batch, a: Algorithm) -> Batch:
    """The batch with its rewards less the soft overlong punishment, and with the KL penalty of each token."""
    metrics = dict(batch.metrics)
    if a.overlong_buffer and a.max_completion_length:
        lengths_B = batch.mask_BT.sum(-1)
        penalty_B = overlong_penalty(lengths_B, a.max_completion_length, a.overlong_buffer * a.max_completion_length)
        batch = replace(batch, rewards_B=batch.rewards_B + penalty_B)
        metrics["reward/overlong_penalty"] = Mean(float(penalty_B.sum()), float(len(batch)))
    if a.penalises_kl:
        ref_BT = present(batch.ref_BT, "ref")
        if a.proximal == "sampler":  # where it gave no log-prob there is no distance to punish
            prox_BT = torch.where(is_missing(batch.behav_BT), ref_BT, batch.behav_BT)
        else:
            prox_BT = present(batch.prox_BT, "prox")
        kl_BT = k1(prox_BT.detach(), ref_BT, batch.mask_BT)
        batch = replace(batch, kl_BT=a.beta * kl_BT)
        metrics["reward/kl_ref"] = Mean(float(kl_BT.sum()), float(batch.mask_BT.sum()))
    return replace(batch, metrics=metrics)


def denominators(batch: Batch, dp_size: int) -> Denoms:
    """What the optimizer step of this mini-batch, all ranks together, averages over."""
    n_tokens, n_seqs = count(batch.mask_BT)
    n_correct = 0 if batch.correct_B is None else int((batch.mask_BT & batch.correct_B.unsqueeze(-1)).sum())
    return Denoms(n_tokens, n_seqs, dp_size, n_correct)


# -- the update: a micro-batch at a time -----------------------------------------------------------------------------------


def objective(
    logp_BT: Tensor, batch: Batch, algorithm: Algorithm, denoms: Denoms, *, entropy_BT: Tensor | None = None
) -> tuple[Tensor, Means]:
    """The loss of one micro-batch, ready for `backward`, and its metrics.

    Without `batch.prox_BT` the proximal policy is the live one, detached: right for one optimizer step per batch. The
    weights `w` correct sampler (`behav`) against proximal policy; KL and entropy are not weighted.

    Args:
        logp_BT: float32, with gradient: log-probs of the completion tokens under the live policy.
        batch: the rows of the micro-batch; may be empty or wholly masked, the loss is then a connected 0.
        denoms: counted once per optimizer step over all its micro-batches and ranks.
        entropy_BT: entropy of the policy at each token in nats, with gradient where `entropy_coef` is not 0.

    Returns:
        the loss, already divided by the global denominators and multiplied by dp_size; and metrics, for which it
        is not: `policy/loss`, `policy/kl_ref` hold local sums over local counts of tokens or sequences, so that adding them up over micro-batches and ranks and dividing once gives the loss of the whole step.

    Raises:
        ValueError: the batch lacks what the algorithm needs, or log-probs in less than 32 bits.
    """
    _check(logp_BT, batch, algorithm)
    mask_BT, mode, norm_const = batch.mask_BT, algorithm.loss_aggregation, algorithm.max_completion_length
    prox_BT = _proximal(logp_BT, batch, algorithm)
    advantages = present(batch.advantages, "advantages")
    l_BT, metrics = algorithm.loss(logp_BT, prox_BT, advantages, mask_BT, algorithm)
    # Against the sampler as proximal policy nothing is left to correct: what is measured is the live policy's distance.
    towards_BT = logp_BT if algorithm.proximal == "sampler" else prox_BT
    weights_BT, mismatch = importance_weights(
        algorithm.is_correction, logp_BT, towards_BT, batch.behav_BT, advantages, mask_BT, bounds=algorithm.bounds
    )
    l_BT = weights_BT * l_BT
    if algorithm.beta and algorithm.kl_placement == "loss":
        kl_BT = loss_estimator(algorithm.kl)(logp_BT, present(batch.ref_BT, "ref"), mask_BT, prox_BT)
        l_BT = l_BT + algorithm.beta * kl_BT
        metrics["policy/kl_ref"] = totals(kl_BT.detach(), mask_BT, mode, norm_const=norm_const)
    if entropy_BT is not None:
        metrics["policy/entropy"] = masked_mean(entropy_BT, mask_BT)
    if algorithm.entropy_coef:
        l_BT = l_BT - algorithm.entropy_coef * torch.where(mask_BT, present(entropy_BT, "entropies"), 0.0)
    metrics["policy/loss"] = totals(l_BT.detach(), mask_BT, mode, norm_const=norm_const)
    loss = aggregate(l_BT, mask_BT, mode, denoms, norm_const=norm_const)
    if algorithm.nll_coef:
        right_BT = mask_BT & present(batch.correct_B, "verdicts").unsqueeze(-1)
        nll, metrics["policy/nll"] = negative_log_likelihood(logp_BT, right_BT, denoms)
        loss = loss + algorithm.nll_coef * nll
    return loss, {**metrics, **mismatch}


def value_objective(values_BT: Tensor, batch: Batch, algorithm: Algorithm, denoms: Denoms) -> tuple[Tensor, Means]:
    """The critic's loss of one micro-batch, ready for `backward`, and its metrics, in the manner of `objective`.

    Args:
        values_BT: float32, with gradient: the live critic's values at the completion tokens.
        batch: with `returns_BT`, and the values at the start of the phase as `values_BT`.
    """
    returns_BT, old_BT = present(batch.returns_BT, "returns"), present(batch.values_BT, "values")
    l_BT, metrics = value_loss(values_BT, old_BT, returns_BT, batch.mask_BT, clip=algorithm.value_clip)
    metrics["critic/loss"] = totals(l_BT.detach(), batch.mask_BT, "token_mean")
    return aggregate(l_BT, batch.mask_BT, "token_mean", denoms), metrics


def _proximal(logp_BT: Tensor, batch: Batch, a: Algorithm) -> Tensor:
    live_BT = logp_BT.detach()
    if a.proximal == "sampler":
        return torch.where(is_missing(batch.behav_BT), live_BT, batch.behav_BT)
    return live_BT if batch.prox_BT is None else batch.prox_BT.detach()


def _check(logp_BT: Tensor, batch: Batch, algorithm: Algorithm) -> None:
    if logp_BT.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"log-probs are {logp_BT.dtype}, expected float32: ratios near 1 are lost below it")
    if "prox" in algorithm.needs:
        present(batch.prox_BT, "prox")


# -- rows that need no forward pass ----------------------------------------------------------------------------------------


def idle_rows(batch: Batch, algorithm: Algorithm) -> list[int]:
    """Rows whose loss and gradient are exactly 0: no token to train on, or no advantage and no other term. They need no
    forward pass.

    In GRPO these are the groups that are all right or all wrong, often a third of a batch and more.
    """
    other_terms = algorithm.entropy_coef or (algorithm.beta and algorithm.kl_placement == "loss")
    if batch.advantages is None or other_terms or callable(algorithm.preset.loss):  # whose loss may not be 0 there
        return rows_without_tokens(batch)
    idle_B = batch.advantages == 0 if batch.advantages.dim() == 1 else (batch.advantages == 0).all(-1)
    if algorithm.nll_coef and batch.correct_B is not None:
        idle_B = idle_B & ~batch.correct_B
    return [int(row) for row in (idle_B | ~batch.mask_BT.any(-1)).nonzero().flatten()]


def rows_without_tokens(batch: Batch) -> list[int]:
    """Rows of which nothing is trained on: not scored, or masked as a whole."""
    return [int(row) for row in (~batch.mask_BT.any(-1)).nonzero().flatten()]


def idle_totals(batch: Batch, rows: list[int], algorithm: Algorithm) -> Mean:
    """What these rows add to `policy/loss`: nothing to its sum, their share to its count."""
    mask_BT = batch.mask_BT[rows]
    zeros = torch.zeros_like(mask_BT, dtype=torch.float32)
    return totals(zeros, mask_BT, algorithm.loss_aggregation, norm_const=algorithm.max_completion_length)
