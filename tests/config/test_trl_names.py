"""TRL's names: converted where the meaning agrees, passed over where it changes nothing, refused with the way out."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
from enum import Enum
from pathlib import Path

import pytest

from postrl.cli.trl_table import becomes, trl_table
from postrl.config import GRPOConfig, PPOConfig, trl_names
from postrl.config.script_fields import COMPANIONS
from postrl.config.settings import Settings
from postrl.config.trl_names import DEFAULTS, TRLS
from postrl.config.trl_refused import COMMON, OLDER, REFUSED
from postrl.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "from_trl.md"

# The fields that TRL 1.16's GRPOConfig adds to transformers' TrainingArguments.
TRL_FIELDS = [
    "learning_rate",
    "model_init_kwargs",
    "trust_remote_code",
    "router_aux_loss_coef",
    "disable_dropout",
    "cast_lm_head_to_fp32",
    "remove_unused_columns",
    "num_generations",
    "num_generations_eval",
    "max_completion_length",
    "ds3_gather_for_generation",
    "shuffle_dataset",
    "pad_to_multiple_of",
    "generation_batch_size",
    "steps_per_generation",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "generation_kwargs",
    "chat_template_kwargs",
    "repetition_penalty",
    "cache_implementation",
    "use_vllm",
    "vllm_mode",
    "vllm_model_impl",
    "vllm_enable_sleep_mode",
    "vllm_structured_outputs_regex",
    "vllm_server_base_url",
    "vllm_server_host",
    "vllm_server_port",
    "vllm_server_timeout",
    "vllm_group_port",
    "vllm_gpu_memory_utilization",
    "vllm_max_model_length",
    "vllm_tensor_parallel_size",
    "beta",
    "num_iterations",
    "epsilon",
    "delta",
    "epsilon_high",
    "sapo_temperature_neg",
    "sapo_temperature_pos",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
    "importance_sampling_level",
    "reward_weights",
    "multi_objective_aggregation",
    "scale_rewards",
    "loss_type",
    "mask_truncated_completions",
    "sync_ref_model",
    "ref_model_mixup_alpha",
    "ref_model_sync_steps",
    "top_entropy_quantile",
    "entropy_coef",
    "use_adaptive_entropy",
    "entropy_coef_min",
    "entropy_coef_max",
    "entropy_coef_delta",
    "entropy_target",
    "max_tool_calling_iterations",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
    "off_policy_mask_threshold",
    "use_bias_correction_kl",
    "log_completions",
    "log_multimodal",
    "num_completions_to_print",
    "log_unique_prompts",
    "log_completions_hub_repo",
    "use_transformers_continuous_batching",
    "transformers_continuous_batching_config",
    "use_transformers_paged",
    "vllm_importance_sampling_cap",
]


@pytest.fixture(autouse=True)
def a_new_run(monkeypatch):
    """Lines are printed once a process; each test is a run of its own."""
    monkeypatch.setattr(trl_names, "_said", set())
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def training_arguments() -> list[str]:
    """The fields of the installed transformers' TrainingArguments, read from its source: importing it takes long."""
    spec = importlib.util.find_spec("transformers")
    tree = ast.parse((Path(spec.origin).parent / "training_args.py").read_text())
    body = next(node.body for node in tree.body if getattr(node, "name", "") == "TrainingArguments")
    names = [node.target.id for node in body if isinstance(node, ast.AnnAssign)]
    return [name for name in names if not name.startswith("_")]


def refused(**settings: object) -> str:
    with pytest.raises(UsageError) as caught:
        GRPOConfig(**settings)
    assert caught.value.hint
    return str(caught.value)


def test_a_trl_script_constructs_its_config_unchanged(capsys):
    config = GRPOConfig(
        output_dir="x",
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=32,
        learning_rate=1e-5,
        logging_steps=1,
        report_to="none",
        bf16=False,
        max_steps=2,
        save_strategy="no",
        remove_unused_columns=False,
        gradient_checkpointing=False,
        use_vllm=False,
    )
    assert (config.prompts_per_step, config.minibatches, config.num_generations) == (1, 1, 4)
    assert (config.dtype, config.report_to, config.save_steps, config.engine) == ("float32", [], 0, "transformers")


