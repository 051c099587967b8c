"""Stopping a run: Ctrl-C once, `touch RUN/stop`, Ctrl-C twice."""

from __future__ import annotations

import signal
import time

import pytest

from e2e.runs import REWARDED, wait_for

pytestmark = pytest.mark.slow
LONG = (*REWARDED, "--max-steps", "5000")


def reached(command, run, step):
    wait_for(f"step {step}", lambda: run.reached(step) or command.process.poll() is not None)


@pytest.fixture(scope="module")
def twice(place, side_by_side):
    """A future: Ctrl-C twice in the middle of step 3."""

    def story():
        command = place.start("grpo", *LONG, "--save-steps", "2", "--output-dir", "twice", HOLD_AFTER_CALLS="4")
        run = place.run("twice")
        wait_for("a checkpoint", lambda: run.checkpoints() or command.process.poll() is not None)
        command.process.send_signal(signal.SIGINT)
        wait_for("the first to be heard", lambda: "again stops" in command.said())
        time.sleep(1.1)  # within a second it would be one signal
        command.process.send_signal(signal.SIGINT)
        return command.wait()

    return side_by_side.submit(story)


@pytest.fixture(scope="module")
def once(place, twice):
    """Ctrl-C once, after the second step."""
    command = place.start("grpo", *LONG, "--output-dir", "long")
    reached(command, place.run("long"), 2)
    command.process.send_signal(signal.SIGINT)
    return command.wait()


@pytest.fixture(scope="module")
def stopped_at(place, once):
    """The step at which that run stopped."""
    return place.run("long").steps()[-1]


@pytest.fixture(scope="module")
def stop_file(place, once, stopped_at):
    """The same run resumed, and stopped again two steps later by `touch RUN/stop`."""
    command = place.start("grpo", "--resume", "--output-dir", "long")
    run = place.run("long")
    reached(command, run, stopped_at + 2)
    (run.path / "stop").touch()
    return command.wait()


# -- once --------------------------------------------------------------------------------------------------------------


def test_ctrl_c_finishes_the_step_saves_and_exits_with_130(place, once, stopped_at):
    assert once.code == 130, once.err
    assert "finishing the step, then saving; Ctrl-C again stops at once" in once.err
    run = place.run("long")
    assert f"step_{stopped_at:06d}" in run.checkpoints()
    assert (run.path / "rollouts" / f"step_{stopped_at:06d}.parquet").exists()
    assert run.weights()


def test_ctrl_c_leaves_no_process(once):
    assert once.survivors == []


def test_a_stopped_run_says_how_to_go_on(place, once, stopped_at):
    assert once.out.startswith(f"tiny after {stopped_at} steps\n")
    assert once.out.endswith(
        f"next:\n  postrl grpo --config {place.folder}/long/config.yaml --resume    # go on from step {stopped_at} of 5000\n"
    )


def test_a_stopped_run_goes_on_with_the_step_after(place, stop_file, stopped_at):
    assert f"continuing from step_{stopped_at:06d}: step {stopped_at + 1} of 5000" in stop_file.err
    steps = place.run("long").steps()
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] >= stopped_at + 2


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_stop_file_does_the_same_as_ctrl_c(place, stop_file):
    assert (stop_file.code, stop_file.survivors) == (130, [])
    run = place.run("long")
    last = run.steps()[-1]
    assert f"step_{last:06d}" in run.checkpoints()
    assert f"go on from step {last} of 5000" in stop_file.out
    assert not (run.path / "stop").exists()  # heard: it does not stop the next run too


# -- twice -------------------------------------------------------------------------------------------------------------


def test_ctrl_c_twice_stops_in_the_middle_of_the_step_and_leaves_no_process(place, twice):
    finished = twice.result()
    assert (finished.code, finished.survivors) == (130, [])
    assert place.run("twice").steps() == [1, 2]
    assert finished.out == ""
    assert "Traceback" not in finished.err


def test_ctrl_c_twice_says_from_where_the_run_can_go_on(place, twice):
    assert twice.result().err.endswith(
        f"stopped at once; continue from step_000002 with: postrl grpo --config {place.folder}/twice/config.yaml --resume\n"
    )
