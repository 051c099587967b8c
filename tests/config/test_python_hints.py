"""Hints as a script reads them."""

from __future__ import annotations

import pytest

from postrl import cli
from postrl.config import GRPOConfig
from postrl.config.python_hints import hints_in_python, in_python
from postrl.errors import UsageError


@pytest.mark.parametrize(
    ("flags", "python"),
    [
        ("continue that run with --resume, or choose another --output-dir", "continue that run with resume=True, or choose another output_dir"),
        ("use --engine vllm, or --num-processes 1", "use engine='vllm', or num_processes=1"),
        ("lower --learning-rate, or use --dtype float32", "lower learning_rate, or use dtype='float32'"),
        ("start from --model runs/x/model and another --output-dir", "start from model='runs/x/model' and another output_dir"),
        ("--reward-arg judge.url=http://HOST:PORT/v1", "reward_arg=['judge.url=http://HOST:PORT/v1']"),
        ("or remove --reward-arg math.levels", "or remove reward_arg=['math.levels']"),
        ("set --no-shuffle", "set shuffle=False"),
        ("set --epsilon to 0.3 or less", "set epsilon to 0.3 or less"),
        ("`postrl serve --model X`", "`postrl serve --model X`"),
        ("--nproc-per-node 2 is torchrun's", "--nproc-per-node 2 is torchrun's"),
    ],
)  # fmt: skip
def test_flags_become_arguments(flags, python):
    assert in_python(flags) == python


def test_a_script_reads_arguments_and_the_command_line_flags():
    wrong = {"engine": "transformers", "vllm_server_url": ["http://127.0.0.1:8000"]}
    with pytest.raises(UsageError, match="remove vllm_server_url"):
        GRPOConfig(**wrong)
    with pytest.raises(UsageError, match="remove --vllm-server-url"):
        GRPOConfig.from_dict(wrong, source="the command line")


def test_settings_that_a_command_builds_for_itself_speak_of_flags(monkeypatch, capfd):
    """As `dataclasses.replace` does, by the constructor that scripts call."""
    wrong = {"engine": "transformers", "vllm_server_url": ["http://127.0.0.1:8000"]}
    monkeypatch.setattr(cli, "app", lambda **_: GRPOConfig(**wrong))
    with pytest.raises(SystemExit):
        cli.main(["grpo"])
    assert "remove --vllm-server-url" in capfd.readouterr().err
    with pytest.raises(UsageError, match="remove vllm_server_url"):
        GRPOConfig(**wrong)


def test_what_passes_through_is_the_same_error():
    error = UsageError("no", hint="use --resume")
    with pytest.raises(UsageError) as caught, hints_in_python():
        raise error
    assert caught.value is error and error.hint == "use resume=True"
