"""The line of a step, on a terminal and in a pipe."""

from __future__ import annotations

import io
import math

from rich.console import Console

from postrl.console import make_console
from postrl.run.step_line import StepLine, step_line

METRICS = {
    "reward/mean": 0.58,
    "reward/std": 0.31,
    "policy/loss": -0.001234,
    "completion/length_mean": 4.1,
    "policy/entropy": 1.2,
    "policy/grad_norm": 2.345,
    "time/step": 12.3,
    "time/generate": 5.1,
    "time/score": 0.01,
    "time/update": 6.8,
}


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def written(to: Console) -> str:
    return to.file.getvalue()  # type: ignore[attr-defined]


def test_a_step_is_one_line_with_what_people_look_at_first():
    assert step_line(3, 20, METRICS) == (
        "step 3/20 · reward 0.58 ±0.31 · loss -0.00123 · length 4.1 · entropy 1.20 · grad 2.3"
        " · 12.3 s (generate 5.1, update 6.8)"
    )


def test_what_was_not_measured_is_left_out_of_the_line():
    assert step_line(1, 2, {"reward/mean": None, "policy/loss": math.nan}) == "step 1/2"


def test_piped_steps_are_plain_lines_without_a_bar():
    pipe = io.StringIO()
    with StepLine(to=make_console(pipe)) as line:
        line.begin(0, 2)
        line.update(1, 2, {"reward/mean": 0.1})
        line.update(2, 2, {"reward/mean": 0.2})
    assert pipe.getvalue() == "step 1/2 · reward 0.10\nstep 2/2 · reward 0.20\n"


def test_a_terminal_gets_a_bar_that_starts_where_a_resumed_run_stands():
    to = terminal()
    with StepLine(to=to) as line:
        line.begin(3, 20)
        line.update(4, 20, {"reward/mean": 0.1})
        assert line.bar.tasks[0].completed == 4
    shown = written(to)
    assert "starting" in shown and "3/20" in shown and "training" in shown and "step 4/20 · reward 0.10" in shown


def test_the_bar_says_when_the_steps_begin_and_how_many_there_are():
    to = terminal()
    with StepLine(to=to) as line:
        line.begin(6, 12)
        (task,) = line.bar.tasks
        assert (task.description, task.completed, task.total) == ("training", 6, 12)


def test_lines_between_logging_steps_are_skipped_but_never_the_last_one():
    pipe = io.StringIO()
    with StepLine(every=2, to=make_console(pipe)) as line:
        for step in range(1, 6):
            line.update(step, 5, {})
    assert pipe.getvalue().split() == ["step", "2/5", "step", "4/5", "step", "5/5"]
