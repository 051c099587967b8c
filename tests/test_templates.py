"""What `postrl init` writes works as printed: its tests, its reward, its config, offline and on a CPU."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from helpers import tiny_model_dir
from postrl.cli.init import NEXT, Template, scaffold
from postrl.config import GRPOConfig

TEMPLATES = get_args(Template)
PATIENCE = 900
"""Seconds for a command that takes some ten on an idle machine."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with one of each template, and a tiny model."""
    place = tmp_path_factory.mktemp("place")
    for template in TEMPLATES:
        scaffold(f"my-{template}", template, here=place)
    tiny_model_dir(place / "tiny")
    return place


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A line as a user types it, with `postrl` and `python` on the path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JUDGE_")}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, shell=True, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE)


def test_the_tests_of_all_templates_pass_where_they_were_written(place):
    folders = " ".join(f"my-{template}" for template in TEMPLATES)
    done = shell(f"{shlex.quote(sys.executable)} -m pytest -q -p no:cacheprovider {folders}", place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_first_command_scores_right_answers_above_wrong_ones(place, template):
    done = shell(f"{NEXT[template][0]} --json", place / f"my-{template}")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [row for row in json.loads(done.stdout)["completions"] if row["reward"] not in ("one_box", "documented")]
    right = [row["score"] for row in rows if not row["from"].startswith(("wrong", "empty"))]
    wrong = [row["score"] for row in rows if row["from"].startswith(("wrong", "empty"))]
    assert len(wrong) == 3
    assert max(right) == 1.0 > max(wrong)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_config_is_a_small_run_of_the_packaged_model_in_one_process(place, template):
    folder = place / f"my-{template}"
    config = GRPOConfig.from_yaml(folder / "config.yaml")
    assert (config.model, config.engine, config.dataset) == ("smollm2-135m", "transformers", [f"{folder}/data.jsonl"])
    assert config.max_steps <= 5 and config.rollouts_per_step <= 16 and config.max_completion_length <= 64
    assert config.reward and NEXT[template][1].endswith("postrl grpo --config config.yaml")


@pytest.mark.slow
def test_the_second_command_trains(place):
    """That of the template which needs most beside it, with a tiny model in place of the packaged one."""
    line = f"{NEXT['judge'][1]} --model ../tiny --max-steps 1 --prompts-per-step 2 --output-dir run"
    done = shell(line, place / "my-judge")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (place / "my-judge" / "run" / "model").is_dir()
