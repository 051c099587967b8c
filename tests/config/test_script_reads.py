"""TRL's names read off the settings, and set later."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from postrl.config import GRPOConfig, trl_names
from postrl.errors import UsageError


@pytest.fixture(autouse=True)
def a_new_run(monkeypatch):
    """Lines are printed once a process; each test is a run of its own."""
    monkeypatch.setattr(trl_names, "_said", set())
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_trls_names_are_read_as_they_were_given():
    config = GRPOConfig(per_device_train_batch_size=4, gradient_accumulation_steps=4, bf16=True, eval_strategy="no")
    for args in (config, dataclasses.replace(config, model="m")):
        assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 4)
        assert (args.bf16, args.eval_strategy, args.fp16, args.model_init_kwargs) == (True, "no", False, None)


def test_trls_names_that_were_not_given_follow_from_the_settings():
    config = GRPOConfig(
        prompts_per_step=4, num_generations=2, minibatches=2, save_steps=0, push_to_hub="me/m", resume=True
    )
    assert (config.per_device_train_batch_size, config.steps_per_generation, config.generation_batch_size) == (4, 2, 8)
    assert (config.save_strategy, config.hub_model_id, config.resume_from_checkpoint) == ("no", "me/m", True)
    assert (config.local_rank, config.world_size, config.process_index) == (-1, 1, 0)
    assert isinstance(config.device, torch.device)
    assert (config.load_best_model_at_end, config.metric_for_best_model) == (None, None)


def test_a_name_that_nobody_has_says_where_the_settings_are():
    with pytest.raises(AttributeError, match="no setting num_generation: `postrl grpo --help-all`"):
        _ = GRPOConfig().num_generation
    assert not hasattr(GRPOConfig(), "nothing")


def test_a_name_of_trl_that_is_set_later_changes_what_it_means():
    config = GRPOConfig(per_device_train_batch_size=8, num_generations=4, learning_rate=1e-5)
    config.max_steps = 3
    config.model_init_kwargs = {"revision": "main", "dtype": "bfloat16"}
    config.gradient_accumulation_steps = 2
    config.gradient_checkpointing_kwargs = {"use_reentrant": False}
    assert (config.revision, config.dtype, config.prompts_per_step, config.max_steps) == ("main", "bfloat16", 4, 3)
    assert (config.learning_rate, config.gradient_accumulation_steps) == (1e-5, 2)
    with pytest.raises(UsageError, match="fp16=True"):
        config.fp16 = True
    assert config.fp16 is False


def test_the_methods_of_trls_arguments_that_scripts_call():
    config = GRPOConfig(reward=["math"], output_dir="o")
    assert json.loads(config.to_json_string())["output_dir"] == "o"
    assert config.to_sanitized_dict()["reward"] == "['math']"
    assert config.get_process_log_level() == 20
    with config.main_process_first(desc="a map"):
        pass
