"""Signals as schedulers send them, to every process of a run, and what a run listens on while it goes."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path

import psutil
import pytest

from e2e.runs import REWARDED, Command, Finished, Workplace, wait_for

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "scripts" / "stopped.py"
LONG = (*REWARDED, "--max-steps", "5000")


def everyone(command: Command) -> list[psutil.Process]:
    return [command.process, *command.descendants()]


def signalled(command: Command, place: Workplace, name: str, number: signal.Signals) -> Finished:
    """The end of a run whose every process got a signal after its second step."""
    run = place.run(name)
    wait_for("two steps", lambda: run.reached(2) or command.ended())
    for process in everyone(command):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    return command.wait()


def stopped_well(place: Workplace, name: str, finished: Finished) -> int:
    """The last step, which must be saved."""
    run = place.run(name)
    last = run.steps()[-1]
    assert finished.survivors == []
    assert run.checkpoints()[-1] == f"step_{last:06d}", finished.err
    assert run.steps() == [*range(1, last + 1)]
    assert not (run.path / "stop").exists()
    return last


@pytest.fixture(scope="module")
def by_command(place, side_by_side):
    """SIGTERM to every process of `postrl grpo`: what it listened on, how it ended."""

    def story():
        command = place.start("grpo", *LONG, "--output-dir", "job")
        wait_for("a step", lambda: place.run("job").reached(1) or command.ended())
        listening = [c.laddr.ip for p in everyone(command) for c in p.net_connections() if c.status == "LISTEN"]
        return listening, signalled(command, place, "job", signal.SIGTERM)

    return side_by_side.submit(story)


@pytest.fixture(scope="module")
def by_script(place, by_command, side_by_side):
    """SIGHUP to every process of a script."""

    def story():
        argv = [sys.executable, str(SCRIPT), "tiny", "script-job"]
        command = Command(argv, cwd=place.folder, env=place.env)
        return signalled(command, place, "script-job", signal.SIGHUP)

    return side_by_side.submit(story)


def test_a_command_whose_every_process_is_told_to_end_saves_and_stops(place, by_command):
    _, finished = by_command.result()
    last = stopped_well(place, "job", finished)
    assert finished.code == 130, finished.err
    assert finished.err.count("SIGTERM: finishing the step, then saving") == 1
    assert f"go on from step {last} of 5000" in finished.out


def test_a_run_listens_on_the_loopback_interface_only(by_command):
    listening, _ = by_command.result()
    assert listening and {*listening} <= {"127.0.0.1", "::1"}


def test_a_script_whose_terminal_is_closed_saves_and_stops(place, by_script):
    finished = by_script.result()
    stopped_well(place, "script-job", finished)
    assert finished.code == -signal.SIGINT
    assert finished.err.count("SIGHUP: finishing the step, then saving") == 1
    assert finished.err.endswith("KeyboardInterrupt: SIGHUP\n")


def test_a_stopped_run_goes_on_without_a_terminal(place, by_command):
    """Standard output and error are gone, as after `| head` or a closed terminal: the run does not end by that."""
    _, finished = by_command.result()
    last = stopped_well(place, "job", finished)
    done = place.shell(
        f"(postrl grpo --config job/config.yaml --resume --max-steps {last + 2}; echo $? > code) 2>&1 | true; "
        "while [ ! -s code ]; do sleep 0.1; done"
    )
    assert done.code == 0
    assert (place.folder / "code").read_text() == "0\n"
    assert place.run("job").steps() == [*range(1, last + 3)]
