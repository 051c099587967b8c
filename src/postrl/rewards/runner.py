"""Scores groups: calls every reward function in its processes and is the one place where their failures are counted."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postrl.errors import RewardError, UsageError
from postrl.rewards.builtin import BUILTINS, SHAPING, VERIFIERS, task_weights
from postrl.rewards.calling.pool import RewardPool
from postrl.rewards.calling.process import Outcome
from postrl.rewards.declared import GIVEN, missing_columns
from postrl.rewards.registry import RewardSpec, distinct
from postrl.rewards.rows import rows_by_data
from postrl.rewards.score import Score
from postrl.rewards.text import opened_by
from postrl.types import Group, Mean, Means, Metrics, Prompt, Rollout

if TYPE_CHECKING:
    from postrl.config import GRPOConfig

RECENT_CALLS = 1000
MOST_NOTES = 100
MARGIN = 10.0
"""Seconds that a call of a built-in may take beside its completions."""


@dataclass
class Failures:
    """What went wrong with one function since the run began."""

    count: int = 0
    """Completions that it failed to score."""
    first: str = ""
    """The first traceback or message."""


@dataclass
class Function:
    """One reward function of the run, and what is known of its calls."""

    name: str
    weight: float
    pool: RewardPool
    builtin: bool
    by_step: bool
    """Called once with all completions of a step instead of once a group."""
    verifies: bool = False
    """Reads the answer behind the reasoning, so that it has to know where that begins."""
    failures: Failures = field(default_factory=Failures)
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_CALLS))
    statuses: set[str] = field(default_factory=set)
    """Those seen so far: they are reported when they are 0 as well."""
    logged: Means = field(default_factory=dict)
    """What came by `log_metric` since the last report."""
    cost: float = 0.0
    """Sum of what was logged as `cost` since the rollout worker was started, that of evaluations included."""
    notes: set[str] = field(default_factory=set)
    misused_logs: int = 0


class RewardRunner(contextlib.AbstractContextManager["RewardRunner"]):
    """The run's reward functions, each in processes of its own.

    Args:
        specs: the functions; two of the same name get `name` and `name_2`.
        weights: one a function, in the same order; empty: 1 each.
        timeout: seconds one call may take before its process is killed and started anew. Built-ins limit each completion
            themselves; their calls may take longer when they have many.
        processes: of each of the user's functions, 0: they are called in this one; built-ins have a number of their own.
        batch: "group": functions are called with the completions of one prompt; "step": the user's functions are called
            with those of all groups of a step, which `score_step` does.
        settings: settings of the run that built-ins have options for, such as max_completion_length.
        log_path: file for what the functions print; None: standard error.
        load_timeout: seconds a process may take to import its function (which may load a model).

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
        processes: int = 1,
        batch: str = "group",
        settings: Mapping[str, Any] | None = None,
        log_path: Path | None = None,
        load_timeout: float = 300.0,
    ) -> None:
        if weights and len(weights) != len(specs):
            raise UsageError(
                f"{len(weights)} reward_weights for {len(specs)} rewards", hint="give one weight for each reward"
            )
        self.names = tuple(distinct([spec.name for spec in specs]))
        self.log_path = log_path
        self.functions: dict[str, Function] = {}
        for name, spec, weight in zip(self.names, specs, weights or [1.0] * len(specs)):
            row = BUILTINS[str(spec.payload)] if spec.kind == "builtin" else None
            pool = RewardPool(
                spec,
                name,
                processes=row.processes(spec.options) if row else processes,
                timeout=partial(_call_limit, timeout, row.seconds if row else 0.0),
                settings=settings or {},
                load_timeout=load_timeout,
                log_path=log_path,
            )
            self.functions[name] = Function(
                name, weight, pool, row is not None, batch == "step" and row is None,
                verifies=row is not None and spec.payload in (*VERIFIERS, "cosine"),
            )  # fmt: skip
        shaping = {name for name, spec in zip(self.names, specs) if spec.kind == "builtin" and spec.payload in SHAPING}
        self.task = task_weights({name: function.weight for name, function in self.functions.items()}, shaping)
        """The functions that say whether a completion is what was asked for, with their weights."""
        self.judging = [name for name in self.names if name not in shaping]
        """Those whose verdicts count: that a form is good makes no answer right."""

        self._named = [name for name, spec in zip(self.names, specs) if spec.kind != "pickle"]

    @classmethod
    def for_run(cls, specs: Sequence[RewardSpec], config: GRPOConfig, *, log_path: Path | None = None) -> RewardRunner:
        """As the settings of a run say; the specs have their options already (`registry.with_options`)."""
        return cls(
            specs,
            weights=config.reward_weights,
            timeout=config.reward_timeout,
            processes=config.reward_workers,
            batch=config.reward_batch,
            settings={name: getattr(config, name) for name in config.part("reward")},
            log_path=log_path,
        )

    @property
    def failures(self) -> dict[str, Failures]:
        """What went wrong with each function so far."""
        return {name: function.failures for name, function in self.functions.items()}

    async def start(self) -> None:
        """Start all processes now instead of at their first call. Raises RewardError for a function that cannot load."""
        await asyncio.gather(*(function.pool.start() for function in self.functions.values()))

    def check_columns(self, prompts: Sequence[Prompt]) -> None:
        """Find columns that functions of the user's cannot do without and a data set does not have; where only some of its
        rows have one, the others get None. For processes that have started.

        Raises:
            UsageError: a function asks for one of them.
        """
        for function in self.functions.values():
            required = [] if function.builtin else [name for name in function.pool.required if name not in GIVEN]
            for data, rows in rows_by_data(prompts if required else ()).items():
                rows = [row for row in rows if not row.rewards or function.name in row.rewards]
                has = dict.fromkeys(name for row in rows for name in row.columns)
                missing = [name for name in required if name not in has]
                if rows and missing:
                    raise missing_columns(function.name, missing, data, has)
                for row, name in product(rows, required):
                    row.columns.setdefault(name, None)

    def versions(self) -> dict[str, str]:
        """The version of each function that a file, a module or a built-in name stands for, once its process has started.
        (Pickles of one callable need not be the same bytes.)"""
        return {name: said for name in self._named if (said := self.functions[name].pool.version)}

    async def score(self, group: Group) -> None:
        """Fill `rewards`, `statuses`, `extra`, `reward` and `correct` of the group's rollouts, and the group's
        `reward_versions`.

        The functions run at the same time; `group.rewards` chooses among them. `reward` is the weighted sum of the
        scores that are numbers; None when there is none, or when a function failed. Functions that are called once a
        step are left to `score_step`.

        Raises:
            RewardError: the group names a function that the run does not have, or the runner was closed.
        """
        for rollout in group.rollouts:
            rollout.rewards, rollout.statuses, rollout.extra = {}, {}, {}
            rollout.reward = rollout.correct = None
        group.reward_versions = {}
        await self._call([(function, [group]) for function in self._chosen(group) if not function.by_step])

    async def score_step(self, groups: Sequence[Group]) -> None:
        """Score all groups of a step, which `score` has seen before, by the functions that are called once a step.

        Raises:
            RewardError: as for `score`.
        """
        later = [function for function in self.functions.values() if function.by_step]
        await self._call([(function, [g for g in groups if function in self._chosen(g)]) for function in later])

    async def score_all(self, groups: Sequence[Group]) -> None:
        """`score` each group, then `score_step`."""
        await asyncio.gather(*map(self.score, groups))
        await self.score_step(groups)

    def check_budget(self, groups: Sequence[Group], budget: float) -> None:
        """Stop a run whose rewards fail too often.

        Raises:
            RewardError: a function failed for more than the share `budget` of the completions of these groups that it
                was to score; the message has its first traceback.
        """
        for name, function in self.functions.items():
            scores = _scores(groups, name)
            failed = sum(score.failed for score in scores)
            if scores and failed > budget * len(scores):
                output = f"; what it printed is in {self.log_path}" if self.log_path else ""
                raise RewardError(
                    f"reward function {name} failed for {failed} of {len(scores)} completions of this batch "
                    f"({100 * failed / len(scores):.3g}%; reward_error_budget allows {100 * budget:.3g}%). "
                    f"Its first failure:\n{function.failures.first}",
                    hint=f"fix the function, or raise --reward-error-budget{output}",
                )

    def metrics(self, groups: Sequence[Group]) -> Metrics:
        """Metrics of these groups and of what was logged since the last report: means, and plain numbers:
        `latency_p99` in seconds over the latest calls, `cost_total`, `restarts` and `misused_logs` since the start."""
        metrics: Metrics = {}
        for name, function in self.functions.items():
            for metric, value in self._metrics_of(function, _scores(groups, name)):
                metrics[f"reward/{name}/{metric}"] = value
        self.forget_logged()
        return metrics

    def forget_logged(self) -> None:
        """Leave what was logged until now out of the next report, such as that of an evaluation."""
        for function in self.functions.values():
            function.logged = {}

    def close(self) -> None:
        """Kill all processes, calls in progress included. Safe to call twice."""
        for function in self.functions.values():
            function.pool.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _chosen(self, group: Group) -> list[Function]:
        unknown = [name for name in group.rewards if name not in self.functions]
        if unknown:
            raise RewardError(
                f"{group.prompt_id} is to be scored by {', '.join(unknown)}; this run has {', '.join(self.names)}",
                hint="add it with --reward, or correct the row's rewards",
            )
        return [function for name, function in self.functions.items() if not group.rewards or name in group.rewards]

    async def _call(self, calls: Sequence[tuple[Function, Sequence[Group]]]) -> None:
        """One call of each function, at the same time, with all completions of its groups."""
        calls = [(function, groups) for function, groups in calls if any(group.rollouts for group in groups)]
        counts = [sum(len(group.rollouts) for group in groups) for _, groups in calls]
        outcomes = await asyncio.gather(
            *(
                function.pool.call(as_inputs(*groups, whole=function.verifies), count)
                for (function, groups), count in zip(calls, counts)
            )
        )
        for (function, groups), outcome in zip(calls, outcomes):
            self._note(function, outcome)
            self._record(function, groups, outcome)

    def _record(self, function: Function, groups: Sequence[Group], outcome: Outcome) -> None:
        """What a call gave, to the rollouts it was about."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        for i, (rollout, score) in enumerate(zip(rollouts, outcome.scores, strict=True)):
            rollout.rewards[function.name], rollout.statuses[function.name] = score.value, score.status
            rollout.extra.update({column: values[i] for column, values in outcome.extra.items()})
            rollout.reward, rollout.correct = self._total(rollout), rollout.verdict(self.judging)
        for group in groups:
            if outcome.version:
                group.reward_versions[function.name] = outcome.version

    def _note(self, function: Function, outcome: Outcome) -> None:
        """Count what went wrong, and write it into the log."""
        function.latencies.append(outcome.seconds)
        for metric, mean in outcome.metrics.items():
            function.logged[metric] = function.logged.get(metric, Mean()) + mean
        function.cost += float(outcome.metrics.get("cost", Mean()).total)
        for note in outcome.notes:
            function.misused_logs += note.startswith("log_")
            if note not in function.notes and len(function.notes) < MOST_NOTES:  # once a run
                function.notes.add(note)
                self._write(f"reward function {function.name}: {note}")
        failed = [score for score in outcome.scores if score.failed]
        function.failures.count += len(failed)
        if not failed:
            return
        error = outcome.error or f"{len(failed)} of {len(outcome.scores)} completions: {failed[0].status}"
        function.failures.first = function.failures.first or error
        self._write(f"reward function {function.name} failed: {error}")

    def _write(self, line: str) -> None:
        if self.log_path is None:
            return
        with (
            contextlib.suppress(OSError),
            self.log_path.open("a", encoding="utf-8", errors="backslashreplace") as log,
        ):  # a full disk: it is counted all the same
            log.write(f"{line}\n")

    def _total(self, rollout: Rollout) -> float | None:
        """The weighted sum. A function that failed voids it: left out, its part would be a 0 that nobody gave."""
        if any(score.failed for score in map(Score, rollout.rewards.values(), rollout.statuses.values())):
            return None
        values = [(function.weight, rollout.rewards.get(name)) for name, function in self.functions.items()]
        scored = [weight * value for weight, value in values if value is not None]
        return sum(scored) if scored else None

    def _metrics_of(self, function: Function, scores: Sequence[Score]) -> Iterator[tuple[str, Mean | float]]:
        """(name, value) of each metric of a function; `scores` are those of the step."""
        values = [score.value for score in scores if score.value is not None]
        if values:
            yield "mean", Mean.of(values)
        statuses = Counter(score.status for score in scores)
        function.statuses |= set(statuses)
        for status in sorted(function.statuses) if scores else ():
            yield f"status/{status}", Mean(float(statuses[status]), float(len(scores)))
        yield from function.logged.items()
        if latencies := sorted(function.latencies):
            yield "latency_p99", latencies[math.ceil(0.99 * len(latencies)) - 1]
        if function.cost:
            yield "cost_total", function.cost
        if function.pool.restarts:
            yield "restarts", float(function.pool.restarts)
        if function.misused_logs:
            yield "misused_logs", float(function.misused_logs)


def as_inputs(*groups: Group, whole: bool = False) -> dict[str, list[Any]]:
    """The arguments of a reward function, one item a rollout, in TRL's shape: conversational prompts are message lists
    and completions `[{"role": "assistant", "content": text}]`; plain ones are strings. A column that only some of the
    groups have is None for the others.

    Args:
        whole: completions that go on in a reasoning which their prompt has opened begin with its tag.
    """
    columns = dict.fromkeys(name for group in groups for name in group.columns)
    inputs: dict[str, list[Any]] = {
        name: [group.columns.get(name) for group in groups for _ in group.rollouts] for name in columns
    }
    prompts = ([group.prompt if group.messages is None else group.messages] * len(group.rollouts) for group in groups)
    return {
        **inputs,
        "prompts": list(chain.from_iterable(prompts)),
        "completions": [
            _completion(group, f"{head}{rollout.completion}")
            for group in groups
            for head in [opened_by(group.prompt) if whole else ""]
            for rollout in group.rollouts
        ],
        "completion_ids": [rollout.completion_ids for group in groups for rollout in group.rollouts],
    }


def _completion(group: Group, text: str) -> Any:
    return text if group.messages is None else [{"role": "assistant", "content": text}]


def _call_limit(timeout: float, seconds: float, count: int) -> float:
    """What a call with `count` completions may take; `seconds`: what the function lets one completion take, 0: unknown."""
    return max(timeout, count * seconds + MARGIN) if seconds else timeout


def _scores(groups: Sequence[Group], name: str) -> list[Score]:
    rollouts = [rollout for group in groups for rollout in group.rollouts if name in rollout.statuses]
    return [Score(rollout.rewards[name], rollout.statuses[name]) for rollout in rollouts]
