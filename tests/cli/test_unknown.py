"""Flags that a command does not have: what the command line answers, and that it means to ours what it should."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

import postrl
from postrl import cli
from postrl.algorithms.refused import flag
from postrl.cli import plan, serve
from postrl.cli.unknown import unknown_flag
from postrl.config import GRPOConfig
from postrl.config.settings import Settings
from postrl.config.trl_names import OTHERS
from postrl.config.trl_refused import REFUSED
from postrl.config.trl_rules import RULES
from postrl.errors import UsageError

SETTINGS = {f.name for f in fields(Settings)}


@pytest.fixture
def refused(capsys):
    """`refused("grpo --modle m")` -> (the error line, the hint line)."""

    def call(command: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(command.split())
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, "")
        error, hint = err.splitlines()
        return error.removeprefix("error: "), hint.removeprefix("hint: ")

    return call


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("--per_device_train_batch_size 8", "--prompts-per-step"),
        ("--gradient-accumulation-steps=4", "--minibatches"),
        ("--use_vllm", "--engine vllm"),
        ("--vllm_mode colocate", "--engine vllm"),
        ("--vllm_gpu_memory_utilization 0.5", "--gpu-memory-utilization"),
        ("--model_name_or_path m", "--model"),
        ("--dataset_name d", "--dataset"),
        ("--torch_dtype bfloat16", "--dtype"),
        ("--bf16", "--dtype bfloat16"),
        ("--lora_r 16", "--lora-rank"),
        ("--use_peft", "--lora-rank"),
        ("--warmup_ratio 0.1", "--warmup-steps"),
        ("--reward_funcs r", "--reward"),
        ("--delta 3", "--dual-clip 3"),
        ("--loss_type dapo", "--loss-aggregation"),
        ("--resume_from_checkpoint x", "--output-dir RUN --resume"),
    ],
)
def test_a_flag_of_trls_is_answered_with_ours(refused, typed, ours):
    error, hint = refused(f"grpo --model m --dataset arithmetic {typed}")
    name = re.split("[ =]", typed)[0]
    assert error.startswith(f"postrl grpo has no {name}, which is TRL's")
    assert hint.startswith("in postrl: ") and ours in hint


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("--lr 1", "--learning-rate"),
        ("--batch-size=8", "--prompts-per-step"),
        ("--steps 3", "--max-steps"),
        ("--wandb", "--report-to wandb"),
    ],
)
def test_a_name_that_other_tools_have_is_answered_with_ours(refused, typed, ours):
    error, hint = refused(f"grpo --model m {typed}")
    assert error.startswith("postrl grpo has no --") and hint == f"in postrl: {ours}"


def test_names_of_other_tools_mean_settings_that_exist():
    assert {ours.split()[0] for ours in OTHERS.values()} <= SETTINGS
    assert not OTHERS.keys() & (SETTINGS | REFUSED.keys())


@pytest.mark.parametrize(
    ("name", "ours"), [("lr", "learning_rate"), ("batch_size", "prompts_per_step"), ("wandb", "report_to: wandb")]
)
def test_such_a_name_in_a_file_is_answered_too(tmp_path, name, ours):
    (tmp_path / "c.yaml").write_text(f"{name}: 3\n")
    with pytest.raises(UsageError, match=f"has no setting {name}") as error:
        GRPOConfig.from_yaml(tmp_path / "c.yaml")
    assert error.value.hint == f"in postrl: {ours}; `postrl grpo --help-all` lists all settings"


@pytest.mark.parametrize(
    "typed", ["--callbacks", "--verbose", "--logging_dir x", "--tools t", "--tokenizer t", "--kl-cof 1"]
)
def test_what_is_like_no_flag_is_not_guessed_at(refused, typed):
    _, hint = refused(f"grpo --model m {typed}")
    assert hint == "`postrl grpo --help-all` lists all flags"


def test_a_flag_without_its_value_does_not_take_the_next_flag(refused):
    error, hint = refused("grpo --model m --output_dir --dry-run")
    assert (error, hint) == (
        "--output_dir needs a value, and --dry-run follows it",
        "write --output_dir VALUE --dry-run",
    )


def test_every_name_of_trls_has_an_answer_whose_flags_exist():
    for name in [*(name for row in RULES for name in row.names), *REFUSED]:
        if name not in SETTINGS:
            answer = unknown_flag(f"--{name}", "postrl grpo", [], {})
            assert "which is TRL's" in answer.message and answer.hint
            for found in re.findall(r"--[a-z][a-z-]+", answer.hint.replace(f"--{name}", "")):
                assert found.removeprefix("--").removeprefix("no-").replace("-", "_") in SETTINGS, (name, found)


def test_underscores_in_our_own_flags_are_hyphens(refused):
    error, _ = refused("grpo --model m --dataset arithmetic --output_dir=r --num_generations 1 --no_shuffle")
    assert error.startswith("num_generations is 1")


@pytest.mark.parametrize(
    ("command", "nearest"),
    [
        ("grpo --modle m", "--model"),
        ("grpo --max_step 3", "--max-steps"),
        ("dapo --learning-rte 3", "--learning-rate"),
        ("rescore r --step 3", "--steps"),
        ("reward test --num_generation 2", "--num-generations"),
        ("serve --vllm-args x=1", "--vllm-arg"),
        ("--versio", "--version"),
        ("grpo --max-comp 6", "--max-completion-length"),  # the beginning counts before what looks alike
        ("grpo --dry", "--dry-run"),
        ("grpo --eval 3", "--eval-steps or --eval-dataset or --eval-prompts"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_flag(refused, command, nearest):
    _, hint = refused(command)
    assert hint.startswith(f"did you mean {nearest}? ") and hint.endswith("--help-all` lists all flags")


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("serve --model m --learning-rate 1", "postrl grpo"),
        ("serve --no-shuffle", "postrl grpo"),
        ("plan --model m --epsilon_high 1", "postrl grpo"),
        ("rescore r --model m", "postrl grpo"),
        ("grpo --simulate", "postrl plan"),
        ("--model m", "postrl grpo"),
        ("serve --lr 3", "postrl grpo"),
    ],
)
def test_a_flag_that_means_nothing_to_a_command_is_told_where_it_belongs(refused, command, where):
    error, hint = refused(command)
    assert "means nothing to `postrl" in error
    assert f"give it to `{where}`" in hint


def test_a_typo_in_a_flag_of_another_command_is_understood(refused):
    _, hint = refused("serve --learning_rat 1")
    assert "did you mean --learning-rate?" in hint and "`postrl grpo`" in hint


def test_a_value_behind_a_yes_no_flag_is_answered_with_both_flags(refused):
    error, hint = refused("grpo --gradient_checkpointing False")
    assert error == "--gradient_checkpointing takes no value, and False follows it"
    assert hint == "write --gradient-checkpointing or --no-gradient-checkpointing"
    error, hint = refused("grpo --gradient_checkpointing=True")
    assert error == "--gradient_checkpointing takes no value, and True follows it"
    assert refused("grpo --async true")[1] == "write --async, or leave it out"  # there is no --no-async
    assert refused("grpo --model m x")[0] == "x belongs to no flag"


def test_a_command_that_does_not_exist_is_answered_with_the_nearest(refused):
    assert refused("gprpo --model m")[1].startswith("did you mean grpo? ")
    assert refused("train")[1] == "`postrl --help` lists them"


# -- what serve and plan take is what they read -----------------------------------------------------------------------

SOURCES = Path(postrl.__file__).parent


def read_by(*modules: str) -> set[str]:
    """Settings that these modules read from a `config`."""
    return {
        node.attr
        for module in modules
        for node in ast.walk(ast.parse((SOURCES / module).read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("config", "c")
    } & SETTINGS


def test_serve_takes_what_a_server_depends_on():
    of_runs = {"engine", "replay", "num_servers", "server_start_timeout", "server_frozen_timeout", "server_restarts"}
    read = read_by("cli/serve.py", "launch/vllm.py", "launch/adapters.py") - of_runs
    assert read - GRPOConfig.part("serve") == set(), "give `postrl serve` the settings that it reads"
    assert GRPOConfig.part("serve") - read == {"debug", "max_staleness"}  # the latter by config.max_loras


def test_plan_takes_what_a_plan_depends_on():
    read = read_by(
        "cli/plan.py", "cli/simulated.py", "launch/plan.py", "launch/vllm.py", "launch/adapters.py", "launch/siblings.py",
        "simulation/assumptions.py", "simulation/calibrate.py", "simulation/loop.py", "simulation/divisions.py",
    )  # fmt: skip
    of_processes = {"server_start_timeout", "server_frozen_timeout", "server_restarts", "worker_restarts"}
    assert read - of_processes - GRPOConfig.part("plan") == set(), "give `postrl plan` the settings that it reads"


def test_flags_that_were_left_out_come_from_a_config_all_the_same(tmp_path, capsys):
    run = tmp_path / "c.yaml"
    GRPOConfig(model="x-1B", learning_rate=3e-5).save(run)
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "--config", str(run), "--simulate", "--gpus", "2", "--steps", "1"])
    assert ended.value.code == 0
    assert "--learning-rate 3e-05" in capsys.readouterr().out


def test_most_used_flags_exist():
    for command in (serve.ServeCommand, plan.PlanCommand):
        takes = GRPOConfig.part("serve") if command is serve.ServeCommand else GRPOConfig.part("plan")
        others = {"--reward-model", "--config", "--print", "--async", "--simulate", "--gpus", "--from", "--steps"}
        assert set(command.most_used) <= {*map(flag, takes), *others}