def test_the_conversion_is_one_block_on_stderr_and_said_once(capsys):
    for _ in range(2):
        GRPOConfig(per_device_train_batch_size=8, num_generations=4, bf16=True, save_steps=50, trackio_space_id="me/s")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "TRL's names (docs/from_trl.md):",
        "  bf16=True -> dtype='bfloat16'",
        "  per_device_train_batch_size=8 -> prompts_per_step=2, minibatches=1",
        "  as in TRL, where nothing is set: num_train_epochs=3.0, lr_scheduler_type='linear', save_total_limit=None, "
        "logging_steps=10, engine='transformers'",
        "  passed over: trackio_space_id (trackio is configured by its environment variables)",
        "  not as in TRL: prompts of more than max_prompt_length=1024 tokens are dropped, and counted",
    ]


def test_ranks_but_the_first_say_nothing(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    GRPOConfig(per_device_train_batch_size=8)
    assert capsys.readouterr().err == ""


# -- what is not set ---------------------------------------------------------------------------------------------------


def test_a_script_of_trls_gets_its_defaults_for_what_it_leaves_unset():
    config = GRPOConfig(bf16=False)
    assert (config.prompts_per_step * config.num_generations, config.minibatches) == (8, 1)
    assert (config.num_train_epochs, config.lr_scheduler_type, config.engine) == (3.0, "linear", "transformers")
    assert (config.save_steps, config.save_total_limit, config.logging_steps) == (500, None, 10)


def test_what_vllm_samples_is_corrected_as_in_trl():
    config = GRPOConfig(use_vllm=True)
    assert (config.engine, config.is_correction, config.is_high) == ("vllm", "mis_seq", None)


def test_what_is_set_and_what_an_algorithm_brings_stands_before_trls_defaults():
    config = GRPOConfig(bf16=True, engine="vllm", save_steps=7, lr_scheduler_type="cosine", prompts_per_step=4)
    assert (config.engine, config.save_steps, config.lr_scheduler_type) == ("vllm", 7, "cosine")
    assert (config.prompts_per_step, config.minibatches) == (4, 1)
    dapo = GRPOConfig(algorithm="dapo", bf16=True)
    assert (dapo.prompts_per_step, dapo.num_generations, dapo.lr_scheduler_type) == (16, 16, "linear")


def test_several_ranks_are_left_the_engine_that_can_feed_them(capsys):
    assert GRPOConfig(bf16=True, num_processes=2).engine == "auto"
    assert "vLLM servers generate for several ranks" in capsys.readouterr().err


def test_a_script_without_a_name_of_trls_has_our_defaults_and_is_told_once_how_they_differ(capsys):
    for _ in range(2):
        config = GRPOConfig(output_dir="o", learning_rate=1e-5, save_steps=10)
    assert (config.prompts_per_step, config.lr_scheduler_type, config.num_train_epochs) == (32, "constant", 1.0)
    err = capsys.readouterr().err
    assert "prompts_per_step=32 (TRL: 8 completions in all), engine='auto' (TRL: transformers)" in err
    assert "save_steps" not in err and err.count("num_train_epochs=1.0 (TRL: 3.0)") == 1


def test_all_that_is_refused_is_refused_at_once():
    message = refused(deepspeed="ds.json", fp16=True, num_generation=4, load_best_model_at_end=True)
    assert message.startswith("GRPOConfig has 4 settings that cannot be:\n  fp16=True:")
    assert all(f"\n  {start}" in message for start in ("deepspeed", "load_best", "GRPOConfig has no setting num_g"))


@pytest.mark.parametrize("name", ["adamw_8bit", "paged_adamw_32bit"])
def test_an_optimizer_that_takes_less_memory_is_adamw_and_what_it_takes_is_said(name, capsys):
    assert GRPOConfig(optim=name).optim == "adamw"
    assert "not as in TRL: optim=" in (said := capsys.readouterr().err) and "8 bytes for each trained weight" in said


def test_what_is_cosmetic_is_passed_over_with_a_note(capsys):
    GRPOConfig(trackio_space_id="me/s", log_unique_prompts=3, bf16_full_eval=True, overwrite_output_dir=True)
    err = capsys.readouterr().err
    names = ("trackio_space_id", "log_unique_prompts", "bf16_full_eval", "overwrite_output_dir")
    (line,) = [line for line in err.splitlines() if "passed over: " in line]
    assert all(f" {name} (" in line for name in names)


# -- steps: TRL counts optimizer steps, we count batches ---------------------------------------------------------------


@pytest.mark.parametrize(
    "trl",
    [
        {"per_device_train_batch_size": 4, "num_generations": 2, "num_iterations": 2},
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4},
    ],
)
def test_step_counts_mean_as_many_optimizer_steps_as_in_trl(trl):
    config = GRPOConfig(
        **trl, max_steps=4, save_steps=2, eval_strategy="steps", eval_steps=6, logging_steps=8, beta=0.1,
        sync_ref_model=True, ref_model_sync_steps=512, warmup_steps=3,
    )  # fmt: skip
    assert config.minibatches * config.num_iterations == 2
    assert (config.max_steps, config.save_steps, config.eval_steps, config.logging_steps) == (2, 1, 3, 4)
    assert config.ref_model_sync_steps == 256
    assert config.warmup_steps == 3, "optimizer steps in both"


