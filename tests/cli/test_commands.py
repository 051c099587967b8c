"""What the command line makes of its arguments: settings, exit codes, messages."""

from __future__ import annotations

import signal
import subprocess
import sys
import types

import pytest

from helpers import tiny_model_dir
from postrl import cli
from postrl.config import GRPOConfig
from postrl.errors import ServerError


class Launched:
    """Stands in for the launcher: records the settings, returns an exit code or raises."""

    def __init__(self) -> None:
        self.config: GRPOConfig | None = None
        self.dry_run: bool | None = None
        self.result: int | BaseException = 0

    def run(self, config: GRPOConfig, *, dry_run: bool) -> int:
        self.config, self.dry_run = config, dry_run
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def launched(monkeypatch) -> Launched:
    fake = Launched()
    module = types.ModuleType("postrl.launch.run")
    module.run = fake.run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "postrl.launch.run", module)
    return fake


def exit_code(*args: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(args))
    return ended.value.code


MODEL_AND_DATA = ("grpo", "--model", "m", "--dataset", "arithmetic")


def test_flags_become_settings_and_the_rest_stays_at_its_default(launched):
    code = exit_code(
        *MODEL_AND_DATA,
        "--dataset", "gsm8k=0.5",
        "--max-steps", "3",
        "--learning-rate", "1e-5",
        "--no-shuffle",
        "--gradient-checkpointing",
        "--scale-rewards", "batch",
        "--reward", "math",
        "--reward-weights", "0.5",
        "--stop", "\n",
    )  # fmt: skip
    assert code == 0
    assert launched.config == GRPOConfig(
        model="m",
        dataset=["arithmetic", "gsm8k=0.5"],
        max_steps=3,
        learning_rate=1e-5,
        shuffle=False,
        gradient_checkpointing=True,
        scale_rewards="batch",
        reward=["math"],
        reward_weights=[0.5],
        stop=["\n"],
    )
    assert launched.dry_run is False


def test_a_dry_run_is_passed_on(launched):
    exit_code(*MODEL_AND_DATA, "--dry-run")
    assert launched.dry_run is True


def test_the_command_line_wins_over_the_file_also_with_a_default_value(launched, tmp_path):
    (tmp_path / "c.yaml").write_text("model: a\ndataset: [gsm8k]\nmax_steps: 5\nshuffle: false\nseed: 7\n")
    exit_code("grpo", "--config", str(tmp_path / "c.yaml"), "--max-steps", "9", "--seed", "42", "--shuffle")
    assert launched.config == GRPOConfig(model="a", dataset=["gsm8k"], max_steps=9, seed=42, shuffle=True)


def test_a_resumed_run_takes_its_settings_from_its_own_folder(launched, tmp_path):
    GRPOConfig(model="a", dataset=["gsm8k"], max_steps=5).save(tmp_path / "config.yaml")
    (tmp_path / "logs").mkdir()
    exit_code("grpo", "--resume", "--output-dir", str(tmp_path), "--max-steps", "8")
    assert launched.config == GRPOConfig(
        model="a", dataset=["gsm8k"], max_steps=8, resume=True, output_dir=str(tmp_path)
    )


# -- exit codes: 0 done, 1 failed, 2 usage, 130 interrupted ---------------------------------------------------------------


def test_the_exit_code_is_the_launchers(launched):
    launched.result = 1
    assert exit_code(*MODEL_AND_DATA) == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("grpo",), "no model is given"),
        (("grpo", "--resume"), "does not say which run to continue"),
        (("grpo", "--model", "m"), "no data set is given"),
        ((*MODEL_AND_DATA, "--num-generations", "1"), "a group of one has no baseline"),
        (("grpo", "--config", "nowhere.yaml"), "cannot read the config file nowhere.yaml"),
    ],
)
def test_a_wrong_call_says_what_to_type_and_exits_with_2(launched, capsys, args, says):
    assert exit_code(*args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and says in err and "\nhint: " in err
    assert launched.config is None


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("grpo", "--mode", "m"), "--model"),
        (("grpo", "--engine", "sglang"), "'auto', 'transformers', 'vllm'"),
        (("grpo", "--max-steps", "many"), "--max-steps"),
        (("train",), "train"),
    ],
)
def test_a_flag_or_value_that_does_not_exist_exits_with_2(capsys, args, says):
    assert exit_code(*args) == 2
    assert says in capsys.readouterr().err


def test_who_gives_a_runs_folder_for_its_config_file_hears_the_files_name(launched, capsys, tmp_path):
    (tmp_path / "config.yaml").touch()
    assert exit_code("grpo", "--config", str(tmp_path), "--resume") == 2
    assert capsys.readouterr().err == (
        f"error: the config file {tmp_path} is a folder\nhint: --config {tmp_path}/config.yaml\n"
    )


