"""A run that was killed goes on as if nothing had happened: the same numbers and weights, to the bit."""

from __future__ import annotations

import re
import shutil
import signal

import pytest

from e2e.conftest import SIX_STEPS
from e2e.runs import reproducible, wait_for

pytestmark = pytest.mark.slow
IN_STEP_5 = str(4 + 2 * 4)
"""Reward calls before step 5: one for each prompt of the evaluation, then two groups a step."""
TO_THE_CHECKPOINT = (*SIX_STEPS, "--save-steps", "3", "--output-dir", "killed")


@pytest.fixture(scope="module")
def killed(place):
    """A run killed in its fifth of six steps, after the checkpoint of the third: (what it left, who survived)."""
    command = place.start("grpo", *TO_THE_CHECKPOINT, HOLD_AFTER_CALLS=IN_STEP_5)
    run = place.run("killed")
    wait_for("step 4", lambda: run.reached(4) or command.process.poll() is not None)
    family = [process.name() for process in command.family()]
    command.process.send_signal(signal.SIGKILL)
    finished = command.wait()
    shutil.copytree(run.path, place.folder / "as-killed")
    return finished, family


@pytest.fixture(scope="module")
def damaged(place, whole):
    """A run whose newest checkpoint lost half of a file, resumed."""
    shutil.copytree(place.folder / "whole", place.folder / "damaged")
    (file,) = place.run("damaged").path.glob("checkpoints/step_000006/learner/*.distcp")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return place.postrl("grpo", "--resume", "--output-dir", "damaged", "--max-steps", "8")


@pytest.fixture(scope="module")
def resumed(place, killed, request, side_by_side):
    beside = side_by_side.submit(place.postrl, "grpo", "--resume", "--output-dir", "killed")
    request.getfixturevalue("damaged")
    finished = beside.result()
    assert finished.code == 0, finished.err
    return finished


# -- the kill ----------------------------------------------------------------------------------------------------------


def test_no_process_outlives_a_killed_launcher(killed):
    finished, family = killed
    assert finished.code == -signal.SIGKILL
    assert len(family) >= 4  # reaper, accelerate, trainer, reward process
    assert finished.survivors == []


def test_the_killed_run_had_gone_beyond_its_checkpoint(place, killed):
    left = place.run("as-killed")
    assert (left.checkpoints(), left.steps()) == (["step_000003"], [1, 2, 3, 4])


# -- the resumed run ---------------------------------------------------------------------------------------------------


def test_it_says_where_it_goes_on(resumed):
    assert "continuing from step_000003: step 4 of 6" in resumed.err
    assert re.findall(r"^step (\d)/6 · ", resumed.err, re.MULTILINE) == ["4", "5", "6"]
    assert resumed.out.startswith("tiny after 6 steps")


def test_metrics_equal_those_of_the_run_that_was_never_killed(place, whole, resumed):
    expected, found = place.run("whole").metrics(), place.run("killed").metrics()
    assert [reproducible(row) for row in found] == [reproducible(row) for row in expected]


def test_weights_equal_those_of_the_run_that_was_never_killed_to_the_bit(place, whole, resumed):
    import torch

    expected, found = place.run("whole").weights(), place.run("killed").weights()
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_rollouts_after_the_checkpoint_are_set_aside_and_made_again(place, resumed):
    run, left = place.run("killed"), place.run("as-killed")
    (aside,) = (run.path / "abandoned").iterdir()
    assert [path.name for path in aside.iterdir()] == ["step_000004.parquet"]
    assert (aside / "step_000004.parquet").read_bytes() == (left.path / "rollouts/step_000004.parquet").read_bytes()
    names = sorted(path.name for path in (run.path / "rollouts").iterdir())
    assert names == ["eval_000000.parquet", "eval_000006.parquet", *(f"step_{n:06d}.parquet" for n in range(1, 7))]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_not_overwritten(place, whole):
    before = (place.folder / "whole" / "metrics.jsonl").read_bytes()
    finished = place.postrl("grpo", *SIX_STEPS, "--output-dir", "whole")
    assert finished.code == 2
    assert finished.err == (
        "error: the folder whole is not empty: it holds checkpoints, metrics.jsonl, model, rollouts\n"
        "hint: continue that run with --resume, or choose another --output-dir\n"
    )
    assert (place.folder / "whole" / "metrics.jsonl").read_bytes() == before


def test_a_setting_that_would_change_what_is_trained_is_named(place, whole):
    finished = place.postrl("grpo", "--resume", "--output-dir", "whole", "--learning-rate", "0.5", "--beta", "0.1")
    assert finished.code == 2
    assert finished.err.startswith(
        "error: the run in whole was started with other settings: beta: 0.0 -> 0.1; learning_rate: 0.01 -> 0.5\nhint: "
    )


def test_resume_without_a_folder_asks_for_it(place, whole, tmp_path):
    there = place.copy(tmp_path / "work")
    for run in there.folder.glob("*/config.yaml"):
        if run.parent.name != "whole":  # other tests' runs
            shutil.rmtree(run.parent)
    finished = there.postrl("grpo", *SIX_STEPS, "--resume")
    error, hint = finished.err.splitlines()
    assert (finished.code, error) == (2, "error: resume is on, and output_dir does not say which run to continue")
    assert hint.startswith(
        "hint: give its folder with --output-dir, or its settings with --config RUN/config.yaml; runs near: "
    )
    assert "whole" in hint


@pytest.mark.parametrize("given", [["--output-dir", "wohle"], [*SIX_STEPS, "--output-dir", "wohle"]])
def test_a_run_that_is_not_there_is_not_begun_in_silence(place, whole, given):
    finished = place.postrl("grpo", "--resume", *given)
    error, hint = finished.err.splitlines()
    assert (finished.code, error) == (
        2, f"error: there is no run to continue in {place.folder}/wohle: it does not exist"
    )  # fmt: skip
    assert hint.startswith("hint: runs near it: whole")
    assert not (place.folder / "wohle").exists()


def test_a_damaged_checkpoint_is_named_and_nothing_is_lost(place, damaged):
    assert damaged.code == 1
    assert "error: checkpoint damaged/checkpoints/step_000006 cannot be read into this model" in damaged.err
    assert "delete this checkpoint to use the one before" in damaged.err
    assert "Traceback" not in damaged.err
    assert damaged.survivors == []
    assert place.run("damaged").steps() == [1, 2, 3, 4, 5, 6]