def test_a_share_of_all_steps_stays_one():
    config = GRPOConfig(gradient_accumulation_steps=2, steps_per_generation=4, save_steps=0.25, logging_steps=0.1)
    assert (config.save_steps, config.logging_steps, config.max_steps) == (0.25, 0.1, -1)


def test_steps_that_end_within_a_batch_are_said(capsys):
    config = GRPOConfig(per_device_train_batch_size=8, num_iterations=2, max_steps=5)
    assert config.max_steps == 3
    assert "max_steps is 3 batches, 6 optimizer steps" in capsys.readouterr().err


def test_our_own_batch_names_keep_our_own_steps():
    config = GRPOConfig(bf16=True, prompts_per_step=4, minibatches=2, max_steps=4)
    assert (config.max_steps, config.save_steps) == (4, 500)


def test_a_batch_is_counted_in_the_groups_of_its_algorithm():
    dapo = GRPOConfig(algorithm="dapo", per_device_train_batch_size=32)
    assert (dapo.prompts_per_step, dapo.num_generations) == (2, 16)
    ppo = PPOConfig(per_device_train_batch_size=64)
    assert (ppo.prompts_per_step, ppo.num_generations, ppo.minibatches) == (64, 1, 1)
    gspo = GRPOConfig(importance_sampling_level="sequence", per_device_train_batch_size=16)
    assert (gspo.algorithm, gspo.prompts_per_step) == ("gspo", 2)


def test_our_own_names_are_taken_silently(capsys):
    GRPOConfig(prompts_per_step=2, minibatches=2, dtype="float32", report_to="tensorboard", scale_rewards=True)
    assert capsys.readouterr().err == ""


def test_every_field_of_trl_and_of_training_arguments_is_ours_converted_or_refused_by_name():
    theirs = [*TRL_FIELDS, *training_arguments()]
    assert "gradient_accumulation_steps" in theirs
    assert [name for name in theirs if name not in TRLS | COMMON] == []
    assert {f.name for f in dataclasses.fields(Settings)} >= COMMON


def test_no_setting_of_ours_is_refused():
    assert not REFUSED.keys() & {f.name for f in dataclasses.fields(Settings)}


# -- TRL's own class ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trl_config():
    """TRL's GRPOConfig, which takes some seconds to import."""
    return pytest.importorskip("trl").GRPOConfig


def test_the_page_has_every_field_of_trls_and_is_the_one_the_code_gives(trl_config):
    theirs = {f.name for f in dataclasses.fields(trl_config)}
    assert theirs == (TRLS | COMMON) - COMPANIONS - OLDER and len(theirs) == 189
    assert PAGE.read_text() == trl_table(), "run `python -m postrl.cli.trl_table > docs/from_trl.md`"
    assert {kind for kind, _ in map(becomes, theirs)} == {"converted", "same", "passed over", "refused"}
    assert all(told for kind, told in map(becomes, theirs) if kind != "same")


def test_trls_own_default_values_are_all_taken(trl_config, capsys):
    config = GRPOConfig(**trl_config(output_dir="o", use_cpu=True, bf16=False).to_dict())
    assert "passed over" not in capsys.readouterr().err
    left_alone = GRPOConfig(output_dir="o", bf16=False)
    told = {name: value for name, value in config.to_dict().items() if value != getattr(left_alone, name)}
    assert told.keys() == {
        "gpu_memory_utilization",
        "kl_estimator",
        "gradient_checkpointing",
        "project",
        "hub_strategy",
    }, told


