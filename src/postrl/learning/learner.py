"""The learner: one rank's share of the forward passes, the loss, the backward pass and the optimizer step.

What it promises: the update does not depend on micro-batch size, packing or rank count. Denominators are counted over
the whole mini-batch and summed over the ranks before the first backward pass.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from postrl.errors import PostrlError
from postrl.learning.attention import use_fitting_attention
from postrl.learning.memory import give_back_memory, is_out_of_memory, peak_memory_gb, room_for
from postrl.learning.microbatch import plan, split
from postrl.learning.optim import learning_rate, make_optimizer
from postrl.learning.policy import Policy, Prefix, collate, collate_shared, scatter
from postrl.learning.sharding import Ranks, shard, whole
from postrl.types import Batch, Rollout

if TYPE_CHECKING:
    from postrl.config import GRPOConfig

Pairs = dict[str, tuple[Any, Any]]
"""(sum, count) by metric; see `postrl.algorithms.reduce`."""
Objective = Callable[[Tensor, Tensor, Batch, Any], tuple[Tensor, Pairs]]
"""(logp_BT, entropy_BT, micro-batch, denominators) -> loss to call backward on, metrics."""
Denominators = Callable[[Batch, int], Any]
"""(mini-batch of all ranks, number of ranks) -> what its losses are divided by, the same for all its micro-batches."""
Merge = Callable[[Pairs, Pairs], Pairs]

SMALLER = "train adapters (--lora-rank 16), use --optim sgd, or more GPUs (--num-processes)"
"""What helps where weights and optimizer do not fit."""
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
        self.max_tokens = config.microbatch_tokens(ranks.device.type)
        self.nonfinite_in_a_row = 0
        checkpointing = config.gradient_checkpointing
        if checkpointing is None:
            checkpointing = ranks.device.type == "cuda"
        if checkpointing:
            _checkpoint_activations(model)
        use_fitting_attention(model, ranks.device, getattr(torch, dtype))
        with room_for("the weights", hint=SMALLER):
            self.policy = Policy(model).to(ranks.device)
        self.policy.check_head()
        self.sharded = shard(self.policy, ranks, getattr(torch, dtype))
        self.shares_prompts = not self.sharded and self.policy.can_share_prompts()
        self.policy.train()
        self.reference: Policy | None = None
        if reference is not None:
            use_fitting_attention(reference, ranks.device, getattr(torch, dtype))
            self.reference = Policy(reference).to(ranks.device).requires_grad_(False)
            shard(self.reference, ranks, getattr(torch, dtype))
            self.reference.eval()
        self.optimizer = make_optimizer(self.policy.parameters(), config)

    # -- forward passes ------------------------------------------------------------------------------------------------

    def assess(self, batch: Batch, needs: frozenset[str]) -> Batch:
        """The batch with the log-probs that the algorithm needs before the update, all rows on every rank."""
        if "prox" in needs:
            batch = replace(batch, prox_BT=self._logps_of(batch, self.policy, reference=False))
        if "ref" in needs:
            policy = self.reference or self.policy
            batch = replace(batch, ref_BT=self._logps_of(batch, policy, reference=self.reference is None))
        return batch

    def _logps_of(self, batch: Batch, policy: Policy, *, reference: bool) -> Tensor:
        out = torch.zeros(batch.mask_BT.shape, device=self.ranks.device)
        with _evaluating(policy):
            for minibatch in self._plan(batch):
                for rows in minibatch[self.ranks.rank]:
                    micro = batch.rows(rows)
                    logps, _ = self._forward(micro, policy, reference=reference)
                    out[rows, : logps.shape[1]] = logps
        return self.ranks.add(out)  # the update may deal the rows otherwise

    def _forward(self, micro: Batch, policy: Policy, *, reference: bool = False) -> tuple[Tensor, Tensor]:
        prefix: Prefix | None = None
        if self.shares_prompts and micro.mask_BT.numel():
            ids, select, targets, place, prefix = collate_shared(micro.rollouts, micro.mask_BT, self.ranks.device)
        else:
            ids, select, targets, place = collate(micro.rollouts, micro.mask_BT, self.ranks.device)
        logps_N, entropy_N = policy(ids, select, targets, self.config.temperature, reference, prefix)
        return scatter(logps_N, place), scatter(entropy_N, place)

    def _plan(self, batch: Batch, skip: Collection[int] = ()) -> list[list[list[list[int]]]]:
        lengths = [len(r.prompt_ids) + len(r.completion_ids) for r in batch.rollouts]
        return plan(
            lengths,
            minibatches=self.config.minibatches,
            ranks=self.ranks.size,
            max_tokens=self.max_tokens,
            groups=batch.group_B.tolist(),
            prompts=[len(r.prompt_ids) for r in batch.rollouts] if self.shares_prompts else None,
            skip=skip,
        )

    def score(self, pairs: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """Log-probs at temperature 1 of token_ids[start:] for each pair, on every rank (a collective)."""
        rollouts = [_as_rollout(token_ids, start) for token_ids, start in pairs]
        width = max(len(r.completion_ids) for r in rollouts)
        mask = torch.tensor([[i < len(r.completion_ids) for i in range(width)] for r in rollouts])
        with _evaluating(self.policy):
            ids, select, targets, place = collate(rollouts, mask, self.ranks.device)
            logps_N, _ = self.policy(ids, select, targets, 1.0)
        return [row[: len(r.completion_ids)].tolist() for row, r in zip(scatter(logps_N, place), rollouts, strict=True)]

    # -- the update ----------------------------------------------------------------------------------------------------

    def update(
        self,
        batch: Batch,
        objective: Objective,
        denominators: Denominators,
        merge: Merge,
        *,
        idle: Collection[int] = (),
    ) -> UpdateReport:
        """num_iterations passes over the batch, `minibatches` optimizer steps each.

        Args:
            objective: the loss of a micro-batch.
            denominators: counted over each mini-batch before its first backward pass.
            merge: adds up the metrics of micro-batches.
            idle: rows that add nothing to loss or gradient: they count in the denominators and are not passed through.

        Raises:
            PostrlError: out of memory even with half the token budget, or non-finite updates several times in a row.
        """
        report = UpdateReport()
        give_back_memory()  # what generation in this process has left
        for _ in range(self.config.num_iterations):
            for index, rows in enumerate(split(batch.group_B.tolist(), self.config.minibatches)):
                self._minibatch(batch, index, rows, objective, denominators, merge, set(idle), report)
        return report

    def _minibatch(
        self,
        batch: Batch,
        index: int,
        rows: list[int],
        objective: Objective,
        denominators: Denominators,
        merge: Merge,
        idle: set[int],
        report: UpdateReport,
    ) -> None:
        passed = [batch.rollouts[row] for row in rows if row not in idle]
        report.tokens += sum(len(r.prompt_ids) + len(r.completion_ids) for r in passed)
        if not batch.mask_BT[rows].any():  # nothing trainable: every rank counts the same and skips together
            return
        denoms = denominators(batch.rows(rows), self.ranks.size)

        def accumulate() -> Pairs:
            return self._accumulate(batch, self._plan(batch, idle)[index][self.ranks.rank], objective, merge, denoms)

        pairs = self._with_room(accumulate)
        self._step(pairs, report)
        give_back_memory()
        report.metrics = merge(report.metrics, pairs)

    def _with_room(self, accumulate: Callable[[], Pairs]) -> Pairs:
        """Forward and backward passes; when memory runs out, once more with half the token budget.

        Raises:
            PostrlError: it ran out again, or other ranks wait in a collective, which a retry here would hang.
        """
        try:
            return accumulate()
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            tried, peak = [self.max_tokens], peak_memory_gb(self.ranks.device)
        if self.ranks.size == 1:
            self._forget_gradients()
            self.max_tokens = max(1, self.max_tokens // 2)
            try:
                return accumulate()
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                tried.append(self.max_tokens)
        raise PostrlError(
            f"out of memory in the update with max_tokens_per_microbatch {' and again with '.join(map(str, tried))}, "
            f"peak {peak:.1f} GB",
            hint=f"lower --max-tokens-per-microbatch (now {tried[0]}) or --max-completion-length, "
            "or turn on --gradient-checkpointing",
        )

    def _forget_gradients(self) -> None:
        """After an update that broke off, so that it can begin again."""
        gc.collect()  # what the exception held: the graph of the pass that broke off
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.sharded:
            # The reset leaves gradients that were not reduced yet where they are. An empty pass reduces them, and with
            # the others they go.
            self.policy.reset_iter_state()  # type: ignore[operator]
            self.policy.set_requires_gradient_sync(True)  # type: ignore[operator]
            ids, select, targets, _ = collate([], torch.zeros(0, 0, dtype=torch.bool), self.ranks.device)
            self.policy(ids, select, targets, 1.0)[0].sum().backward()
        self.optimizer.zero_grad(set_to_none=True)

    def _accumulate(
        self,
        batch: Batch,
        micros: list[list[int]],
        objective: Objective,
        merge: Merge,
        denoms: Any,
    ) -> Pairs:
        pairs: Pairs = {}
        for i, rows in enumerate(micros):
            if self.sharded:
                self.policy.set_requires_gradient_sync(i == len(micros) - 1)  # type: ignore[operator]
            micro = batch.rows(rows)
            logps, entropies = self._forward(micro, self.policy)
            loss, metrics = objective(logps, entropies, micro, denoms)
            loss.backward()  # type: ignore[no-untyped-call]
            pairs = merge(pairs, metrics)
        return pairs

    def _step(self, pairs: Pairs, report: UpdateReport) -> None:
        trained = [p for p in self.policy.parameters() if p.requires_grad]
        limit = self.config.max_grad_norm or float("inf")
        norm = float(whole(torch.nn.utils.clip_grad_norm_(trained, limit)))
        loss = float(pairs["policy/loss"][0]) if "policy/loss" in pairs else 0.0
        broken = not (math.isfinite(norm) and math.isfinite(loss))
        if not self.ranks.max([float(broken)])[0]:  # all ranks step or none
            report.lr = learning_rate(self.config, self.updates, self.total_updates)
            for group in self.optimizer.param_groups:
                group["lr"] = report.lr
            with room_for("the optimizer's state", hint=SMALLER):
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

        Raises:
            PostrlError: an adapter that cannot be merged.
        """
        deltas = _lora_deltas(self.policy) if self.policy.has_adapter else {}
        if tied := deltas.keys() - {name for name, _ in self.policy.causal_lm.named_parameters()}:
            raise PostrlError(
                f"the adapter on {', '.join(sorted(tied))} cannot be merged for the sampler: the weight is the embedding, too",
                hint="leave lm_head out of --lora-target-modules, or untie the weights",
            )
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

    def adapter(self) -> Iterator[tuple[str, Tensor]]:
        """The LoRA adapter's tensors under their names in peft's files, whole (a collective)."""
        for name, parameter in self.policy.model.named_parameters():
            if "lora_" in name:
                yield name.replace(".default.", "."), whole(parameter.detach())

    def save_model(self, folder: str, tokenizer: Any) -> None:
        """An ordinary Hugging Face folder, or a peft adapter, that transformers and vLLM load (a collective).

        Raises:
            PostrlError: the disk is full or not writable.
        """
        state = self._state()
        if not self.ranks.is_main:
            return
        try:
            if self.policy.has_adapter:
                _save_adapter(self.policy.model, state, folder)
            else:
                self.policy.causal_lm.save_pretrained(folder, state_dict=state)
            tokenizer.save_pretrained(folder)
        except (OSError, SafetensorError) as error:
            raise PostrlError(
                f"the model could not be written to {folder}: {error}",
                hint="free space, then continue with --resume: the last checkpoint holds the same weights",
            ) from error

    def _state(self) -> dict[str, Tensor]:
        """Parameters and the buffers that are saved with them, whole, on the CPU of rank 0; empty on the others."""
        model = self.policy.model
        saved = model.state_dict().keys()
        buffers = ((name, buffer) for name, buffer in model.named_buffers() if name in saved)
        state = {}
        for name, tensor in chain(model.named_parameters(), buffers):
            gathered = whole(tensor.detach())
            if self.ranks.is_main:
                state[name] = gathered.cpu()
        return state


@contextmanager
def _evaluating(policy: Policy) -> Iterator[None]:
    """Without gradients and dropout. Afterwards a sharded policy is in shards again: a forward pass leaves the embedding
    and the head gathered, in the compute dtype, until a backward pass, and they would be pushed and saved like that."""
    was_training = policy.training
    policy.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        policy.train(was_training)
        if hasattr(policy, "reshard"):
            policy.reshard()  # type: ignore[operator]


def _save_adapter(model: Any, state: dict[str, Tensor], folder: str) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    # Never the embeddings: "auto" asks the hub whether they were resized.
    kept = get_peft_model_state_dict(model, state_dict=state, save_embedding_layers=False)
    model.peft_config["default"].save_pretrained(folder)
    save_file(kept, f"{folder}/adapter_model.safetensors", metadata={"format": "pt"})


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
            product: Tensor = (b.float() @ a.float()) * module.scaling["default"]
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
