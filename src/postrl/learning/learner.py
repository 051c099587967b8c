"""The learner: one rank's share of the forward passes, the loss, the backward pass and the optimizer step.

What it promises: the update does not depend on micro-batch size, packing or rank count. Denominators are counted over
the whole mini-batch and summed over the ranks before the first backward pass.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from postrl.errors import PostrlError
from postrl.learning.microbatch import plan
from postrl.learning.optim import learning_rate, make_optimizer
from postrl.learning.policy import Policy, collate, scatter
from postrl.learning.sharding import Ranks, shard, whole
from postrl.types import Batch, Rollout

if TYPE_CHECKING:
    from postrl.config import GRPOConfig

Pairs = dict[str, tuple[Any, Any]]
"""(sum, count) by metric; see `postrl.algorithms.reduce`."""
Objective = Callable[[Tensor, Tensor, Batch, tuple[float, float, int]], tuple[Tensor, Pairs]]
"""(logp_BT, entropy_BT, micro-batch, (n_tokens, n_seqs, dp_size)) -> loss to call backward on, metrics."""

MAX_NONFINITE = 3
"""Skipped updates in a row after which the run stops."""


@dataclass
class UpdateReport:
    """What one phase of updates did."""

    metrics: Pairs = field(default_factory=dict)
    """This rank's (sum, count) pairs over all micro-batches."""
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    """Optimizer steps that were skipped because loss or gradient was not finite."""
    optimizer_steps: int = 0
    lr: float = 0.0
    tokens: int = 0
    """Prompt and completion tokens that went through the forward pass, all ranks."""