@pytest.mark.parametrize(
    ("field", "value"),
    [("lr_scheduler_type", "linear"), ("num_train_epochs", 3.0), ("save_steps", 500), ("save_total_limit", None),
     ("logging_steps", 10)],
)  # fmt: skip
def test_what_is_filled_in_is_trls_default(trl_config, field, value):
    found = next(f.default for f in dataclasses.fields(trl_config) if f.name == field)
    assert DEFAULTS[field] == value == getattr(found, "value", found)
    assert len(DEFAULTS) == 5


# -- batches: TRL counts completions, we count prompts ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trl", "prompts_per_step", "minibatches"),
    [
        # 8 completions (TRL's default) x 1 process, in groups of 8
        ({"gradient_accumulation_steps": 1}, 1, 1),
        # 4 x 4 accumulated = 16 completions generated at once and trained in one optimizer step
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}, 2, 1),
        # 4 x 8 = 32 completions generated at once, trained in 32 / (4 x 2) = 4 optimizer steps
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 8}, 4, 4),
        # the same, written as a size
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "generation_batch_size": 32}, 4, 4),
        # generated in four goes of 8 before one optimizer step: nothing changes between them
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "steps_per_generation": 1}, 4, 1),
        # two processes double it
        ({"per_device_train_batch_size": 8, "num_processes": 2}, 2, 1),
    ],
)
def test_batch_names_become_prompts_and_minibatches(trl, prompts_per_step, minibatches):
    config = GRPOConfig(num_generations=8, **trl)
    assert (config.prompts_per_step, config.minibatches) == (prompts_per_step, minibatches)