def test_an_unknown_key_in_the_file_exits_with_2(launched, capsys, tmp_path):
    (tmp_path / "c.yaml").write_text("modle: a\n")
    assert exit_code("grpo", "--config", str(tmp_path / "c.yaml")) == 2
    assert "did you mean model?" in capsys.readouterr().err


def test_an_error_of_ours_is_a_message_and_a_hint_without_a_traceback(launched, capsys):
    launched.result = ServerError("vLLM server 0 ended with exit code 1", hint="see runs/x/logs/vllm-0.log")
    assert exit_code(*MODEL_AND_DATA) == 1
    assert capsys.readouterr().err == (
        "error: vLLM server 0 ended with exit code 1\nhint: see runs/x/logs/vllm-0.log\n"
    )


def test_debug_shows_the_traceback_of_an_error_of_ours(launched, capsys):
    launched.result = ServerError("vLLM server 0 ended with exit code 1")
    assert exit_code(*MODEL_AND_DATA, "--debug") == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_any_other_exception_is_called_a_bug_and_says_how_to_see_the_traceback(launched, capsys):
    launched.result = ZeroDivisionError("division by zero")
    assert exit_code(*MODEL_AND_DATA) == 1
    err = capsys.readouterr().err
    assert "this is a bug in postrl: ZeroDivisionError: division by zero" in err
    assert "--debug" in err and "Traceback" not in err


def test_debug_shows_the_traceback_of_a_bug(launched, capsys):
    launched.result = ZeroDivisionError("division by zero")
    assert exit_code(*MODEL_AND_DATA, "--debug") == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupted_run_exits_with_130(launched):
    launched.result = KeyboardInterrupt()
    assert exit_code(*MODEL_AND_DATA) == 130


def test_ctrl_c_in_the_terminal_exits_with_130_and_without_a_traceback():
    program = """
import sys, time, types
def run(config, *, dry_run):
    print("running", flush=True)
    time.sleep(60)
module = types.ModuleType("postrl.launch.run")
module.run = run
sys.modules["postrl.launch.run"] = module
from postrl.cli import main
main(["grpo", "--model", "m", "--dataset", "arithmetic"])
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize(
    "flags, bound",
    [((), 0), (("--async",), 1), (("--async", "--max-staleness", "3"), 3), (("--max-staleness", "2"), 2)],
)
def test_async_is_short_for_a_staleness_of_one(launched, flags, bound):
    assert exit_code(*MODEL_AND_DATA, "--engine", "vllm", *flags) == 0
    assert launched.config.max_staleness == bound


def test_async_and_a_staleness_of_zero_contradict_each_other(launched, capsys):
    assert exit_code(*MODEL_AND_DATA, "--async", "--max-staleness", "0") == 2
    assert "--max-staleness is 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("token", "given", "said"),
    [
        ("", [], "every user of this host can use the server at 127.0.0.1:8000 (sample and replace its weights)"),
        ("", ["port=8123"], "every user of this host can use the server at 127.0.0.1:8123"),
        ("", ["host=0.0.0.0"], "everyone who can reach this host over the network can use the server at 0.0.0.0:8000"),
        ("", ["host=::"], "everyone who can reach this host over the network can use the server at [::]:8000"),
        ("a secret", ["host=0.0.0.0"], ""),
    ],
)
def test_a_server_without_a_token_says_what_it_opens_to_whom(monkeypatch, capsys, tmp_path, token, given, said):
    from postrl.cli import serve

    monkeypatch.setattr(serve.os, "execvpe", lambda *command: None)
    monkeypatch.setenv("POSTRL_SERVER_TOKEN", token)
    config = GRPOConfig(model=str(tiny_model_dir(tmp_path / "model")), output_dir=str(tmp_path / "run"), vllm_arg=given)
    serve.run(config, only_print=False)
    err = capsys.readouterr().err
    assert said in err and ("no token is set" in err) == (not token)
    assert ("to close it, export POSTRL_SERVER_TOKEN=... here and for the run" in err) == (not token)
    assert not token or token not in err


def test_a_reward_models_server_without_a_token_says_how_the_reward_sends_one(monkeypatch, capsys, tmp_path):
    from postrl.cli import serve

    monkeypatch.setattr(serve.os, "execvpe", lambda *command: None)
    monkeypatch.delenv("POSTRL_SERVER_TOKEN", raising=False)
    serve.run(GRPOConfig(), only_print=False, reward_model=str(tmp_path))
    err = capsys.readouterr().err
    assert "at 127.0.0.1:8000 (have texts scored)" in err
    assert "--reward-arg reward_model.api_key_env=POSTRL_SERVER_TOKEN" in err
