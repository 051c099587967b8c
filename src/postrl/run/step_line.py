"""The lines of a run on the screen, one a step, and the bar below them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from postrl.config.setting import in_steps
from postrl.console import console, progress_bar

Metrics = Mapping[str, float | None]


def step_line(step: int, total: int, metrics: Metrics) -> str:
    """One step as one line; what was not measured is left out.

    >>> step_line(3, 20, {"reward/mean": 0.58, "reward/std": 0.31, "time/step": 12.3, "time/update": 6.8})
    'step 3/20 · reward 0.58 ±0.31 · 12.3 s (update 6.8)'
    """
    parts = [f"step {step}/{total}"]
    if (reward := _number(metrics, "reward/mean")) is not None:
        std = _number(metrics, "reward/std")
        parts.append(f"reward {reward:.2f}" + ("" if std is None else f" ±{std:.2f}"))
    for label, key, digits in _LINE:
        if (value := _number(metrics, key)) is not None:
            parts.append(f"{label} {value:{digits}}")
    if (seconds := _number(metrics, "time/step")) is not None:
        parts.append(f"{seconds:.1f} s{_phases(metrics)}")
    return " · ".join([*parts, *bottleneck(metrics)])


BALANCED = 0.1
"""Share of a step that either side may stand still without being called slow."""


def bottleneck(metrics: Metrics) -> list[str]:
    """Which side is the slow one, in words, where servers generate beside the trainer; else nothing.

    >>> bottleneck({"time/step": 60.0, "time/wait_for_rollouts": 20.0, "time/samplers_idle": 0.0})
    ['bottleneck: generation (trainer waited 20.0 s)']
    """
    keys = ("time/step", "time/wait_for_rollouts", "time/samplers_idle")
    step, waited, idle = (_number(metrics, key) for key in keys)
    if step is None or waited is None or idle is None:
        return []
    if max(waited, idle) <= BALANCED * step:
        return ["balanced"]
    if waited > idle:
        return [f"bottleneck: generation (trainer waited {waited:.1f} s)"]
    return [f"bottleneck: training (servers idle {idle:.1f} s)"]


_LINE = (
    ("loss", "policy/loss", ".3g"),
    ("length", "completion/length_mean", ".1f"),
    ("entropy", "policy/entropy", ".2f"),
    ("grad", "policy/grad_norm", ".2g"),
    ("kl", "policy/kl_ref", ".2g"),
    ("staleness", "rollout/staleness_mean", ".1f"),
)
_PHASES = ("generate", "score", "assess", "update", "sync")


def _phases(metrics: Metrics) -> str:
    shown = [(name, _number(metrics, f"time/{name}")) for name in _PHASES]
    parts = [f"{name} {seconds:.1f}" for name, seconds in shown if seconds is not None and seconds >= 0.05]
    return f" ({', '.join(parts)})" if parts else ""


def _number(metrics: Metrics, key: str) -> float | None:
    value = metrics.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


class StepLine:
    """The lines of a run, one a step, and on a terminal a bar below them with the time that is left.

        with StepLine() as line:
            line.begin(0, 20)
            line.update(1, 20, metrics)

    Args:
        every: steps between lines, or below 1 a share of all; the bar moves each step.
    """

    def __init__(self, *, every: float = 1, to: Console | None = None) -> None:
        from rich.progress import TextColumn, TimeRemainingColumn

        self.console, self.every = to or console(), every
        self.bar = progress_bar(self.console, TextColumn("left"), TimeRemainingColumn())
        self.task = self.bar.add_task("starting", total=None)

    def __enter__(self) -> StepLine:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def begin(self, done: int, total: int) -> None:
        """The steps begin, after `done` of them: what was started and loaded before does not count for the time left."""
        self.bar.reset(self.task, completed=done, total=total, description="training")

    def update(self, step: int, total: int, metrics: Metrics) -> None:
        """Report a finished step."""
        if step % in_steps(self.every, total) == 0 or step == total:
            self.console.print(Text(step_line(step, total, metrics)))
        self.bar.update(self.task, completed=step, total=total)
