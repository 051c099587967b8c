"""The one rich console (stderr), the step line, progress and result tables.

Progress, notes and errors go to stderr, results to stdout. On a terminal there is colour and a bar with the time that
is left; piped, quiet lines without either. `NO_COLOR` is respected (by rich).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, cast

from rich.console import Console
from rich.text import Text

Metrics = Mapping[str, float | None]

_PIPED_WIDTH = 10_000
"""A pipe has no width: lines are never wrapped there, so that grep finds whole messages."""


def make_console(file: IO[str] | None = None) -> Console:
    """A console on `file` (default: stderr, looked up at each write) without markup or number highlighting.

    What cannot be written any more, to a closed terminal or a pipe whose reader has gone, is lost, and ends no run.
    """
    console = Console(file=cast(IO[str], Enduring(file)), highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


class Enduring:
    """A text stream that does not fail: that of `file`, or of whatever `sys.stderr` is at the time."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file = file

    def _stream(self) -> Any:
        stream = self._file or sys.stderr
        return getattr(stream, "rich_proxied_file", stream)  # rich puts a proxy of its own there while it draws a bar

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream().write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream().flush()

    def isatty(self) -> bool:
        with suppress(OSError, ValueError):
            return bool(self._stream().isatty())
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)


def let_go() -> None:
    """At the end of a program: what its streams still hold is written, or lost where nobody reads it any more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):  # so that Python, which flushes too, does not fail
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)


_console: Console | None = None


def console() -> Console:
    """The console of this process; it writes to whatever `sys.stderr` is at the time."""
    global _console
    if _console is None:
        _console = make_console()
    return _console


def note(message: str) -> None:
    """One quiet line: something worth knowing that needs no action."""
    console().print(Text(message))


def warn(message: str) -> None:
    """A line that starts with a yellow `warning:`."""
    console().print(Text.assemble(("warning: ", "bold yellow"), message))


def error(message: str, *, hint: str = "") -> None:
    """A line that starts with a red `error:`, and what to type next on a `hint:` line."""
    console().print(Text.assemble(("error: ", "bold red"), message))
    if hint:
        console().print(Text.assemble(("hint: ", "bold cyan"), hint))


def traceback() -> None:
    """The traceback of the exception that is being handled."""
    import traceback as tb

    console().print(Text(tb.format_exc().rstrip()))


# -- the step line ---------------------------------------------------------------------------------------------------


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

        with StepLine(total=20) as line:
            line.activity("generating")
            line.update(1, 20, metrics)

    Args:
        total: steps of the whole run; `done` of them were finished before (a resumed run).
        every: steps between lines; the bar moves each step.
    """

    def __init__(self, total: int, *, done: int = 0, every: int = 1, to: Console | None = None) -> None:
        self.console = to or console()
        self.every = every
        self.bar: Any = None
        self.task: Any = None
        if self.console.is_terminal:
            self.bar = _progress_bar(self.console)
            self.task = self.bar.add_task("starting", total=total, completed=done)

    def __enter__(self) -> StepLine:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin(self, done: int, total: int) -> None:
        """The steps begin, after `done` of them: what was started and loaded before does not count for the time left."""
        if self.bar is not None:
            self.bar.reset(self.task, completed=done, total=total, description="training")

    def activity(self, text: str) -> None:
        """What is going on inside the step, beside the bar; nothing when piped."""
        if self.bar is not None:
            self.bar.update(self.task, description=text)

    def update(self, step: int, total: int, metrics: Metrics) -> None:
        """Report a finished step."""
        if step % self.every == 0 or step == total:
            self.console.print(Text(step_line(step, total, metrics)))
        if self.bar is not None:
            self.bar.update(self.task, completed=step, total=total)


def _progress_bar(to: Console) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=to,
        transient=True,
    )


# -- results ---------------------------------------------------------------------------------------------------------


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, file: IO[str] | None = None) -> None:
    """Print a result table on stdout. The first column is text, the others are numbers, aligned right.

    Args:
        rows: cells of any type; floats are shown with three decimals, None as a dash.
    """
    from rich import box
    from rich.table import Table

    out = make_console(file or sys.stdout)
    grid = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD if out.is_terminal else None
    )
    for i, column in enumerate(columns):
        grid.add_column(Text(column), justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        grid.add_row(*[Text(_cell(value)) for value in row])
    out.print(grid)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
