"""A model under training, one rank's share of it: mini-batches, micro-batches, gradient and optimizer step. The policy
and the critic are trained alike.

What it promises: the update does not depend on micro-batch size, packing or rank count. Denominators are counted over
the whole mini-batch and summed over the ranks before the first backward pass.
"""

from __future__ import annotations

import gc
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from postrl.errors import PostrlError
from postrl.learning.body import Body, evaluating
from postrl.learning.memory import is_out_of_memory, peak_memory_gb, room_for
from postrl.learning.microbatch import plan, split
from postrl.learning.on_cpu import passes_on
from postrl.learning.optim import make_optimizer, make_schedule
from postrl.learning.reach import Reach
from postrl.learning.sharding import Ranks, shard, whole
from postrl.types import Batch, Mean, Means, Rollout

if TYPE_CHECKING:
    from postrl.config import GRPOConfig

M = TypeVar("M", bound=Body)
SMALLER = "train adapters (--lora-rank 16), use --optim sgd, or more GPUs (--num-processes)"
"""What helps where weights and optimizer do not fit."""
MAX_NONFINITE = 3
"""Skipped updates in a row after which the run stops."""


class Objective(Protocol):
    """What a model is trained for: all that an update asks of the algorithm."""

    @property
    def loss(self) -> Callable[..., tuple[Tensor, Means]]:
        """(what the model gives for each token, [b, T] each, micro-batch, denominators) -> loss to call backward on,
        metrics."""
        ...

    def denominators(self, batch: Batch, ranks: int, /) -> Any:
        """What the losses of a mini-batch of all ranks are divided by, the same for all its micro-batches."""
        ...

    def merge(self, totals: Means, metrics: Means, /) -> Means:
        """Metrics with those of one more micro-batch."""
        ...

    def idle_rows(self, batch: Batch) -> list[int]:
        """Rows that add nothing to loss or gradient: they count in the denominators and are not passed through."""
        ...

    def idle_metrics(self, batch: Batch) -> Means:
        """What such rows add to the metrics."""
        ...


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
        self.reach = Reach(name, ranks.device)
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

    def update(self, batch: Batch, objective: Objective) -> UpdateReport:
        """num_iterations passes over the batch, `minibatches` optimizer steps each (a collective).

        Raises:
            PostrlError: out of memory even with half the token budget.
        """
        report = UpdateReport()
        self.passes.give_back_memory()  # what generation in this process has left
        # One list for all ranks: sums on GPUs differ in their last bits, and ranks must make as many passes.
        idle = json.loads(self.ranks.broadcast(json.dumps(objective.idle_rows(batch)).encode()))
        for _ in range(self.config.num_iterations):
            for index, rows in enumerate(split(batch.group_B.tolist(), self.config.minibatches)):
                if batch.mask_BT[rows].any():  # else every rank counts the same and skips together
                    self._minibatch(batch, index, rows, set(idle), objective, report)
        self.reach.step_ended()
        return report

    def _minibatch(
        self, batch: Batch, index: int, rows: list[int], idle: set[int], objective: Objective, report: UpdateReport
    ) -> None:
        denoms = objective.denominators(batch.rows(rows), self.ranks.size)
        means = self._with_room(
            lambda: self._accumulate(batch, self._plan(batch, idle)[index][self.ranks.rank], objective, denoms)
        )
        if self.ranks.is_main:
            means = objective.merge(means, objective.idle_metrics(batch.rows([row for row in rows if row in idle])))
        self._step(means, report)
        self.passes.give_back_memory()
        report.metrics = objective.merge(report.metrics, means)
        passed = [batch.rollouts[row] for row in rows if row not in idle]
        report.tokens += sum(len(r.prompt_ids) + len(r.completion_ids) for r in passed)

    def _accumulate(self, batch: Batch, micros: list[list[int]], objective: Objective, denoms: Any) -> Means:
        means: Means = {}
        for i, rows in enumerate(micros):
            if self.sharded:
                self.module.set_requires_gradient_sync(i == len(micros) - 1)  # type: ignore[operator]
            micro = batch.rows(rows)
            outputs = map(self.reach.watched, self._outputs(micro.rollouts, micro.mask_BT))
            loss, metrics = objective.loss(*outputs, micro, denoms)
            loss.backward()  # type: ignore[no-untyped-call]
            means = objective.merge(means, metrics)
        return means

    def _step(self, means: Means, report: UpdateReport) -> None:
        trained = [p for p in self.module.parameters() if p.requires_grad]
        limit = self.config.max_grad_norm or float("inf")
        norm = float(whole(torch.nn.utils.clip_grad_norm_(trained, limit)))
        loss = float(means.get(f"{self.name}/loss", Mean()).total)
        broken = not (math.isfinite(norm) and math.isfinite(loss))
        found = self.ranks.max([float(broken), float(self.reach.take_asked())])
        broken, asked = map(bool, found)  # all ranks step or none
        if not broken:
            self.reach.updated(norm, asked)
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
        tried: list[int] = []
        for budget in [self.max_tokens, max(1, self.max_tokens // 2)][: 2 if self.ranks.size == 1 else 1]:
            if tried:
                self._forget_gradients()
            self.max_tokens = budget
            tried.append(budget)
            try:
                return accumulate()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
        raise PostrlError(
            f"out of memory in the update with max_tokens_per_microbatch {' and again with '.join(map(str, tried))}, "
            f"peak {peak_memory_gb(self.ranks.device):.1f} GB",
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
