"""The one composition of the parts, whatever the preset: first the advantages of a batch, then, as objectives that the
learner is given, the losses of its micro-batches.

    reward -> soft overlong punishment, KL penalty -> advantages -> masks
    L = aggregate(w * policy loss + beta * KL to the reference - entropy_coef * entropy) + nll_coef * NLL of right answers
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from postrl.algorithms.aggregate import Denoms, aggregate, count, totals
from postrl.algorithms.algorithm import Algorithm, Estimate
from postrl.algorithms.corrections import importance_weights, is_missing
from postrl.algorithms.filters import overlong_penalty, truncated, truncation_mask
from postrl.algorithms.kl import k1, loss_estimator
from postrl.algorithms.losses import negative_log_likelihood
from postrl.algorithms.parts import present
from postrl.algorithms.reduce import accumulate, as_means, masked_mean
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


# -- the update: a micro-batch at a time -----------------------------------------------------------------------------------


def denominators(batch: Batch, dp_size: int) -> Denoms:
    """What the optimizer step of this mini-batch, all ranks together, averages over."""
    n_tokens, n_seqs = count(batch.mask_BT)
    n_correct = 0 if batch.correct_B is None else int((batch.mask_BT & batch.correct_B.unsqueeze(-1)).sum())
    return Denoms(n_tokens, n_seqs, dp_size, n_correct)


@dataclass(frozen=True)
class _Objective:
    algorithm: Algorithm

    denominators = staticmethod(denominators)
    merge = staticmethod(accumulate)

    def idle_rows(self, batch: Batch) -> list[int]:
        """Rows whose loss and gradient are exactly 0, so that they need no forward pass: here those of which nothing is
        trained on, because they were not scored or are masked as a whole."""
        return _rows(~batch.mask_BT.any(-1))

    def idle_metrics(self, batch: Batch) -> Means:
        """What idle rows add to the metrics."""
        return {}


class PolicyObjective(_Objective):
    """What the policy is trained for: `L`."""

    def loss(self, logp_BT: Tensor, entropy_BT: Tensor | None, batch: Batch, denoms: Denoms) -> tuple[Tensor, Means]:
        """The loss of one micro-batch, ready for `backward`, and its metrics.

        Without `batch.prox_BT` the proximal policy is the live one, detached: right for one optimizer step per batch. The
        weights `w` correct sampler (`behav`) against proximal policy; KL and entropy are not weighted.

        Args:
            logp_BT: float32, with gradient: log-probs of the completion tokens under the live policy.
            entropy_BT: entropy of the policy at each token in nats, with gradient where `entropy_coef` is not 0; None: it
                is not known, and not reported.
            batch: the rows of the micro-batch; may be empty or wholly masked, the loss is then a connected 0.
            denoms: counted once per optimizer step over all its micro-batches and ranks.

        Returns:
            the loss, already divided by the global denominators and multiplied by dp_size; and metrics, for which it is
            not: `policy/loss`, `policy/kl_ref` hold local sums over local counts of tokens or sequences, so that adding
            them up over micro-batches and ranks and dividing once gives the loss of the whole step.

        Raises:
            ValueError: the batch lacks what the algorithm needs, or log-probs in less than 32 bits.
        """
        a, mask_BT = self.algorithm, batch.mask_BT
        _check(logp_BT, batch, a)
        prox_BT = _proximal(logp_BT, batch, a)
        advantages = present(batch.advantages, "advantages")
        l_BT, metrics = a.loss(logp_BT, prox_BT, advantages, mask_BT, a)
        # Against the sampler as proximal policy nothing is left to correct: what is measured is the live policy's distance.
        towards_BT = logp_BT if a.proximal == "sampler" else prox_BT
        weights_BT, mismatch = importance_weights(
            a.is_correction, logp_BT, towards_BT, batch.behav_BT, advantages, mask_BT, bounds=a.bounds
        )
        l_BT = weights_BT * l_BT
        if a.beta and a.kl_placement == "loss":
            kl_BT = loss_estimator(a.kl)(logp_BT, present(batch.ref_BT, "ref"), mask_BT, prox_BT)
            l_BT = l_BT + a.beta * kl_BT
            metrics["policy/kl_ref"] = self._totals(kl_BT.detach(), mask_BT)
        if entropy_BT is not None:
            metrics["policy/entropy"] = masked_mean(entropy_BT, mask_BT)
        if a.entropy_coef:
            l_BT = l_BT - a.entropy_coef * torch.where(mask_BT, present(entropy_BT, "entropies"), 0.0)
        metrics["policy/loss"] = self._totals(l_BT.detach(), mask_BT)
        loss = aggregate(l_BT, mask_BT, a.loss_aggregation, denoms, norm_const=a.max_completion_length)
        if a.nll_coef:
            right_BT = mask_BT & present(batch.correct_B, "verdicts").unsqueeze(-1)
            nll, metrics["policy/nll"] = negative_log_likelihood(logp_BT, right_BT, denoms)
            loss = loss + a.nll_coef * nll
        return loss, {**metrics, **mismatch}

    def idle_rows(self, batch: Batch) -> list[int]:
        """Also those without advantage, where no other term of the loss reads them. In GRPO these are the groups that are
        all right or all wrong, often a third of a batch and more."""
        a = self.algorithm
        other_terms = a.entropy_coef or (a.beta and a.kl_placement == "loss")
        if batch.advantages is None or other_terms or callable(a.preset.loss):  # whose loss may not be 0 there
            return super().idle_rows(batch)
        idle_B = batch.advantages == 0 if batch.advantages.dim() == 1 else (batch.advantages == 0).all(-1)
        if a.nll_coef and batch.correct_B is not None:
            idle_B = idle_B & ~batch.correct_B
        return _rows(idle_B | ~batch.mask_BT.any(-1))

    def idle_metrics(self, batch: Batch) -> Means:
        """Nothing to the sum of `policy/loss`, their share to its count."""
        return {"policy/loss": self._totals(torch.zeros_like(batch.mask_BT, dtype=torch.float32), batch.mask_BT)}

    def _totals(self, l_BT: Tensor, mask_BT: Tensor) -> Mean:
        a = self.algorithm
        return totals(l_BT, mask_BT, a.loss_aggregation, norm_const=a.max_completion_length)


class ValueObjective(_Objective):
    """What the critic is trained for, in the manner of `PolicyObjective`."""

    def loss(self, values_BT: Tensor, batch: Batch, denoms: Denoms) -> tuple[Tensor, Means]:
        """The loss of one micro-batch, ready for `backward`, and its metrics.

        Args:
            values_BT: float32, with gradient: the live critic's values at the completion tokens.
            batch: with `returns_BT`, and the values at the start of the phase as `values_BT`.
        """
        returns_BT, old_BT = present(batch.returns_BT, "returns"), present(batch.values_BT, "values")
        l_BT, metrics = value_loss(values_BT, old_BT, returns_BT, batch.mask_BT, clip=self.algorithm.value_clip)
        metrics["critic/loss"] = totals(l_BT.detach(), batch.mask_BT, "token_mean")
        return aggregate(l_BT, batch.mask_BT, "token_mean", denoms), metrics


def _rows(which_B: Tensor) -> list[int]:
    return [int(row) for row in which_B.nonzero().flatten()]


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
