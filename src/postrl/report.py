"""What a step leaves behind: a line of metrics.jsonl, stored rollouts, a line on the screen, callbacks, trackers."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from postrl.algorithms.reduce import finish, is_maximum, masked_row_mean
from postrl.console import one_line
from postrl.errors import PostrlError, UsageError
from postrl.learning.memory import peak_memory_gb
from postrl.learning.optimizing import MAX_NONFINITE, UpdateReport
from postrl.learning.sharding import Ranks
from postrl.rollout.store import write_rollouts
from postrl.run.alarms import Alarms
from postrl.run.metrics import MetricsWriter, rollout_summary
from postrl.run.step_line import StepLine
from postrl.run.trackers import Trackers
from postrl.scripts.callbacks import Callbacks
from postrl.scripts.results import TrainResult
from postrl.session import Session
from postrl.types import Batch, Group, Mean, Means, Rollout, reported

F = TypeVar("F", bound=Callable[..., Any])


def timed(name: str) -> Callable[[F], F]:
    """Adds the seconds of a verb to `self.times[name]`."""

    def wrap(verb: F) -> F:
        @functools.wraps(verb)
        def call(self: Any, *args: Any) -> Any:
            start = time.monotonic()
            try:
                return verb(self, *args)
            finally:
                self.times[name] = self.times.get(name, 0.0) + time.monotonic() - start

        return call  # type: ignore[return-value]

    return wrap


class Reporter:
    """Turns what the verbs return into files and lines. All ranks call it; rank 0 writes."""

    def __init__(self, session: Session, callbacks: Callbacks) -> None:
        self.session, self.callbacks = session, callbacks
        self.last: dict[str, float | None] = {}
        config, folder = session.config, session.folder
        self._alarms = Alarms(config)
        self._metrics = MetricsWriter(folder.metrics)
        self._trackers = Trackers(
            config.report_to if session.ranks.is_main else [],
            run_name=config.run_name or "",
            project=config.project,
            folder=folder.path,
            note=folder.note,
            settings=config.to_dict(),
        )
        self.close = self._trackers.close
        self._started = time.monotonic()
        self._line: StepLine | None = None

    @contextmanager
    def at_terminal(self) -> Iterator[None]:
        """Draw the step line here. Under the launcher it is the launcher that draws, from the run folder."""
        s = self.session
        if not s.ranks.is_main:
            yield
            return
        with StepLine(every=s.config.logging_steps) as self._line:
            self._line.begin(s.first_step - 1, s.total_steps)
            yield
        self._line = None

    def begin(self) -> None:
        """Training begins, or goes on; before the first step comes an evaluation."""
        s = self.session
        if s.ranks.is_main:
            s.folder.save_progress(s.first_step - 1, s.total_steps)
            for line in self._alarms.at_start():
                s.note(line)
            if self.last and s.first_step > s.total_steps:
                s.note(
                    f"all {s.total_steps} steps are trained, and train() has nothing left to do; to go on, a new run starts from "
                    f"the model in {s.folder.model}"
                )
            parts = {"model": s.learner.policy.model, "processing_class": s.tokenizer, "optimizer": s.learner.optimizer}
            self.callbacks.on_train_begin(s.total_steps, s.first_step - 1, **parts)
        if s.has_evaluation and s.first_step == 1:
            metrics = self.evaluate(0)
            self._started = time.monotonic()
            if s.ranks.is_main:
                self.last = self._metrics.write(0, metrics)
                self._trackers.log(0, self.last)

    def end(self) -> None:
        """Training ended, at its last step or where a stop was asked for."""
        if self.session.ranks.is_main:
            if why := self.session.folder.take_stop():
                self.session.folder.note(f"stopped after this step: {why}")
            self.callbacks.on_train_end()

    def step_begins(self) -> None:
        if self.session.ranks.is_main:
            self.callbacks.on_step_begin()

    def step_ended(self, step: int) -> None:
        s = self.session
        if s.ranks.is_main:
            self.callbacks.on_step_end(step, reported(s.rollout_metrics).get("epoch"))
            if self.callbacks.control.should_evaluate and not s.has_evaluation:
                raise UsageError(
                    "a callback asked for an evaluation, and there is no evaluation set", hint="give eval_dataset"
                )

    def saved(self) -> None:
        if self.session.ranks.is_main:
            self.callbacks.on_save()

    def log(self, logs: Mapping[str, float]) -> None:
        """Metrics of the script's own, for callbacks and trackers."""
        self.callbacks.log(logs)
        self._trackers.log(self.callbacks.state.global_step, logs)

    def result(self) -> TrainResult:
        """What train() returns."""
        return TrainResult(self.last, self.callbacks.summary, self.session.first_step - 1)

    def step(
        self,
        step: int,
        groups: Sequence[Group],
        batch: Batch,
        stats: UpdateReport,
        times: Mapping[str, float],
        extra: Mapping[str, float],
    ) -> None:
        """Report a finished step.

        Raises:
            PostrlError: updates were not finite several times in a row; the batches are stored like all others.
        """
        s = self.session
        means = reduce_over_ranks(stats.metrics | (stats.critic.metrics if stats.critic else {}), s.ranks)
        (peak,) = s.ranks.max([peak_memory_gb(s.ranks.device)])
        if s.ranks.is_main:
            self._store(step, groups, batch)
            metrics = {
                **rollout_summary(batch.rollouts, s.config.num_iterations * s.config.minibatches),
                **finish({**batch.metrics, **means}),
                **_update_summary(stats, s.policy_waits),
                **{f"time/{name}": seconds for name, seconds in times.items()},
                **reported(s.rollout_metrics),
                **extra,
                "weights/version": float(batch.version),
                "memory/peak_gb": peak,
            }
            self._write(step, metrics, batch, stats)
        self._check_finite(stats, step)

    def _store(self, step: int, groups: Sequence[Group], batch: Batch) -> None:
        advantages = [] if batch.advantages is None else masked_row_mean(batch.advantages, batch.mask_BT).tolist()
        for rollout, advantage in zip(batch.rollouts, advantages, strict=True):
            rollout.advantage = advantage
        folder = self.session.folder
        with folder.writing("rollouts"):
            write_rollouts(folder.rollouts, step, "train", groups)

    def _write(self, step: int, metrics: dict[str, float], batch: Batch, stats: UpdateReport) -> None:
        s = self.session
        metrics["time/step"] = time.monotonic() - self._started
        self._started = time.monotonic()
        _add_throughput(metrics, stats)
        with s.folder.writing("metrics"):
            self.last = self._metrics.write(step, metrics)
            s.folder.save_progress(step, s.total_steps)
        self._trackers.log(step, self.last)
        if self._line is not None:
            self._line.update(step, s.total_steps, self.last)
        if s.is_due("logging_steps", step):
            for rollout in batch.rollouts[: s.config.log_completions]:
                s.folder.note(sample_line(rollout, s.tokenizer))
        for line in self._alarms.see(self.last):
            s.folder.note(line)
        self.callbacks.on_log(self.last)

    def evaluate(self, step: int) -> dict[str, float]:
        """The evaluation set under the weights that the samplers hold now, its completions stored; metrics, on rank 0 only."""
        s = self.session
        if s.source is None:
            return {}
        groups, metrics = s.source.evaluate(s.version)
        with s.folder.writing("rollouts"):
            write_rollouts(s.folder.rollouts, step, "eval", groups)
        values = reported(metrics)
        self.callbacks.on_evaluate(values)
        return values

    def should_stop(self) -> bool:
        """Whether somebody asked for a stop (Ctrl-C, RUN/stop, a callback); all ranks agree."""
        return self._agreed(self.session.folder.stop_requested() or self.callbacks.control.should_training_stop)

    def should_evaluate(self) -> bool:
        """Whether a callback asked for an evaluation; all ranks agree."""
        return self._agreed(self.callbacks.control.should_evaluate)

    def should_save(self) -> bool:
        """Whether a callback asked for a checkpoint; all ranks agree."""
        return self._agreed(self.callbacks.control.should_save)

    def _agreed(self, mine: bool) -> bool:
        ranks = self.session.ranks
        return bool(ranks.max([float(mine and ranks.is_main)])[0])

    def _check_finite(self, stats: UpdateReport, step: int) -> None:
        parts = [part for part in (self.session.learner, self.session.learner.critic) if part is not None]
        broken = max(parts, key=lambda part: part.nonfinite_in_a_row)
        skipped = stats.skipped + (stats.critic.skipped if stats.critic else 0)
        if skipped and broken.nonfinite_in_a_row >= MAX_NONFINITE:
            self._agreed(True)  # the end of one rank is the end of all: not before rank 0 has stored the batch
            raise PostrlError(
                f"loss or gradient of the {broken.name} was not finite in {broken.nonfinite_in_a_row} updates in a row, at step {step}",
                hint=f"the batches are in {self.session.folder.rollouts} (--replay trains on them again); lower --learning-rate, "
                "or use --dtype float32",
            )


