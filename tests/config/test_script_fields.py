"""GRPOConfig as transformers' and TRL's parsers, and dataclasses that inherit from it, see it."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass, field

import pytest
from transformers import HfArgumentParser

from postrl.config import GRPOConfig, PPOConfig, trl_names
from postrl.config.script_fields import COMPANIONS, OURS, SWITCHES, THEIRS
from postrl.config.setting import default_of
from postrl.config.settings import Settings
from postrl.errors import UsageError


@pytest.fixture(autouse=True)
def a_new_run(monkeypatch):
    """Lines are printed once a process; each test is a run of its own."""
    monkeypatch.setattr(trl_names, "_said", set())
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@dataclass
class ScriptArguments:
    """Of a script: its own fields beside the settings."""

    dataset_name: str = "d"
    dataset_config: str | None = None


@dataclass
class OwnConfig(GRPOConfig):
    """As open-r1 and its forks write it: fields of the script's, and other defaults for TRL's and ours."""

    my_flag: bool = True
    benchmarks: list[str] = field(default_factory=list, metadata={"help": "Evaluated afterwards."})
    per_device_train_batch_size: int = 4
    num_generations: int = 2
    chat_template: str | None = field(default=None, metadata={"help": "The chat template to use."})


class PlainConfig(GRPOConfig):
    """Without @dataclass."""


class WithInit(GRPOConfig):
    def __init__(self, size: int, **settings: object) -> None:
        super().__init__(max_steps=size, **settings)


def parsed(*flags: str, cls: type = GRPOConfig) -> GRPOConfig:
    (config,) = HfArgumentParser(cls).parse_args_into_dataclasses(list(flags), look_for_args_file=False)
    return config


# -- parsers -----------------------------------------------------------------------------------------------------------


def test_a_parser_without_flags_gives_the_defaults_of_the_algorithm():
    assert parsed() == GRPOConfig()
    assert parsed(cls=PPOConfig) == PPOConfig()
    assert parsed("--algorithm", "dapo") == GRPOConfig(algorithm="dapo")


def test_a_parser_takes_our_flags_in_their_types():
    config = parsed(
        *["--learning_rate", "1e-6", "--max-steps", "7", "--shuffle", "false", "--run_name", "0123"],
        *["--reward", "math", "format", "--reward_weights", "1", "0.5", "--save_total_limit", "null"],
        *["--algorithm", "dapo", "--debug", "--scale_rewards", "none"],
    )
    expected = GRPOConfig(
        algorithm="dapo",
        learning_rate=1e-6,
        max_steps=7,
        shuffle=False,
        run_name="0123",
        reward=["math", "format"],
        reward_weights=[1.0, 0.5],
        save_total_limit=None,
        debug=True,
        scale_rewards="none",
    )
    assert config == expected


def test_a_parser_takes_the_flags_of_trl():
    config = parsed(
        *["--output_dir", "o", "--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "4"],
        *["--num_generations", "4", "--bf16", "--use_vllm", "false", "--lr_scheduler_type", "constant_with_warmup"],
        *["--report_to", "none", "--no_shuffle_dataset", "--model_init_kwargs", '{"revision": "main"}'],
    )
    assert (config.prompts_per_step, config.minibatches, config.num_generations) == (8, 1, 4)
    assert (config.output_dir, config.dtype, config.engine, config.revision) == (
        "o",
        "bfloat16",
        "transformers",
        "main",
    )
    assert (config.lr_scheduler_type, config.report_to, config.shuffle) == ("constant", [], False)


def test_a_flag_with_its_default_as_value_counts_as_given():
    config = parsed("--algorithm", "dapo", "--epsilon", str(Settings.epsilon), "--epsilon_high", "0.2")
    assert GRPOConfig(algorithm="dapo").epsilon_high == 0.28
    assert config.epsilon_high == 0.2
    with pytest.raises(UsageError, match="prompts_per_step=32 is given too"):
        parsed("--per_device_train_batch_size", "8", "--prompts_per_step", "32")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--save_strategy", "epoch"], "postrl counts in steps"),
        (["--learning_rate", "fast"], "learning_rate is 'fast', expected float"),
        (["--loss_type", "vespo"], "loss_type='vespo'"),
    ],
)
def test_a_wrong_flag_is_answered_as_in_a_script(flags, says):
    with pytest.raises(UsageError, match=says):
        parsed(*flags)


def test_what_is_on_is_switched_off_by_its_no_flag():
    assert not parsed("--no_shuffle").shuffle
    assert not parsed("--no-gradient-checkpointing").gradient_checkpointing
    on = {f.name for f in dataclasses.fields(Settings) if default_of(f) is True}
    assert on <= SWITCHES <= {*OURS, *THEIRS}


def test_the_help_shows_what_a_setting_means_and_its_default(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Prompts of one step; times num_generations gives the completions it trains on. (default: 32)" in shown
    assert "--per_device_train_batch_size" in shown


def test_the_parser_of_trl_reads_flags_and_a_file_beside_the_other_classes_of_its_scripts(tmp_path):
    from trl import DatasetMixtureConfig, ModelConfig, TrlParser
    from trl.scripts.grpo import GRPOScriptArguments

    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: m\ndataset_name: d\ndtype: bfloat16\nbf16: true\nlearning_rate: 1.0e-06\nnum_generations: 4\n"
        "gradient_checkpointing_kwargs:\n  use_reentrant: false\nreport_to:\n- tensorboard\nper_device_train_batch_size: 8\n"
    )
    parser = TrlParser((GRPOScriptArguments, GRPOConfig, ModelConfig, DatasetMixtureConfig))
    script, config, model, _ = parser.parse_args_and_config(
        ["--config", str(tmp_path / "recipe.yaml"), "--num_generations", "8", "--lora_r", "4", "--output_dir", "o"]
    )
    assert (script.dataset_name, model.model_name_or_path, model.lora_r) == ("d", "m", 4)
    assert (config.num_generations, config.prompts_per_step, config.learning_rate) == (8, 1, 1e-6)
    assert (config.report_to, config.output_dir, config.dtype) == (["tensorboard"], "o", "bfloat16")


def test_names_of_the_other_classes_of_trls_scripts_are_left_to_them():
    from trl import ModelConfig
    from trl.scripts.grpo import GRPOScriptArguments

    theirs = {f.name for cls in (ModelConfig, GRPOScriptArguments) for f in dataclasses.fields(cls)}
    assert theirs <= COMPANIONS
    assert not COMPANIONS & {f.name for f in dataclasses.fields(GRPOConfig)}
    assert GRPOConfig(dtype="float32", lora_rank=4, lora_alpha=8).lora_alpha == 8


def test_every_name_of_trls_config_is_a_field():
    import trl

    assert {f.name for f in dataclasses.fields(trl.GRPOConfig)} <= {f.name for f in dataclasses.fields(GRPOConfig)}


# -- subclasses --------------------------------------------------------------------------------------------------------


def test_a_dataclass_that_inherits_takes_trls_names_and_its_own():
    config = OwnConfig(output_dir="o", gradient_accumulation_steps=2, benchmarks=["b"], bf16=True)
    assert (config.prompts_per_step, config.num_generations, config.dtype) == (4, 2, "bfloat16")
    assert OwnConfig(dtype="float32", lora_rank=4, lora_alpha=2).lora_alpha == 2
    assert (config.my_flag, config.benchmarks) == (True, ["b"])
    assert config.to_dict().keys() == GRPOConfig().to_dict().keys()


def test_a_parser_takes_the_flags_of_a_dataclass_that_inherits():
    config = parsed("--my_flag", "false", "--benchmarks", "a", "b", "--per_device_train_batch_size", "2", cls=OwnConfig)
    assert (config.my_flag, config.benchmarks, config.prompts_per_step) == (False, ["a", "b"], 1)


def test_classes_that_inherit_without_dataclass_take_trls_names_too():
    assert PlainConfig(per_device_train_batch_size=16).prompts_per_step == 2
    config = WithInit(3, per_device_train_batch_size=16)
    assert (config.max_steps, config.prompts_per_step) == (3, 2)


def test_an_unknown_name_is_answered_in_a_subclass_too():
    with pytest.raises(UsageError, match="OwnConfig has no setting num_generation"):
        OwnConfig(num_generation=4)


# -- as an object ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [GRPOConfig, PPOConfig, OwnConfig, PlainConfig])
def test_the_folder_may_be_given_by_place(cls):
    assert cls("out").output_dir == "out"


def test_replaced_copied_and_pickled_settings_are_the_same():
    config = OwnConfig(output_dir="o", my_flag=False, dtype="float32", bf16=False)
    changed = dataclasses.replace(config, max_steps=3)
    assert (changed.max_steps, changed.my_flag, changed.dtype, changed.prompts_per_step) == (3, False, "float32", 2)
    assert changed.given_as == config.given_as
    assert {"bf16": False, "per_device_train_batch_size": 4}.items() <= config.given_as.items()
    for same in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert (same, same.dtype, same.given_as) == (config, "float32", config.given_as)
    assert dataclasses.replace(GRPOConfig(num_generations=4, per_device_train_batch_size=8), num_generations=2)


def test_the_default_of_a_setting_is_read_off_the_class():
    assert (GRPOConfig.max_steps, GRPOConfig.gpu_memory_utilization) == (-1, 0.9)
    assert "Unset" not in repr(GRPOConfig())
