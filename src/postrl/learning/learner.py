"""The learner: one rank's share of policy, reference and critic. It assesses batches, trains, and gives out the weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from postrl.errors import PostrlError, UsageError
from postrl.learning.body import evaluating
from postrl.learning.collate import collate, scatter, support_of
from postrl.learning.critic import Critic, critic_body
from postrl.learning.loading import compute_dtype, starts_at_zero
from postrl.learning.merging import merged_weights
from postrl.learning.model_folder import saving, write_model_folder
from postrl.learning.optimizing import Optimizing
from postrl.learning.policy import Policy
from postrl.learning.sharding import Ranks, saved_state, shard, whole
from postrl.types import Batch, Rollout

if TYPE_CHECKING:
    from postrl.config import GRPOConfig


class Learner(Optimizing[Policy]):
    """Holds the policy, its optimizer and the reference of one rank, and the critic beside them.

    Args:
        model: causal language model or peft model, on the CPU, weights as they are to be trained.
        reference: a second model for the KL when `beta` > 0 and the policy has no adapter; else None.
        keeps_start: whether the reference is the policy with its adapter as it is now, and not with the adapter switched off.
        total_updates: optimizer steps of the whole run, for the learning-rate schedule.
        critic: for algorithms that need values; it is trained by its own `update`.
    """

    def __init__(
        self,
        model: Any,
        *,
        config: GRPOConfig,
        ranks: Ranks,
        dtype: str,
        total_updates: int,
        reference: Any = None,
        keeps_start: bool = False,
        critic: Critic | None = None,
    ) -> None:
        super().__init__(
            Policy(model), name="policy", config=config, ranks=ranks, dtype=dtype, total_updates=total_updates
        )
        self.critic, self.dtype = critic, dtype
        self.reference: Policy | None = None
        if reference is not None:
            self.passes.fit(reference)
            self.reference = Policy(reference).to(ranks.device).requires_grad_(False)
            shard(self.reference, ranks, getattr(torch, dtype))
            self.reference.eval()
        self.start: list[Tensor] | None = None
        """What is trained, as it was at the start of the run, where that is the reference."""
        if keeps_start:
            self.start = [parameter.detach().clone() for parameter in self._trained]

    @property
    def policy(self) -> Policy:
        return self.module

    def cut_off(self, step: int) -> PostrlError | None:
        """The end of a run, after `step`, whose losses reach no weight of the policy or of the critic."""
        return self.reach.error(step) or (self.critic.reach.error(step) if self.critic is not None else None)

    # -- forward passes ------------------------------------------------------------------------------------------------

    def assess(self, batch: Batch, needs: frozenset[str]) -> Batch:
        """The batch with the log-probs and values that the algorithm needs before the update, all rows on every rank."""
        if "prox" in needs:
            batch = replace(batch, prox_BT=self._logps_of(batch, self.policy, reference=False))
        if "ref" in needs:
            batch = replace(batch, ref_BT=self._ref_logps_of(batch))
        if "end" in needs and self.critic is not None:
            values_BT, end_B = self.critic.values_and_end(batch)
            batch = replace(batch, values_BT=values_BT, end_B=end_B)
        elif "values" in needs and self.critic is not None:
            batch = replace(batch, values_BT=self.critic.values(batch))
        return batch

    def _ref_logps_of(self, batch: Batch) -> Tensor:
        if self.reference is not None:
            return self._logps_of(batch, self.reference, reference=False)
        if self.start is None:
            return self._logps_of(batch, self.policy, reference=True)
        with self._as_at_the_start(self.start):
            return self._logps_of(batch, self.policy, reference=False)

    @contextmanager
    def _as_at_the_start(self, start: Sequence[Tensor]) -> Iterator[None]:
        """The policy as it was, for forward passes: its adapter is small enough to be put aside, each rank its share."""
        now = [parameter.detach().clone() for parameter in self._trained]
        _put(start, self._trained)
        try:
            yield
        finally:
            _put(now, self._trained)

    @property
    def _trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.policy.parameters() if parameter.requires_grad]

    def _logps_of(self, batch: Batch, policy: Policy, *, reference: bool) -> Tensor:
        def look(micro: Batch) -> Tensor:
            return self._forward(micro.rollouts, micro.mask_BT, policy, reference=reference)[0]

        return self._for_all_rows(batch, policy, look)

    def _outputs(self, rollouts: Sequence[Rollout], mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        return self._forward(rollouts, mask_BT, self.policy, train_entropy=self.config.entropy_coef > 0)

    def _forward(
        self, rollouts: Sequence[Rollout], mask_BT: Tensor, policy: Policy, **options: bool
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies, [b, T], over the tokens that sampling left; options as `Policy.forward`."""
        ids, select, targets, place, prefix = self.passes.inputs(rollouts, mask_BT)
        support = support_of(rollouts, mask_BT, self.ranks.device)
        logps_N, entropy_N = policy(
            ids, select, targets, self.config.temperature, prefix=prefix, support=support, **options
        )
        return scatter(logps_N, place), scatter(entropy_N, place)

    @torch.no_grad()
    def refresh_reference(self, share: float) -> None:
        """Move the reference towards the policy: `share * policy + (1 - share) * reference` (TR-DPO, arXiv:2404.09656)."""
        assert self.reference is not None, "checked with the settings"
        for theirs, ours in zip(self.reference.parameters(), self.policy.parameters(), strict=True):
            theirs.mul_(1 - share).add_(ours.detach().to(theirs.dtype), alpha=share)

    def score(self, pairs: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """Log-probs at temperature 1 of token_ids[start:] for each pair, on every rank (a collective)."""
        rollouts = [_as_rollout(token_ids, start) for token_ids, start in pairs]
        width = max(len(r.completion_ids) for r in rollouts)
        mask = torch.tensor([[i < len(r.completion_ids) for i in range(width)] for r in rollouts])
        with evaluating(self.policy):
            ids, select, targets, place = collate(rollouts, mask, self.ranks.device)
            logps_N, _ = self.policy(ids, select, targets, 1.0)
        return [row[: len(r.completion_ids)].tolist() for row, r in zip(scatter(logps_N, place), rollouts, strict=True)]

    # -- weights -------------------------------------------------------------------------------------------------------

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight under its name in the transformers model, whole and with adapters merged (a collective).

        Tied weights come once, under the name that transformers saves.

        Raises:
            PostrlError: an adapter that cannot be merged.
        """
        return merged_weights(self.policy.causal_lm)

    def adapter(self) -> Iterator[tuple[str, Tensor]]:
        """The LoRA adapter's tensors under their names in peft's files, whole (a collective)."""
        for name, parameter in self.policy.model.named_parameters():
            if "lora_" in name:
                yield name.replace(".default.", "."), whole(parameter.detach())

    def sampling_copy(self) -> Any:
        """A model in the compute dtype to sample from: the learner's own weights are float32 and sharded."""
        from transformers import AutoModelForCausalLM

        config, dtype = self.policy.causal_lm.config, getattr(torch, self.dtype)
        with self.ranks.device:  # drawing weights that are thrown away takes a CPU longer than the copy after it
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
        return model.to(self.ranks.device).requires_grad_(False).eval()

    def save_model(self, folder: str, tokenizer: Any) -> None:
        """An ordinary Hugging Face folder, or a peft adapter, that transformers and vLLM load (a collective).

        Raises:
            PostrlError: the disk is full or not writable.
        """
        model = self.policy.model
        state = saved_state(model, model.named_parameters(), self.ranks)
        if not self.ranks.is_main:
            return
        with saving("the model", folder):
            write_model_folder(folder, model, tokenizer, self.config, state)


@torch.no_grad()
def _put(values: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def _as_rollout(token_ids: Sequence[int], start: int) -> Rollout:
    ids = list(token_ids)
    return Rollout("canary", 0, ids[:start], ids[start:], [0.0] * (len(ids) - start), [], "stop")


def build_learner(
    config: GRPOConfig, ranks: Ranks, needs: frozenset[str], model: Any, tokenizer: Any, peft_config: Any, steps: int
) -> Learner:
    """The learner of a run of `steps` steps, with what its algorithm needs beside the policy: a copy of the initial model as
    the reference, and a critic. They are made before anything changes the model.

    Raises:
        UsageError: sync_ref_model, and the model has an adapter; or critic_model cannot be the critic.
    """
    dtype, updates = compute_dtype(config), config.num_iterations * config.minibatches
    adapted = hasattr(model, "disable_adapter")
    if "ref" in needs and adapted and config.sync_ref_model:
        raise UsageError(
            "sync_ref_model is on, and the reference of a model with an adapter is that of the start, which does not move",
            hint="set sync_ref_model=False, or train all weights (without peft_config)",
        )
    reference = copy.deepcopy(model) if "ref" in needs and not adapted else None
    critic, waits = None, 0
    if "values" in needs:
        body = critic_body(config, model, tokenizer, peft_config)
        critic = Critic(body, config=config, ranks=ranks, dtype=dtype, total_updates=steps * updates)
        waits = min(steps, config.critic_warmup_steps)
    return Learner(
        model,
        config=config,
        ranks=ranks,
        dtype=dtype,
        total_updates=(steps - waits) * updates,
        reference=reference,
        keeps_start="ref" in needs and adapted and not starts_at_zero(model),
        critic=critic,
    )