def sample_line(rollout: Rollout, tokenizer: Any) -> str:
    """A completion behind its prompt, with its reward, shortened to a line: of the prompt the end, of the completion both.
    Nothing in it moves the cursor."""
    asked, said = (" ".join(str(tokenizer.decode(ids)).split()) for ids in (rollout.prompt_ids, rollout.completion_ids))
    reward = "none" if rollout.reward is None else f"{rollout.reward:.3g}"
    return one_line(f"  {shortened(asked, 0, 80)} -> {shortened(said, 160, 160)} (reward {reward})")


def shortened(text: str, first: int, last: int) -> str:
    """The first and last characters of a text, where it has more."""
    return text if len(text) <= first + last else f"{text[:first]} ... {text[len(text) - last :]}"


def reduce_over_ranks(metrics: Means, ranks: Ranks) -> Means:
    """Metrics of one rank -> of all: maxima by MAX, the rest by SUM."""
    out: Means = {}
    for reduce, names in (
        (ranks.max, [name for name in sorted(metrics) if is_maximum(name)]),
        (ranks.sum, [name for name in sorted(metrics) if not is_maximum(name)]),
    ):
        flat = iter(reduce([float(x) for name in names for x in metrics[name]]))
        out |= {name: Mean(*pair) for name, pair in zip(names, zip(flat, flat))}
    return out


def _update_summary(stats: UpdateReport, policy_waits: bool) -> dict[str, float]:
    summary = {} if policy_waits else _part_summary("policy", stats)
    if stats.critic is not None:
        summary |= {**_part_summary("critic", stats.critic), "critic/warmup": float(policy_waits)}
    return summary


def _part_summary(name: str, stats: UpdateReport) -> dict[str, float]:
    summary = {f"{name}/nonfinite": float(stats.skipped), f"{name}/lr": stats.lr}
    if stats.grad_norms:
        summary[f"{name}/grad_norm"] = statistics.fmean(stats.grad_norms)
    return summary


def _add_throughput(metrics: dict[str, float], stats: UpdateReport) -> None:
    if update := metrics.get("time/update"):
        tokens = max(stats.tokens, stats.critic.tokens if stats.critic else 0)
        metrics["throughput/train_tokens_per_s"] = tokens / update