def test_the_processes_of_accelerate_launch_count(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert GRPOConfig(per_device_train_batch_size=8).prompts_per_step == 4


def test_a_batch_that_does_not_hold_whole_groups_is_refused():
    assert "6 completions does not divide by num_generations = 4" in refused(
        per_device_train_batch_size=6, num_generations=4
    )


def test_a_generation_batch_that_contradicts_its_steps_is_refused():
    assert "generation_batch_size = 64" in refused(generation_batch_size=64, steps_per_generation=2)


def test_a_batch_given_in_both_ways_is_refused():
    message = refused(per_device_train_batch_size=8, prompts_per_step=4)
    assert "means prompts_per_step=1, and prompts_per_step=4 is given too" in message


# -- other names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trl", "ours"),
    [
        ({"bf16": True}, {"dtype": "bfloat16"}),
        ({"bf16": None, "fp16": None}, {"dtype": "auto"}),
        ({"use_vllm": True, "vllm_mode": "colocate"}, {"engine": "vllm", "vllm_server_url": []}),
        (
            {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": "http://gpu1:8000"},
            {"engine": "vllm", "vllm_server_url": ["http://gpu1:8000"]},
        ),
        ({"use_vllm": True, "vllm_server_host": "gpu1"}, {"vllm_server_url": ["http://gpu1:8000"]}),
        ({"use_vllm": True, "vllm_server_port": 9000}, {"vllm_server_url": ["http://127.0.0.1:9000"]}),
        ({"use_vllm": False, "vllm_server_host": "gpu1"}, {"engine": "transformers", "vllm_server_url": []}),
        ({"vllm_gpu_memory_utilization": 0.3}, {"gpu_memory_utilization": 0.3}),
        ({"vllm_max_model_length": 2048}, {"max_model_len": 2048}),
        ({"vllm_tensor_parallel_size": 2}, {"tensor_parallel_size": 2}),
        ({"vllm_importance_sampling_correction": False}, {"is_correction": "none"}),
        ({"shuffle_dataset": False}, {"shuffle": False}),
        ({"loss_type": "dapo"}, {"loss_aggregation": "token_mean"}),
        ({"loss_type": "grpo"}, {"loss_aggregation": "seq_mean_token_mean"}),
        ({"loss_type": "dr_grpo"}, {"loss_aggregation": "seq_mean_token_sum_norm"}),
        ({"loss_type": "sapo"}, {"algorithm": "sapo", "loss_aggregation": "seq_mean_token_mean"}),
        (
            {"loss_type": "cispo", "epsilon": 0.3, "epsilon_high": 4.0},
            {"algorithm": "cispo", "is_cap_high": 4.0, "epsilon": 0.2, "epsilon_high": None},
        ),
        (
            {"importance_sampling_level": "sequence", "epsilon": 3e-4},
            {"algorithm": "gspo", "epsilon": 3e-4, "loss_aggregation": "seq_mean_token_mean"},
        ),
        ({"importance_sampling_level": "token"}, {"algorithm": "grpo"}),
        ({"use_bias_correction_kl": False, "beta": 0.1}, {"kl_estimator": "k3_biased"}),
        ({"top_p": None, "top_k": -1}, {"top_p": 1.0, "top_k": 0}),
        ({"scale_rewards": False}, {"scale_rewards": "none"}),
        ({"scale_rewards": True}, {"scale_rewards": "group"}),
        ({"report_to": ["none"]}, {"report_to": []}),
        ({"report_to": "wandb"}, {"report_to": ["wandb"]}),
        ({"optim": "adamw_torch_fused"}, {"optim": "adamw"}),
        ({"lr_scheduler_type": "constant_with_warmup"}, {"lr_scheduler_type": "constant"}),
        ({"save_strategy": "steps", "save_steps": 7}, {"save_steps": 7}),
        ({"save_strategy": "no", "save_steps": 7}, {"save_steps": 0}),
        ({"eval_strategy": "steps", "logging_steps": 3}, {"eval_steps": 3}),
        ({"eval_strategy": "steps", "eval_steps": 5}, {"eval_steps": 5}),
        ({"eval_strategy": "no"}, {"eval_steps": 0}),
        ({"push_to_hub": True, "hub_model_id": "me/m"}, {"push_to_hub": "me/m"}),
        ({"push_to_hub": False, "hub_model_id": "me/m"}, {"push_to_hub": None}),
        ({"push_to_hub": True, "output_dir": "runs/mine"}, {"push_to_hub": "mine"}),
        ({"warmup_ratio": 0.1}, {"warmup_steps": 0.1}),
        ({"warmup_ratio": 0.1, "warmup_steps": 5}, {"warmup_steps": 5}),
        ({"warmup_steps": 0.1, "save_steps": 0.5}, {"warmup_steps": 0.1, "save_steps": 0.5}),
        ({"bf16": False, "lr_scheduler_type": "constant", "warmup_steps": 5}, {"warmup_steps": 0}),
        ({"delta": 3.0}, {"dual_clip": 3.0}),
        ({"log_completions": True}, {"log_completions": 8}),
        ({"log_completions": True, "num_completions_to_print": 2}, {"log_completions": 2}),
        ({"log_completions": False, "num_completions_to_print": 2}, {"log_completions": 0}),
        ({"bf16": False, "push_to_hub": True, "output_dir": "runs/mine"}, {"hub_strategy": "every_save"}),
        ({"push_to_hub": True, "hub_model_id": "me/m", "hub_strategy": "end"}, {"hub_strategy": "end"}),
        ({"min_p": 0.1, "use_vllm": False}, {"min_p": 0.1}),
        ({"generation_kwargs": {"min_p": 0.1}}, {"min_p": 0.1}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_arg": ["enable_thinking=false"]}),
        ({"bf16": False, "eval_strategy": "steps", "num_generations": 4}, {"num_generations_eval": 4}),
        ({"bf16": False, "eval_strategy": "steps", "num_generations_eval": 2}, {"num_generations_eval": 2}),
        ({"bf16": False, "eval_strategy": "no", "num_generations_eval": None}, {"num_generations_eval": 1}),
        (
            {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
            {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_arg": ["min_lr_rate=0.1"]},
        ),
        ({"adam_beta2": 0.99, "adam_epsilon": 1e-6}, {"adam_beta2": 0.99, "adam_epsilon": 1e-6}),
        ({"generation_kwargs": {"stop": ["\n"], "max_new_tokens": 9}}, {"stop": ["\n"], "max_completion_length": 9}),
        ({"use_vllm": True, "vllm_mode": "server"}, {"vllm_server_url": ["http://127.0.0.1:8000"]}),
        ({"use_vllm": True, "vllm_mode": "server", "vllm_server_timeout": 9.0}, {"server_start_timeout": 9.0}),
        (
            {
                "use_vllm": True,
                "vllm_importance_sampling_mode": "token_truncate",
                "vllm_importance_sampling_clip_max": 2.0,
            },
            {"is_correction": "tis", "is_high": 2.0, "is_low": None},
        ),
        (
            {"use_vllm": True, "vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 0.5},
            {"is_correction": "icepop", "is_high": 3.0, "is_low": 0.5},
        ),
        ({"model_init_kwargs": {"dtype": None, "device_map": "auto"}}, {"dtype": "auto"}),
        ({"model_init_kwargs": '{"revision": "main"}'}, {"revision": "main"}),
        ({"resume_from_checkpoint": True}, {"resume": True}),
        ({"resume_from_checkpoint": None}, {"resume": False}),
        ({"model_init_kwargs": {"dtype": "bfloat16", "revision": "main"}}, {"dtype": "bfloat16", "revision": "main"}),
        ({"model_init_kwargs": None}, {"dtype": "auto"}),
        ({"reward_weights": None}, {"reward_weights": []}),
        ({"debug": ""}, {"debug": False}),
    ],
)
def test_a_name_of_trl_sets_ours(trl, ours):
    config = GRPOConfig(**trl)
    assert {name: getattr(config, name) for name in ours} == ours


class SchedulerType(str, Enum):  # noqa: UP042 (as transformers writes it)
    COSINE = "cosine"


class IntervalStrategy(str, Enum):  # noqa: UP042
    NO = "no"


def test_the_enums_of_transformers_are_read_as_their_values():
    config = GRPOConfig(lr_scheduler_type=SchedulerType.COSINE, save_strategy=IntervalStrategy.NO)
    assert (config.lr_scheduler_type, config.save_steps) == ("cosine", 0)


def test_a_torch_dtype_is_read_as_its_name():
    import torch

    assert GRPOConfig(model_init_kwargs={"torch_dtype": torch.bfloat16}).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("trl", "says"),
    [
        ({"fp16": True}, "bfloat16"),
        ({"loss_type": "vespo"}, "docs/algorithms.md"),
        ({"importance_sampling_level": "word"}, "algorithm='gspo'"),
        ({"save_strategy": "epoch"}, "set save_steps"),
        ({"eval_strategy": "epoch"}, "set eval_steps"),
        ({"logging_strategy": "no"}, "set logging_steps"),
        ({"push_to_hub": True}, "push_to_hub='user/name'"),
        ({"hub_strategy": "checkpoint"}, "hub_strategy='every_save'"),
        ({"resume_from_checkpoint": "runs/x/checkpoint-3"}, "resume=True"),
        ({"report_to": "all"}, "report_to=['tensorboard']"),
        ({"optim": "adafactor"}, "adamw, sgd"),
        ({"model_init_kwargs": {"quantization_config": 1}}, "the module"),
        ({"bf16": True, "dtype": "float32"}, "keep one of bf16 and dtype"),
        ({"top_p": 0.9, "use_vllm": True}, "no importance ratio right"),
        ({"deepspeed": "ds.json"}, "set num_processes"),
        ({"use_vllm": True, "vllm_importance_sampling_mode": "words"}, "is_correction"),
        ({"generation_kwargs": {"repetition_penalty": 1.1}}, "log-probs"),
        ({"repetition_penalty": 1.1}, "know no penalties"),
        ({"hub_token": "secret"}, "HF_TOKEN"),
        ({"sync_ref_model": True}, "beta"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_our_setting_or_the_reason(trl, says):
    assert says in refused(**trl)


def test_a_field_whose_value_asks_for_what_happens_anyway_is_passed_over(capsys):
    GRPOConfig(top_p=1.0, top_k=0, deepspeed=None, remove_unused_columns=False, disable_dropout=True, min_p=None)
    assert "passed over" not in capsys.readouterr().err


def test_a_token_is_never_shown():
    assert "hf_abc" not in refused(hub_token="hf_abc")


def test_dropping_columns_is_refused_because_rewards_get_them_all():
    assert "every column" in refused(remove_unused_columns=True)


def test_an_unknown_name_suggests_the_nearest_one():
    assert "did you mean num_generations?" in refused(num_generation=4)
    assert "did you mean per_device_train_batch_size?" in refused(per_device_train_batchsize=4)
