"""Ten of ten: a run of the command line and one of a script, stopped in each of the ways in which schedulers, build tools and
terminals do it. Finished steps are saved, nothing is left, and the run goes on from there."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.runs import REWARDED, Command, Workplace, wait_for

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "scripts" / "stopped.py"
DOORS = ("command", "script")
WAYS = ("timeout", "make", "group", "hangup", "usr1")


def line(door: str, name: str, *, steps: int | None = None) -> list[str]:
    """The run as a user types it; `steps`: resumed, and to end there."""
    if door == "script":
        return [sys.executable, str(SCRIPT), "tiny", name, *([str(steps)] if steps else [])]
    if steps:
        return [sys.executable, "-m", "postrl", "grpo", "--config", f"{name}/config.yaml", "--resume", f"--max-steps={steps}"]  # fmt: skip
    return [sys.executable, "-m", "postrl", "grpo", *REWARDED, "--max-steps", "5000", "--output-dir", name]


def started(place: Workplace, way: str, door: str, name: str) -> Command:
    argv = line(door, name)
    if way == "timeout":  # it is told to end itself, and passes that on: to its child, and to its whole group
        argv = ["timeout", "-s", "TERM", "3600", *argv]
    if way == "make":
        (place.folder / f"{name}.mk").write_text(f"run:\n\t{shlex.join(argv)}\n")
        argv = ["make", "-f", f"{name}.mk"]
    return Command(argv, cwd=place.folder, env=place.env)


def stop(way: str, command: Command) -> None:
    if way in ("timeout", "make"):
        command.process.send_signal(signal.SIGTERM)
    elif way == "group":  # the command leads a session of its own
        os.killpg(command.process.pid, signal.SIGTERM)
    else:  # every process of the job
        for process in [command.process, *command.descendants()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGHUP if way == "hangup" else signal.SIGUSR1)


@pytest.fixture(scope="module")
def stories(place: Workplace, side_by_side: Any) -> dict[tuple[str, str], Any]:
    def story(way: str, door: str) -> None:
        name = f"{way}-{door}"
        run, command = place.run(name), started(place, way, door, name)
        wait_for("two steps", lambda: run.reached(2) or command.ended())
        stop(way, command)
        finished = command.wait()  # timeout and make may end before the run does
        _, left = psutil.wait_procs(command.family(), timeout=60)
        last = run.steps()[-1]
        assert left == [] and last >= 2
        assert run.checkpoints()[-1:] == [f"step_{last:06d}"], finished.err
        assert "finishing the step, then saving" in finished.err
        resumed = Command(line(door, name, steps=last + 1), cwd=place.folder, env=place.env).wait()
        assert (resumed.code, resumed.survivors) == (0, []), resumed.err
        assert run.steps() == [*range(1, last + 2)]

    return {(way, door): side_by_side.submit(story, way, door) for way in WAYS for door in DOORS}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_stopped_saves_its_steps_and_goes_on(stories: Any, way: str, door: str) -> None:
    stories[way, door].result()
