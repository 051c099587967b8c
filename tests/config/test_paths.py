"""Which part of a setting is a path: said once, in the field's metadata."""

from __future__ import annotations

import functools
import os
import pwd
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from postrl.config import GRPOConfig
from postrl.config.paths import change_paths, same
from postrl.config.settings import Settings
from postrl.errors import UsageError

FIELDS = {f.name: f for f in fields(Settings)}


def marked(path: str) -> str:
    return f"<{path}>"


@pytest.fixture
def base(tmp_path):
    for name in ("tiny", "data", "org/there"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a=b.jsonl").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("model", "tiny", "<tiny>"),
        ("model", "Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("model", "org/there", "<org/there>"),
        ("model", "smollm2-135m", "smollm2-135m"),
        ("model", "", ""),
        ("model", "~/m", "<~/m>"),
        ("critic_model", "runs/x/model", "<runs/x/model>"),
        ("critic_model", None, None),
        ("chat_template", "t.jinja", "<t.jinja>"),
        ("dataset", ["gsm8k=0.5", "rows.jsonl=2", "data", "org/rows", "openai/gsm8k"],
         ["gsm8k=0.5", "<rows.jsonl>=2", "<data>", "org/rows", "openai/gsm8k"]),
        ("dataset_path", ["rows.csv"], ["<rows.csv>"]),
        ("dataset_path", ["gsm8k=rows.csv", "a=b.jsonl", "org/rows=~/r"], ["gsm8k=<rows.csv>", "<a=b.jsonl>", "org/rows=<~/r>"]),
        ("eval_dataset", "gsm8k:test", "gsm8k:test"),
        ("eval_dataset", "rows.jsonl", "<rows.jsonl>"),
        ("eval_dataset", "data:test", "<data>:test"),
        ("reward", ["math", "my.py:score", "pkg.mod:score", "reward_model:tiny", "reward_model:org/m", "judge"],
         ["math", "<my.py>:score", "pkg.mod:score", "reward_model:<tiny>", "reward_model:org/m", "judge"]),
        ("reward_arg", ["judge.rubric=r.txt", "judge.model=gpt", "reward_model.model=tiny", "mine.rubric=r.txt"],
         ["judge.rubric=<r.txt>", "judge.model=gpt", "reward_model.model=<tiny>", "mine.rubric=r.txt"]),
        ("algorithm", "grpo", "grpo"),
        ("algorithm", "~/my.py:Mine", "<~/my.py>:Mine"),
        ("output_dir", "runs/x", "<runs/x>"),
        ("replay", None, None),
        ("run_name", "a/b", "a/b"),
        ("seed", 3, 3),
    ],
)  # fmt: skip
def test_paths_are_told_from_names(base, name, value, expected):
    assert change_paths(FIELDS[name], value, marked, base) == expected