class Learner:
    """Holds the policy, the optimizer and the reference of one rank.

    Args:
        model: causal language model or peft model, on the CPU, weights as they are to be trained.
        reference: a second model for the KL when `beta` > 0 and the policy has no adapter to switch off; else None.
        total_updates: optimizer steps of the whole run, for the learning-rate schedule.
    """

    def __init__(
        self, model: Any, *, config: GRPOConfig, ranks: Ranks, dtype: str, total_updates: int, reference: Any = None
    ) -> None:
        self.config, self.ranks = config, ranks
        self.total_updates = total_updates
        self.updates = 0
        self.max_tokens = config.max_tokens_per_microbatch
        self.nonfinite_in_a_row = 0
        checkpointing = config.gradient_checkpointing
        if checkpointing is None:
            checkpointing = ranks.device.type == "cuda"
        if checkpointing:
            _checkpoint_activations(model)
        self.policy = Policy(model).to(ranks.device)
        self.policy.check_head()
        self.sharded = shard(self.policy, ranks, getattr(torch, dtype))
        self.policy.train()
        self.reference: Policy | None = None
        if reference is not None:
            self.reference = Policy(reference).to(ranks.device).requires_grad_(False)
            shard(self.reference, ranks, getattr(torch, dtype))
            self.reference.eval()
        self.optimizer = make_optimizer(self.policy.parameters(), config)

    # -- forward passes ------------------------------------------------------------------------------------------------

    def assess(self, batch: Batch, needs: frozenset[str]) -> Batch:
        """The batch with the log-probs that the algorithm needs before the update; this rank's rows are filled."""
        if "prox" in needs:
            batch = replace(batch, prox_BT=self._logps_of(batch, self.policy, reference=False))
        if "ref" in needs:
            policy = self.reference or self.policy
            batch = replace(batch, ref_BT=self._logps_of(batch, policy, reference=self.reference is None))
        return batch

    @torch.no_grad()
    def _logps_of(self, batch: Batch, policy: Policy, *, reference: bool) -> Tensor:
        out = torch.zeros(batch.mask_BT.shape, device=self.ranks.device)
        was_training = policy.training
        policy.eval()
        try:
            for minibatch in self._plan(batch):
                for rows in minibatch[self.ranks.rank]:
                    micro = batch.rows(rows)
                    logps, _ = self._forward(micro, policy, reference=reference)
                    out[rows, : logps.shape[1]] = logps
        finally:
            policy.train(was_training)
        return out

    def _forward(self, micro: Batch, policy: Policy, *, reference: bool = False) -> tuple[Tensor, Tensor]:
        ids, select, targets, place = collate(micro.rollouts, micro.mask_BT, self.ranks.device)
        logps_N, entropy_N = policy(ids, select, targets, self.config.temperature, reference)
        return scatter(logps_N, place), scatter(entropy_N, place)

    def _plan(self, batch: Batch) -> list[list[list[list[int]]]]:
        lengths = [len(r.prompt_ids) + len(r.completion_ids) for r in batch.rollouts]
        return plan(
            lengths,
            minibatches=self.config.minibatches,
            ranks=self.ranks.size,
            max_tokens=self.max_tokens,
            groups=batch.group_B.tolist(),
        )

    def score(self, pairs: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """Log-probs at temperature 1 of token_ids[start:] for each pair, on every rank (a collective)."""
        rollouts = [_as_rollout(token_ids, start) for token_ids, start in pairs]
        width = max(len(r.completion_ids) for r in rollouts)
        mask = torch.tensor([[i < len(r.completion_ids) for i in range(width)] for r in rollouts])
        was_training = self.policy.training
        self.policy.eval()
        try:
            with torch.no_grad():
                ids, select, targets, place = collate(rollouts, mask, self.ranks.device)
                logps_N, _ = self.policy(ids, select, targets, 1.0)
        finally:
            self.policy.train(was_training)
        return [row[: len(r.completion_ids)].tolist() for row, r in zip(scatter(logps_N, place), rollouts, strict=True)]

    # -- the update ----------------------------------------------------------------------------------------------------

    def update(self, batch: Batch, objective: Objective, merge: Callable[[Pairs, Pairs], Pairs]) -> UpdateReport:
        """num_iterations passes over the batch, `minibatches` optimizer steps each.

        Raises:
            PostrlError: out of memory even with half the token budget, or non-finite updates several times in a row.
        """
        report = UpdateReport()
        for _ in range(self.config.num_iterations):
            for index in range(self.config.minibatches):
                self._minibatch(batch, index, objective, merge, report)
        return report

    def _minibatch(
        self,
        batch: Batch,
        index: int,
        objective: Objective,
        merge: Callable[[Pairs, Pairs], Pairs],
        report: UpdateReport,
    ) -> None:
        rows = [row for rank in self._plan(batch)[index] for micro in rank for row in micro]
        counted = batch.mask_BT[rows]
        denoms = (float(counted.sum()), float(counted.any(-1).sum()), self.ranks.size)
        report.tokens += sum(len(r.prompt_ids) + len(r.completion_ids) for r in (batch.rollouts[row] for row in rows))
        if not denoms[0]:  # nothing trainable: every rank counts the same and skips together
            return
        pairs = self._backward(batch, index, objective, merge, denoms)
        self._step(pairs, report)
        report.metrics = merge(report.metrics, pairs)

    def _backward(
        self,
        batch: Batch,
        index: int,
        objective: Objective,
        merge: Callable[[Pairs, Pairs], Pairs],
        denoms: tuple[float, float, int],
    ) -> Pairs:
        try:
            return self._accumulate(batch, index, objective, merge, denoms)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            failed_at, peak = self.max_tokens, peak_memory_gb(self.ranks.device)
        self.optimizer.zero_grad(set_to_none=True)
        _free()
        advice = (
            f"lower --max-tokens-per-microbatch (now {failed_at}) or --max-completion-length, "
            "or turn on --gradient-checkpointing"
        )
        if self.ranks.size > 1:  # other ranks wait in a collective: retrying on one alone would hang them
            raise PostrlError(f"out of memory in the update, peak {peak:.1f} GB", hint=advice)
        self.max_tokens = max(1, failed_at // 2)
        try:
            return self._accumulate(batch, index, objective, merge, denoms)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            raise PostrlError(
                f"out of memory in the update with max_tokens_per_microbatch {failed_at} and again with "
                f"{self.max_tokens}, peak {peak:.1f} GB",
                hint=advice,
            ) from error

    def _accumulate(
        self,
        batch: Batch,
        index: int,
        objective: Objective,
        merge: Callable[[Pairs, Pairs], Pairs],
        denoms: tuple[float, float, int],
    ) -> Pairs:
        pairs: Pairs = {}
        micros = self._plan(batch)[index][self.ranks.rank]
        for i, rows in enumerate(micros):
            if self.sharded:
                self.policy.set_requires_gradient_sync(i == len(micros) - 1)
            micro = batch.rows(rows)
            logps, entropies = self._forward(micro, self.policy)
            loss, metrics = objective(logps, entropies, micro, denoms)
            loss.backward()
            pairs = merge(pairs, metrics)
        return pairs

    def _step(self, pairs: Pairs, report: UpdateReport) -> None:
        trained = [p for p in self.policy.parameters() if p.requires_grad]
        limit = self.config.max_grad_norm or float("inf")
        norm = float(whole(torch.nn.utils.clip_grad_norm_(trained, limit)))
        loss = float(sum(float(value) for name, (value, _) in pairs.items() if name == "policy/loss"))
        finite = norm == norm and abs(norm) != float("inf") and self.ranks.max([float(loss != loss)])[0] == 0.0
        if finite:
            report.lr = learning_rate(self.config, self.updates, self.total_updates)
            for group in self.optimizer.param_groups:
                group["lr"] = report.lr
            self.optimizer.step()
            self.nonfinite_in_a_row = 0
            report.grad_norms.append(norm)
        else:
            report.skipped += 1
            self.nonfinite_in_a_row += 1
        self.updates += 1
        report.optimizer_steps += 1
        self.optimizer.zero_grad(set_to_none=True)

    # -- weights -------------------------------------------------------------------------------------------------------

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight under its name in the transformers model, whole and with adapters merged (a collective).

        Tied weights come once, under the name that transformers saves.
        """
        deltas = _lora_deltas(self.policy) if self.policy.has_adapter else {}
        seen: set[int] = set()
        for name, parameter in self.policy.causal_lm.named_parameters():
            if "lora_" in name or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            plain = name.replace(".base_layer", "")
            tensor = whole(parameter.detach())
            if name in deltas:
                tensor = tensor + deltas[name]().to(tensor.dtype)
            yield plain, tensor

    def save_model(self, folder: str, tokenizer: Any) -> None:
        """An ordinary Hugging Face folder, or a peft adapter, that transformers and vLLM load (a collective)."""
        state = {name: whole(p.detach()).cpu() for name, p in self.policy.model.named_parameters()}
        if not self.ranks.is_main:
            return
        if self.policy.has_adapter:
            from peft import get_peft_model_state_dict

            kept = get_peft_model_state_dict(self.policy.model, state_dict=state)
            self.policy.model.peft_config["default"].save_pretrained(folder)
            from safetensors.torch import save_file

            save_file(kept, f"{folder}/adapter_model.safetensors", metadata={"format": "pt"})
        else:
            self.policy.causal_lm.save_pretrained(folder, state_dict=state)
        tokenizer.save_pretrained(folder)


def _lora_deltas(policy: Policy) -> dict[str, Callable[[], Tensor]]:
    """Name of a base weight -> the product of its adapter's factors, scaled (LoRA, arXiv:2106.09685, eq. 3)."""
    from peft.tuners.lora import Linear

    deltas: dict[str, Callable[[], Tensor]] = {}
    for name, module in policy.causal_lm.named_modules():
        if not hasattr(module, "lora_A") or not len(module.lora_A):
            continue
        if not isinstance(module, Linear):
            raise PostrlError(
                f"the adapter on {name} is not a LoRA of a linear layer and cannot be merged for the sampler",
                hint="leave embeddings and convolutions out of --lora-target-modules",
            )

        def delta(module: Any = module) -> Tensor:
            a, b = whole(module.lora_A["default"].weight.detach()), whole(module.lora_B["default"].weight.detach())
            product = (b.float() @ a.float()) * module.scaling["default"]
            return product.T if module.fan_in_fan_out else product

        deltas[f"{name}.base_layer.weight"] = delta
    return deltas


def _as_rollout(token_ids: Sequence[int], start: int) -> Rollout:
    ids = list(token_ids)
    return Rollout("canary", 0, ids[:start], ids[start:], [0.0] * (len(ids) - start), [], "stop")


def _checkpoint_activations(model: Any) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if hasattr(model, "enable_input_require_grads") and hasattr(model, "peft_config"):
        model.enable_input_require_grads()


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_memory_gb(device: torch.device) -> float:
    """Peak memory so far in GB: of the GPU, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
