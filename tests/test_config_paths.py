"""Which part of a setting is a path: said once, in the field's metadata."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from postrl.config import GRPOConfig
from postrl.config_paths import change_paths

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
