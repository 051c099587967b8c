"""A model under training, one rank's share of it: mini-batches, micro-batches, gradient and optimizer step. The policy
and the critic are trained alike.

What it promises: the update does not depend on micro-batch size, packing or rank count. Denominators are counted over
the whole mini-batch and summed over the ranks before the first backward pass.
"""

from __future__ import annotations

import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from postrl.errors import PostrlError
from postrl.learning.body import Body, evaluating
from postrl.learning.memory import is_out_of_memory, peak_memory_gb, room_for
from postrl.learning.microbatch import plan, split
from postrl.learning.on_cpu import passes_on
from postrl.learning.optim import make_optimizer, make_schedule
from postrl.learning.sharding import Ranks, shard, whole
from postrl.types import Batch, Mean, Means, Rollout

if TYPE_CHECKING:
    from postrl.config import GRPOConfig

M = TypeVar("M", bound=Body)
Objective = Callable[..., tuple[Tensor, Means]]
"""(what the model gives for each token, [b, T] each, micro-batch, denominators) -> loss to call backward on, metrics."""
Denominators = Callable[[Batch, int], Any]
"""(mini-batch of all ranks, number of ranks) -> what its losses are divided by, the same for all its micro-batches."""
Merge = Callable[[Means, Means], Means]

SMALLER = "train adapters (--lora-rank 16), use --optim sgd, or more GPUs (--num-processes)"
"""What helps where weights and optimizer do not fit."""
MAX_NONFINITE = 3
"""Skipped updates in a row after which the run stops."""


@dataclass
class UpdateReport:
    """What one phase of updates did."""

    metrics: Means = field(default_factory=dict)
    """This rank's, over all micro-batches."""
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    """Optimizer steps that were skipped because loss or gradient was not finite."""
    optimizer_steps: int = 0
    lr: float = 0.0
    tokens: int = 0
    """Prompt and completion tokens that went through the forward pass, all ranks."""
    critic: UpdateReport | None = None
    """The same of the critic, where there is one."""


class Optimizing(ABC, Generic[M]):
    """Holds a model and its optimizer, on one rank.

    Args:
        module: on the CPU, weights as they are to be trained.
        name: what its metrics are called by; its loss is `NAME/loss`.
        total_updates: optimizer steps of the whole run, for the learning-rate schedule.

    Raises:
        PostrlError: there is no room for the weights, or the model's head is not understood.
    """

    def __init__(
        self, module: M, *, name: str, config: GRPOConfig, ranks: Ranks, dtype: str, total_updates: int
    ) -> None:
        self.name, self.config, self.ranks = name, config, ranks
        self.learning_rate = make_schedule(config, total_updates)
        self.updates = 0
        self.max_tokens = config.microbatch_tokens(ranks.device.type)
        self.nonfinite_in_a_row = 0
        self.passes = passes_on(ranks.device, getattr(torch, dtype))
        if self.passes.recompute if config.gradient_checkpointing is None else config.gradient_checkpointing:
            _checkpoint_activations(module.model)
        self.passes.fit(module.model)
        with room_for(f"the weights of the {name}", hint=SMALLER):
            self.module: M = module.to(ranks.device)
        self.module.check_head()
        self.sharded = shard(self.module, ranks, getattr(torch, dtype))
        self.passes.begin(self.module, sharded=self.sharded)
        self.module.train()
        self.optimizer = make_optimizer(self.module.parameters(), config)

    # -- forward passes ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _outputs(self, rollouts: Sequence[Rollout], mask_BT: Tensor) -> tuple[Tensor, ...]:
        """What the model gives for each token of the mask, [b, T] each: the first arguments of an objective."""

    def _for_all_rows(self, batch: Batch, module: Body, look: Callable[[Batch], Tensor]) -> Tensor:
        """What `look` reads from `module` in each micro-batch, put together to [B, T] on every rank (a collective)."""
        out = torch.zeros(batch.mask_BT.shape, device=self.ranks.device)
        with evaluating(module):
            for minibatch in self._plan(batch):
                for rows in minibatch[self.ranks.rank]:
                    found = look(batch.rows(rows))
                    out[rows, : found.shape[1]] = found
        return self.ranks.add(out)  # the update may deal the rows otherwise

    def _plan(self, batch: Batch, skip: Collection[int] = ()) -> list[list[list[list[int]]]]:
        lengths = [len(r.prompt_ids) + len(r.completion_ids) for r in batch.rollouts]
        return plan(
            lengths,
            minibatches=self.config.minibatches,
            ranks=self.ranks.size,
            max_tokens=self.max_tokens,
            groups=batch.group_B.tolist(),
            packing=self.passes.packing(batch),
            skip=skip,
        )

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
        self.passes.give_back_memory()  # what generation in this process has left
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

        def accumulate() -> Means:
            return self._accumulate(batch, self._plan(batch, idle)[index][self.ranks.rank], objective, merge, denoms)

        means = self._with_room(accumulate)
        self._step(means, report)
        self.passes.give_back_memory()
        report.metrics = merge(report.metrics, means)

    def _accumulate(
        self, batch: Batch, micros: list[list[int]], objective: Objective, merge: Merge, denoms: Any
    ) -> Means:
        means: Means = {}
        for i, rows in enumerate(micros):
            if self.sharded:
                self.module.set_requires_gradient_sync(i == len(micros) - 1)  # type: ignore[operator]
            micro = batch.rows(rows)
            loss, metrics = objective(*self._outputs(micro.rollouts, micro.mask_BT), micro, denoms)
            loss.backward()  # type: ignore[no-untyped-call]
            means = merge(means, metrics)
        return means

    def _step(self, means: Means, report: UpdateReport) -> None:
        trained = [p for p in self.module.parameters() if p.requires_grad]
        limit = self.config.max_grad_norm or float("inf")
        norm = float(whole(torch.nn.utils.clip_grad_norm_(trained, limit)))
        loss = float(means.get(f"{self.name}/loss", Mean()).total)
        broken = not (math.isfinite(norm) and math.isfinite(loss))
        if not self.ranks.max([float(broken)])[0]:  # all ranks step or none
            report.lr = self.learning_rate(self.updates)
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

    # -- full memory ---------------------------------------------------------------------------------------------------

    def _with_room(self, accumulate: Callable[[], Means]) -> Means:
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
            self.module.reset_iter_state()  # type: ignore[operator]
            self.module.set_requires_gradient_sync(True)  # type: ignore[operator]
            self._outputs([], torch.zeros(0, 0, dtype=torch.bool))[0].sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)


def _checkpoint_activations(model: Any) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if hasattr(model, "enable_input_require_grads") and hasattr(model, "peft_config"):
        model.enable_input_require_grads()
