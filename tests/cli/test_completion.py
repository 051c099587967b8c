"""What the shell offers: `postrl --install-completion`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from postrl import cli
from postrl.algorithms.presets import PRESETS


@pytest.fixture
def offered(monkeypatch, capsys):
    """`offered("grpo --max")`: what bash is offered at the end of the line."""

    def call(line: str) -> list[str]:
        words = f"postrl {line}"
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        monkeypatch.setenv("_POSTRL_COMPLETE", "complete_bash")
        with pytest.raises(SystemExit):
            cli.main([])
        return capsys.readouterr().out.split()

    return call


def test_commands_are_offered_and_those_of_processes_are_not(offered):
    assert {*PRESETS, "serve", "plan", "rescore"} <= set(offered(""))
    assert not {"learner", "worker"} & set(offered(""))
    assert offered("reward ") == ["test", "audit"]


def test_flags_are_offered_that_mean_something_to_the_command(offered):
    assert offered("grpo --max-s") == ["--max-staleness", "--max-steps"]
    assert offered("dr-grpo --learning") == ["--learning-rate"]
    assert offered("grpo --gae") == [] and offered("ppo --gae") == ["--gae-lambda", "--gae-lambda-critic"]
    assert offered("serve --learning") == []


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("grpo --optim ", ["adamw", "sgd"]),
        ("grpo --algorithm da", ["dapo"]),
        ("grpo --model smol", ["smollm2-135m"]),
        ("grpo --dataset gsm8k --dataset ", ["arithmetic", "gsm8k", "humaneval", "mbpp"]),
        ("grpo --reward m", ["math"]),
        ("grpo --report-to t", ["tensorboard", "trackio"]),
    ],
)
def test_values_that_have_names_are_offered(offered, line, values):
    assert offered(line) == values


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script_that_is_shown(tmp_path):
    """The real shell: the script that `--show-completion` prints, sourced, and its function called as Tab does."""
    bin_folder = Path(sys.executable).parent
    program = """
eval "$(postrl --show-completion)"
COMP_WORDS=(postrl grpo --max-st); COMP_CWORD=2; _postrl_completion postrl; echo "${COMPREPLY[@]}"
"""
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    shown = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=env, timeout=60)
    assert (shown.stdout, shown.returncode) == ("--max-staleness --max-steps\n", 0), shown.stderr
