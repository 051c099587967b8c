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
from postrl.config_paths import change_paths
from postrl.errors import UsageError

FIELDS = {f.name: f for f in fields(GRPOConfig)}


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


def test_every_setting_whose_help_speaks_of_a_file_or_folder_says_that_it_is_a_path():
    speak = {f.name for f in fields(GRPOConfig) if re.search(r"\b(file|folder)\b", f.metadata["help"], re.I)}
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