# -- a file's paths ----------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    """configs/run.yaml with files beside it, and another working folder."""
    for name in ("configs/model", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("rows.jsonl", "mine.py", "own.py", "t.jinja"):
        (tmp_path / "configs" / name).touch()
    (tmp_path / "configs" / "run.yaml").write_text(
        "model: model\ndataset: [rows.jsonl=2, gsm8k]\nreward: [mine.py:score, math]\nchat_template: t.jinja\n"
        "algorithm: own.py:Own\noutput_dir: runs/a\nreplay: ../earlier\neval_dataset: rows.jsonl\ndataset_path: gsm8k=rows.jsonl\n"
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


@pytest.mark.parametrize("how", ["absolute", "relative"])
def test_paths_in_a_file_start_from_its_folder(project, how):
    folder = project / "configs" if how == "absolute" else Path("../configs")
    config = GRPOConfig.from_yaml(folder / "run.yaml")
    assert config.dataset == [f"{folder}/rows.jsonl=2", "gsm8k"]
    assert config.reward == [f"{folder}/mine.py:score", "math"]
    assert config.dataset_path == [f"gsm8k={folder}/rows.jsonl"]
    assert (config.model, config.chat_template) == (f"{folder}/model", f"{folder}/t.jinja")
    assert (config.algorithm, config.eval_dataset) == (f"{folder}/own.py:Own", f"{folder}/rows.jsonl")
    assert (config.output_dir, config.replay) == (f"{folder}/runs/a", f"{folder}/../earlier")


def test_beside_the_file_they_stay_as_they_are_written(project, monkeypatch):
    monkeypatch.chdir(project / "configs")
    config = GRPOConfig.from_yaml("run.yaml")
    assert (config.model, config.output_dir, config.reward) == ("model", "runs/a", ["mine.py:score", "math"])


def test_what_only_the_working_folder_has_is_refused_with_how_to_write_it(project):
    (project / "elsewhere" / "mine2.py").touch()
    (project / "configs" / "run.yaml").write_text("reward: mine2.py:score\n")
    with pytest.raises(UsageError) as caught:
        GRPOConfig.from_yaml("../configs/run.yaml")
    assert "reward is mine2.py, and paths in a config file start from its folder" in caught.value.message
    assert "write ../elsewhere/mine2.py there, or give --reward on the command line" in caught.value.hint
    given = GRPOConfig.from_yaml("../configs/run.yaml", reward=["mine2.py:score"])
    assert given.reward == ["mine2.py:score"]


def test_a_saved_config_means_the_same_anywhere(project, monkeypatch):
    run = Path("../run")
    run.mkdir()
    (project / "elsewhere" / "rows.csv").touch()
    settings = GRPOConfig(model="org/m", dataset=["rows.csv"], reward=["./f.py:g"], output_dir="../run")
    settings.save(run / "config.yaml")
    monkeypatch.chdir("/")
    read = GRPOConfig.from_yaml(project / "run" / "config.yaml")
    assert read.dataset == [f"{project}/elsewhere/rows.csv"]
    assert read.reward == [f"{project}/elsewhere/f.py:g"]
    assert read.model == "org/m"


def test_a_run_goes_on_where_its_settings_lie_now(project, monkeypatch):
    run = project / "run"
    (run / "checkpoints" / "step_000001").mkdir(parents=True)
    GRPOConfig(output_dir=str(run)).save(run / "config.yaml")
    assert yaml.safe_load((run / "config.yaml").read_text())["output_dir"] == "."
    moved = run.rename(project / "über den Berg")
    assert GRPOConfig.from_yaml(moved / "config.yaml").output_dir == str(moved)
    monkeypatch.chdir(moved)
    assert GRPOConfig.from_yaml("config.yaml").output_dir == "."


def test_a_run_of_an_older_version_goes_on_where_it_lies_too(project):
    run = project / "run"
    (run / "checkpoints" / "step_000001").mkdir(parents=True)
    (run / "config.yaml").write_text(f"output_dir: {project}/gone\n")
    assert GRPOConfig.from_yaml(run / "config.yaml").output_dir == str(run)
    (run / "mine.yaml").write_text("output_dir: other\n")
    assert GRPOConfig.from_yaml(run / "mine.yaml").output_dir == f"{run}/other"


def test_a_project_with_a_config_and_checkpoints_of_its_own_is_no_run(project):
    (project / "checkpoints" / "llama").mkdir(parents=True)
    (project / "config.yaml").write_text("output_dir: runs/mine\n")
    assert GRPOConfig.from_yaml(project / "config.yaml").output_dir == f"{project}/runs/mine"


# -- the same place ------------------------------------------------------------------------------------------------------


def test_a_place_is_the_same_by_whatever_name(project):
    (project / "link").symlink_to(project / "configs")
    assert same(FIELDS["dataset"], [f"{project}/configs/rows.jsonl"], ["../link/rows.jsonl"])
    assert not same(FIELDS["dataset"], [f"{project}/configs/rows.jsonl"], ["../elsewhere/rows.jsonl"])
    assert same(FIELDS["seed"], 3, 3) and not same(FIELDS["seed"], 3, 4)


def test_every_setting_whose_help_speaks_of_a_file_or_folder_says_that_it_is_a_path():
    speak = {f.name for f in fields(Settings) if re.search(r"\b(file|folder)\b", f.metadata["help"], re.I)}
    assert {name for name in speak if FIELDS[name].metadata["path"] is None} == set()


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("model", "~/m", "<home>/m"),
        ("model", Path("~/m"), "<home>/m"),
        ("model", "owner/~name", "owner/~name"),
        ("output_dir", "~", "<home>"),
        ("output_dir", "~/runs/a", "<home>/runs/a"),
        ("chat_template", Path("~/t.jinja"), "<home>/t.jinja"),
        ("dataset", "~/rows.jsonl=0.5", ["<home>/rows.jsonl=0.5"]),
        ("dataset_path", ["gsm8k=~/a.jsonl"], ["gsm8k=<home>/a.jsonl"]),
        ("dataset_path", [Path("~/a.jsonl")], ["<home>/a.jsonl"]),
        ("eval_dataset", "~/rows:test", "<home>/rows:test"),
        (
            "reward",
            ["~/r.py:score", "reward_model:~/m", "math"],
            ["<home>/r.py:score", "reward_model:<home>/m", "math"],
        ),
        ("reward_arg", ["judge.rubric=~/r.md", "mine.text=~/r.md"], ["judge.rubric=<home>/r.md", "mine.text=~/r.md"]),
        ("algorithm", "~/algo.py:Mine", "<home>/algo.py:Mine"),
        ("replay", "~/run", "<home>/run"),
        ("output_dir", "~<user>/x", "<theirs>/x"),
        ("output_dir", "./~/x", "./~/x"),
        ("output_dir", "$HOME/x", "$HOME/x"),
    ],
)
def test_a_tilde_is_the_home_folder_in_every_path(name, given, found, monkeypatch, tmp_path):
    """Given to the class, and in a file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    user = pwd.getpwuid(os.getuid())
    names = {"<home>": str(tmp_path), "<theirs>": user.pw_dir, "<user>": user.pw_name}

    def real(value):
        return functools.reduce(lambda text, name: text.replace(name, names[name]), names, value)

    found = [real(item) for item in found] if isinstance(found, list) else real(found)
    given = [real(str(item)) for item in given] if isinstance(given, list) else type(given)(real(str(given)))
    assert getattr(GRPOConfig(**{name: given}), name) == found
    settings = Path("settings.yaml")
    monkeypatch.chdir(tmp_path)
    settings.write_text(yaml.safe_dump({name: given if isinstance(given, list) else str(given)}))
    assert getattr(GRPOConfig.from_yaml(settings), name) == found


def test_a_home_that_is_not_known_is_named():
    with pytest.raises(UsageError, match="replay is ~nobodyhere/x, and there is no user nobodyhere"):
        GRPOConfig(replay="~nobodyhere/x")
