"""Scores groups: calls every reward function in its worker and is the one place where their failures are counted."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from postrl.errors import RewardError, UsageError
from postrl.rewards.process import Outcome, RewardWorker
from postrl.rewards.registry import RewardSpec
from postrl.rewards.score import Score
from postrl.types import Group

RECENT_CALLS = 1000
Metric = tuple[float, float] | float


@dataclass
class Failures:
    """What went wrong with one function since the run began."""

    count: int = 0
    """Completions that it failed to score."""
    first: str = ""
    """The first traceback or message."""


class RewardRunner:
    """The run's reward functions, each in a worker process of its own, called for whole groups.

    Args:
        specs: the functions; two of the same name get `name` and `name_2`.
        weights: one a function, in the same order; empty: 1 each.
        timeout: seconds one call may take before its worker is killed and started anew.
        log_path: file for what the functions print; None: standard error.
        load_timeout: seconds a worker may take to import its function (which may load a model).

    It can be used from any event loop, and from several one after the other. Close it, or use it as a context manager.

    Raises:
        UsageError: the number of weights is not the number of functions.
    """

    def __init__(
        self,
        specs: Sequence[RewardSpec],
        *,
        weights: Sequence[float] = (),
        timeout: float,
        log_path: Path | None = None,
        load_timeout: float = 300.0,
    ) -> None:
        if weights and len(weights) != len(specs):
            raise UsageError(
                f"{len(weights)} reward_weights for {len(specs)} rewards", hint="give one weight for each reward"
            )
        self.names = _distinct([spec.name for spec in specs])
        self.weights = dict(zip(self.names, weights or [1.0] * len(specs)))
        self.log_path = log_path
        self.failures = {name: Failures() for name in self.names}
        self._latencies: dict[str, deque[float]] = {name: deque(maxlen=RECENT_CALLS) for name in self.names}
        self._seen: dict[str, set[str]] = {name: set() for name in self.names}
        self._workers = {
            name: RewardWorker(spec, name, timeout=timeout, load_timeout=load_timeout, log_path=log_path)
            for name, spec in zip(self.names, specs)
        }

    async def start(self) -> None:
        """Start all workers now instead of at their first call. Raises RewardError for a function that cannot load."""
        await asyncio.gather(*(worker.start() for worker in self._workers.values()))

    async def score(self, group: Group) -> None:
        """Fill `rewards`, `statuses` and `reward` of the group's rollouts.

        The functions run at the same time; `group.rewards` chooses among them. `reward` is the weighted sum of the
        scores that are numbers, and None when there is none.

        Raises:
            RewardError: the group names a function that the run does not have, or the runner was closed.
        """
        workers = self._chosen(group)
        count = len(group.rollouts)
        if not count:
            return
        inputs = as_inputs(group)
        outcomes = await asyncio.gather(*(worker.call(inputs, count) for worker in workers))
        for rollout in group.rollouts:
            rollout.rewards, rollout.statuses = {}, {}
        for worker, outcome in zip(workers, outcomes):
            self._note(worker.name, outcome)
            for rollout, score in zip(group.rollouts, outcome.scores, strict=True):
                rollout.rewards[worker.name], rollout.statuses[worker.name] = score.value, score.status
        for rollout in group.rollouts:
            rollout.reward = self._total(rollout.rewards)

    def check_budget(self, groups: Sequence[Group], budget: float) -> None:
        """Stop a run whose rewards fail too often.

        Raises:
            RewardError: a function failed for more than the share `budget` of the completions of these groups that it
                was to score; the message has its first traceback.
        """
        for name in self.names:
            scores = _scores(groups, name)
            failed = sum(score.failed for score in scores)
            if scores and failed > budget * len(scores):
                output = f"; what it printed is in {self.log_path}" if self.log_path else ""
                raise RewardError(
                    f"reward function {name} failed for {failed} of {len(scores)} completions of this batch "
                    f"({100 * failed / len(scores):.3g}%; reward_error_budget allows {100 * budget:.3g}%). "
                    f"Its first failure:\n{self.failures[name].first}",
                    hint=f"fix the function, or raise --reward-error-budget{output}",
                )

    def metrics(self, groups: Sequence[Group]) -> dict[str, Metric]:
        """Metrics of these groups: (sum, count) pairs, and `latency_p99` in seconds over the latest calls."""
        metrics: dict[str, Metric] = {}
        for name in self.names:
            scores = _scores(groups, name)
            values = [score.value for score in scores if score.value is not None]
            if values:
                metrics[f"reward/{name}/mean"] = (sum(values), float(len(values)))
            statuses = Counter(score.status for score in scores)
            self._seen[name] |= set(statuses)  # once seen, a status is reported when it is 0 as well
            for status in sorted(self._seen[name]) if scores else ():
                metrics[f"reward/{name}/status/{status}"] = (float(statuses[status]), float(len(scores)))
            if latencies := sorted(self._latencies[name]):
                metrics[f"reward/{name}/latency_p99"] = latencies[math.ceil(0.99 * len(latencies)) - 1]
        return metrics

    def close(self) -> None:
        """Kill all workers, calls in progress included. Safe to call twice."""
        for worker in self._workers.values():
            worker.close()

    def __enter__(self) -> RewardRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _chosen(self, group: Group) -> list[RewardWorker]:
        unknown = [name for name in group.rewards if name not in self._workers]
        if unknown:
            raise RewardError(
                f"{group.prompt_id} is to be scored by {', '.join(unknown)}; this run has {', '.join(self.names)}",
                hint="add it with --reward, or correct the row's rewards",
            )
        return [worker for name, worker in self._workers.items() if not group.rewards or name in group.rewards]

    def _note(self, name: str, outcome: Outcome) -> None:
        self._latencies[name].append(outcome.seconds)
        if outcome.error is None:
            return
        failures = self.failures[name]
        failures.count += sum(score.failed for score in outcome.scores)
        failures.first = failures.first or outcome.error
        if self.log_path is None:
            return
        with contextlib.suppress(OSError), self.log_path.open("a") as log:  # a full disk: it is counted all the same
            log.write(f"reward function {name} failed: {outcome.error}\n")

    def _total(self, rewards: dict[str, float | None]) -> float | None:
        scored = [self.weights[name] * value for name, value in rewards.items() if value is not None]
        return sum(scored) if scored else None


def as_inputs(group: Group) -> dict[str, list[Any]]:
    """The arguments of a reward function for one group, one item a rollout, in TRL's shape: conversational prompts are
    message lists and completions `[{"role": "assistant", "content": text}]`; plain ones are strings."""
    count = len(group.rollouts)
    chat = group.messages is not None
    texts = [rollout.completion for rollout in group.rollouts]
    columns = {name: [value] * count for name, value in group.columns.items()}
    return {
        **columns,
        "prompts": [group.messages if chat else group.prompt] * count,
        "completions": [[{"role": "assistant", "content": text}] if chat else text for text in texts],
        "completion_ids": [rollout.completion_ids for rollout in group.rollouts],
    }


def _scores(groups: Sequence[Group], name: str) -> list[Score]:
    rollouts = [rollout for group in groups for rollout in group.rollouts if name in rollout.statuses]
    return [Score(rollout.rewards[name], rollout.statuses[name]) for rollout in rollouts]


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Two lambdas have one name; metrics and columns need two."""
    distinct: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in distinct:
            number += 1
            candidate = f"{name}_{number}"
        distinct.append(candidate)
    return tuple(distinct)
