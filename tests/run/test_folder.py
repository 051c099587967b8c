"""The run's folder: whether a run may begin in it, and the small files between its processes."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from postrl.config import GRPOConfig
from postrl.errors import DataError, PostrlError, UsageError, error_from_wire, error_to_wire
from postrl.run.folder import MAY_CHANGE_ON_RESUME, RunFolder, checkpoints_in, kept_settings, with_run_folder
from postrl.run.messages import ProtocolError


def config(**options) -> GRPOConfig:
    return GRPOConfig(model="m", dataset=["arithmetic"], **options)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "run")


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_run_without_a_name_is_called_after_model_data_and_time():
    named = with_run_folder(GRPOConfig(model="Qwen/Qwen2.5-7B", dataset=["gsm8k=0.5", "data/my.jsonl"]))
    assert re.fullmatch(r"Qwen2.5-7B-gsm8k-my-\d{8}-\d{6}", named.run_name)
    assert named.output_dir == f"runs/{named.run_name}"


def test_names_that_are_given_stay():
    named = with_run_folder(config(run_name="n", output_dir="o"))
    assert (named.run_name, named.output_dir) == ("n", "o")


def test_resuming_needs_to_know_what():
    with pytest.raises(UsageError, match="output_dir does not say which run"):
        with_run_folder(config(resume=True))


# -- beginning and continuing ------------------------------------------------------------------------------------------


def test_a_new_run_gets_a_folder_with_its_settings(folder):
    folder.prepare(config(seed=7))
    assert GRPOConfig.from_yaml(folder.config).seed == 7
    assert folder.logs.is_dir()


@pytest.mark.parametrize("left", ["metrics.jsonl", "rollouts", "checkpoints", "notes.txt"])
def test_a_folder_with_a_run_in_it_is_refused_without_resume(folder, left):
    folder.prepare(config())
    (folder.path / left).touch()
    with pytest.raises(UsageError, match=f"is not empty: it holds {left}") as caught:
        folder.prepare(config())
    assert "--resume" in caught.value.hint
    folder.prepare(config(resume=True))


def test_what_a_failed_start_leaves_is_no_run(folder):
    folder.prepare(config())
    folder.note("hello")
    folder.request_stop()
    (folder.path / "accelerate.yaml").touch()
    folder.weights.mkdir()
    folder.prepare(config(seed=1))
    assert GRPOConfig.from_yaml(folder.config).seed == 1
    assert not folder.stop_requested()


def test_settings_that_make_another_run_cannot_change_on_resume(folder):
    folder.prepare(config(learning_rate=1e-5))
    with pytest.raises(UsageError, match=r"learning_rate: 1e-05 -> 0.001") as caught:
        folder.prepare(config(learning_rate=1e-3, resume=True))
    assert "config.yaml" in caught.value.hint
    assert GRPOConfig.from_yaml(folder.config).learning_rate == 1e-5


def test_settings_that_only_say_how_long_and_where_may_change(folder):
    folder.prepare(config(max_steps=5))
    folder.prepare(config(max_steps=10, save_steps=1, num_processes=2, resume=True))
    kept = GRPOConfig.from_yaml(folder.config)
    assert (kept.max_steps, kept.num_processes, kept.resume) == (10, 2, False)


def test_what_is_trained_by_which_rule_on_what_may_not_change():
    fixed = {"model", "dataset", "reward", "algorithm", "learning_rate", "seed", "prompts_per_step", "temperature"}
    assert not MAY_CHANGE_ON_RESUME & fixed and fixed < GRPOConfig().to_dict().keys()


def test_a_place_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PostrlError, match="cannot write the settings to the run folder") as caught:
        RunFolder(tmp_path / "file" / "run").prepare(config())
    assert "--output-dir" in caught.value.hint


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RuntimeError("I/O: No space left on device (os error 28)")],
)
def test_a_full_disk_is_one_error_whoever_meets_it(folder, error):
    with (
        pytest.raises(PostrlError, match=r"cannot write rollouts to the run folder .*: .*No space left on device"),
        folder.writing("rollouts"),
    ):
        raise error


def test_other_errors_while_writing_stay_what_they_are(folder):
    with pytest.raises(KeyError), folder.writing("rollouts"):
        raise KeyError("a bug")


# -- is there a run to continue? ---------------------------------------------------------------------------------------


def checkpoint(folder: RunFolder, step: int, **state) -> Path:
    path = folder.checkpoints / f"step_{step:06d}"
    path.mkdir(parents=True)
    (path / "state.json").write_text(json.dumps({"step": step, **state}))
    return path


def refused(folder: RunFolder, **options) -> UsageError:
    with pytest.raises(UsageError) as caught:
        folder.check(config(resume=True, **options))
    return caught.value


def test_where_there_is_no_run_nothing_is_resumed_and_the_runs_near_it_are_named(tmp_path, monkeypatch):
    for name in ("gsm8k-7b", "other"):
        RunFolder(tmp_path / name).prepare(config())
    (tmp_path / "no-run").mkdir()
    monkeypatch.chdir(tmp_path / "no-run")  # `make demo` may have left a run where the tests are started
    error = refused(RunFolder(tmp_path / "gsm8k-7B"))
    assert error.message == f"there is no run to continue in {tmp_path}/gsm8k-7B: it does not exist"
    assert error.hint == f"runs near it: {tmp_path}/gsm8k-7b, {tmp_path}/other; leave --resume out to start a new run"
    assert not (tmp_path / "gsm8k-7B").exists()


@pytest.mark.parametrize("inside", ["checkpoints", "checkpoints/step_000002", "model"])
def test_who_names_a_part_of_a_run_hears_the_name_of_the_run(tmp_path, inside):
    folder = RunFolder(tmp_path / "mine")
    folder.prepare(config())
    (folder.path / inside).mkdir(parents=True)
    error = refused(RunFolder(folder.path / inside))
    assert error.message.startswith(f"{folder.path / inside} lies in the run {folder.path}")
    assert f"--output-dir {folder.path} --resume" in error.hint


def test_the_folder_of_all_runs_is_not_one_of_them(tmp_path):
    runs = tmp_path / "runs"  # beside tmp_path are the runs of other tests
    RunFolder(runs / "one").prepare(config())
    error = refused(RunFolder(runs))
    assert "neither checkpoints nor config.yaml" in error.message and f"{runs}/one" in error.hint


def test_a_run_without_a_checkpoint_yet_may_be_resumed(folder):
    folder.prepare(config())
    folder.prepare(config(resume=True))


def test_a_checkpoint_alone_is_enough_to_go_on_from(folder):
    checkpoint(folder, 3)
    folder.prepare(config(resume=True))


def test_a_checkpoint_that_was_copied_in_part_is_not_taken_for_none(folder):
    folder.prepare(config())
    (folder.checkpoints / "step_000010" / "learner").mkdir(parents=True)
    assert "step_000010 without state.json" in refused(folder).message
    checkpoint(folder, 5)
    folder.check(config(resume=True))


def test_a_finished_run_whose_checkpoints_are_gone_is_not_started_over(folder):
    folder.prepare(config())
    folder.model.mkdir()
    error = refused(folder)
    assert "its checkpoints are gone" in error.message and f"--model {folder.model}" in error.hint


def test_a_checkpoint_of_ones_choice_needs_no_run_in_the_folder(folder, tmp_path):
    path = checkpoint(RunFolder(tmp_path / "other"), 4)
    folder.check(config(resume=True), path)
    with pytest.raises(UsageError, match="is not a checkpoint"):
        folder.check(config(resume=True), tmp_path)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"output_dir .*/file is a file"):
            RunFolder(tmp_path / "file").check(config(resume=resume))


def test_settings_that_were_edited_in_config_yaml_are_noticed_by_the_checkpoint(folder):
    started = config(learning_rate=1e-5, output_dir=str(folder.path))
    folder.prepare(started)
    checkpoint(folder, 3, settings=kept_settings(started, folder))
    text = folder.config.read_text()
    folder.config.write_text(
        text.replace("\nlearning_rate: 1.0e-05", "\nlearning_rate: 0.5").replace("max_steps: -1", "max_steps: 9")
    )
    edited = GRPOConfig.from_yaml(folder.config, resume=True)
    assert (edited.learning_rate, edited.max_steps) == (0.5, 9)
    with pytest.raises(UsageError, match=r"settings: learning_rate: 1e-05 -> 0.5\n"):
        folder.check(edited)


def test_a_checkpoint_of_a_newer_version_is_refused(folder):
    checkpoint(folder, 3, settings={"time_travel": True})
    assert "does not know: time_travel" in refused(folder).message


def test_a_file_that_moved_is_the_same_and_another_one_is_not(folder, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    for place in ("old", "new"):
        (tmp_path / place / "rows.jsonl").touch()
    checkpoint(folder, 3, settings={"dataset": [f"{tmp_path}/old/rows.jsonl"]})
    there = GRPOConfig(model="m", dataset=[f"{tmp_path}/new/rows.jsonl"], resume=True)
    with pytest.raises(UsageError, match="dataset"):
        folder.check(there)
    (tmp_path / "old" / "rows.jsonl").unlink()
    folder.check(there)


# -- rewinding ---------------------------------------------------------------------------------------------------------


def test_what_came_after_the_step_moves_away_and_nothing_else(folder):
    for name in ("rollouts/step_000001.parquet", "rollouts/step_000002.parquet", "rollouts/step_000010.parquet",
                 "rollouts/eval_000000.parquet", "rollouts/eval_000002.parquet", "rollouts/eval_000003.parquet",
                 "checkpoints/step_000002/state.json", "checkpoints/step_000003/state.json"):  # fmt: skip
        path = folder.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folder.rewind(2)
    assert sorted(path.name for path in folder.rollouts.iterdir()) == [
        "eval_000000.parquet", "eval_000002.parquet", "step_000001.parquet", "step_000002.parquet"
    ]  # fmt: skip
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step_000002"]
    (abandoned,) = (folder.path / "abandoned").iterdir()
    assert sorted(path.name for path in abandoned.iterdir()) == [
        "eval_000003.parquet",
        "step_000003",
        "step_000010.parquet",
    ]


def test_nothing_to_rewind_leaves_nothing(folder):
    folder.rewind(3)
    assert not folder.path.exists()


# -- small files between processes -------------------------------------------------------------------------------------


def test_a_stop_is_asked_for_and_heard(folder):
    folder.prepare(config())
    assert not folder.stop_requested()
    folder.request_stop()
    assert folder.stop_requested()
    folder.take_stop()
    assert not folder.stop_requested()


def test_progress_is_unknown_before_training(folder):
    folder.prepare(config())
    assert folder.progress() is None
    folder.save_progress(3, 20)
    assert folder.progress() == (3, 20)
    folder.prepare(config(resume=True))
    assert folder.progress() is None


def test_an_error_of_a_child_arrives_once_with_its_trace(folder, capsys):
    folder.prepare(config())
    with pytest.raises(DataError), folder.reporting_errors("worker"):
        raise DataError("no such column", hint="see --prompt-column")
    left = folder.take_error("worker")
    error = error_from_wire(left)
    assert (type(error), error.message, error.hint) == (DataError, "no such column", "see --prompt-column")
    assert "raise DataError" in left["traceback"]
    assert "raise DataError" in capsys.readouterr().err
    assert folder.take_error("worker") is None


LOST = {"kind": "RuntimeError", "message": "RuntimeError: [gloo] Connection closed by peer", "hint": "", "exit_code": 1}


@pytest.mark.parametrize("order", ["cause first", "cause last"])
def test_of_several_ranks_the_one_that_can_say_why_is_heard(folder, order):
    cause = error_to_wire(PostrlError("out of memory", hint="lower it"))
    for error in [cause, LOST] if order == "cause first" else [LOST, cause]:
        folder.save_error("trainer", error)
    assert folder.take_error("trainer") == cause


def test_of_errors_that_say_nothing_the_first_stays(folder):
    folder.save_error("trainer", {**LOST, "message": "KeyError: 'x'"})
    folder.save_error("trainer", LOST)
    assert folder.take_error("trainer")["message"] == "KeyError: 'x'"


def test_a_lost_connection_is_an_error_that_says_why(folder):
    folder.save_error("trainer", error_to_wire(ProtocolError("unix:/w closed the connection")))
    folder.save_error("trainer", LOST)
    assert error_from_wire(folder.take_error("trainer")).message == "unix:/w closed the connection"


def test_an_error_that_an_earlier_run_left_is_not_taken_for_this_ones(folder):
    folder.save_error("trainer", LOST)
    folder.prepare(config())
    assert folder.take_error("trainer") is None


def test_a_note_is_one_line(folder):
    folder.note("one\ntwo")
    folder.note("three ☃")
    assert (Path(folder.logs) / "notes.log").read_text(encoding="utf-8") == "one two\nthree ☃\n"


def test_of_checkpoints_the_newest_is_the_one_of_the_highest_step(tmp_path):
    for name in ("step_999999", "step_1000000", "step_999999.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text("{}")
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step_999999", "step_1000000"]
