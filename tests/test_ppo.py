"""Runs with a critic through the trainer: warm-up, metrics, what the run folder holds, resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import tiny_model_dir
from postrl import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from postrl.errors import UsageError
from postrl.run.metrics import meaning
from verdicts import spread

SETTINGS: dict[str, Any] = {
    "dataset": ["arithmetic"],
    "engine": "transformers",
    "max_completion_length": 8,
    "prompts_per_step": 2,
    "num_generations": 4,
    "minibatches": 2,
    "learning_rate": 1e-3,
    "critic_learning_rate": 1e-2,
    "max_steps": 2,
    "save_steps": 1,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ppo")
    tiny_model_dir(folder / "tiny", tie=False)
    return folder


def trainer(place: Path, name: str, **options: Any) -> PPOTrainer:
    settings = {**SETTINGS, "output_dir": str(place / name), **options}
    return PPOTrainer(model=str(place / "tiny"), reward_funcs=spread, args=PPOConfig(**settings))


def train(place: Path, name: str, **options: Any) -> Path:
    running = trainer(place, name, **options)
    running.train()
    running.close()
    return place / name


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["step"]]


def same(one: Path, other: Path) -> bool:
    left, right = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert left.keys() == right.keys()
    return all(torch.equal(tensor, right[name]) for name, tensor in left.items())


@pytest.fixture(scope="module")
def ppo(place) -> Path:
    return train(place, "ppo")


def test_every_step_reports_the_critic(ppo):
    rows = metrics(ppo)
    assert [row["step"] for row in rows] == [1, 2]
    names = {"loss", "value", "clip_frac", "grad_norm", "lr", "explained_variance", "nonfinite", "warmup"}
    for row in rows:
        assert {name for name in row if name.startswith("critic/")} == {f"critic/{name}" for name in names}
        assert row["critic/grad_norm"] > 0 and row["critic/warmup"] == 0 and row["critic/lr"] == 1e-2
        assert row["policy/grad_norm"] > 0 and row["policy/lr"] == 1e-3
        assert [name for name in row if meaning(name) is None] == []
    assert rows[0]["critic/explained_variance"] == 0.0  # the head is zero


def test_the_run_leaves_a_policy_and_a_critic(place, ppo):
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    AutoModelForCausalLM.from_pretrained(ppo / "model")
    critic = AutoModelForTokenClassification.from_pretrained(ppo / "critic")
    assert critic.score.weight.shape == (1, 64) and critic.score.weight.any()
    assert not same(ppo / "model", place / "tiny")


def test_in_the_warm_up_the_critic_is_trained_alone(place):
    run = train(place, "warm", critic_warmup_steps=2)
    assert same(run / "model", place / "tiny")
    assert load_file(run / "critic" / "model.safetensors")["score.weight"].any()
    rows = metrics(run)
    assert [row["critic/warmup"] for row in rows] == [1.0, 1.0]
    assert [row["weights/version"] for row in rows] == [0, 1]
    assert [name for row in rows for name in row if name.startswith("policy/")] == []
    assert all(row["throughput/train_tokens_per_s"] > 0 for row in rows)


LATE = {"critic_warmup_steps": 1, "lr_scheduler_type": "linear", "minibatches": 1}


@pytest.fixture(scope="module")
def late(place) -> Path:
    """One step of the critic alone, then two of both."""
    return train(place, "late", max_steps=3, **LATE)


def test_the_schedule_of_the_policy_begins_after_the_warm_up(late):
    first, second, third = metrics(late)
    assert "policy/lr" not in first
    assert (second["policy/lr"], third["policy/lr"]) == pytest.approx((1e-3, 5e-4))
    assert [row["critic/lr"] for row in (first, second, third)] == pytest.approx([1e-2, 2e-2 / 3, 1e-2 / 3])


def test_a_run_resumed_after_the_warm_up_ends_as_the_uninterrupted_one(place, late):
    train(place, "parts", max_steps=1, **LATE)
    parts = train(place, "parts", max_steps=3, resume=True, **LATE)
    assert same(late / "model", parts / "model") and same(late / "critic", parts / "critic")
    assert [row["critic/loss"] for row in metrics(late)] == [row["critic/loss"] for row in metrics(parts)]


def test_vapo_runs_with_its_own_defaults_but_for_those_that_are_for_long_runs_and_completions(place):
    rows = metrics(train(place, "vapo", algorithm="vapo", critic_warmup_steps=1, length_adaptive_alpha=2.0))
    assert [row["critic/warmup"] for row in rows] == [1.0, 0.0]
    assert "policy/nll" in rows[1]


def test_a_run_with_adapters_has_a_critic_with_adapters(place):
    running = trainer(place, "lora", lora_rank=4, max_steps=1)
    running.train()
    critic = running.opened_session.learner.critic.module
    learns = {name for name, parameter in critic.named_parameters() if parameter.requires_grad}
    running.close()
    assert any("lora_" in name for name in learns) and all("lora_" in name or "head" in name for name in learns)
    assert (place / "lora" / "model" / "adapter_model.safetensors").exists()
    assert not any("lora_" in name for name in load_file(place / "lora" / "critic" / "model.safetensors"))


def test_the_critic_is_saved_beside_a_model_that_is_saved_elsewhere(place, tmp_path):
    running = trainer(place, "elsewhere", max_steps=1)
    running.train()
    running.save_model(tmp_path / "open")
    running.close()
    running.save_model(tmp_path / "closed")
    for folder in ("open", "closed"):
        assert same(tmp_path / folder, place / "elsewhere" / "model")
        assert same(tmp_path / folder / "critic", place / "elsewhere" / "critic")


# -- the classes -------------------------------------------------------------------------------------------------------


def test_ppo_is_the_default_of_its_config_and_trainer(place):
    config = PPOConfig()
    assert (config.algorithm, config.num_generations, config.minibatches) == ("ppo", 1, 4)
    assert config.to_dict() == GRPOConfig(algorithm="ppo").to_dict()
    assert PPOTrainer(model=str(place / "tiny")).args.algorithm == "ppo"
    assert GRPOTrainer(model=str(place / "tiny")).args.algorithm == "grpo"


def test_a_config_of_ppo_is_read_from_dicts_and_files(tmp_path):
    assert PPOConfig(algorithm="vapo").epsilon_high == 0.28
    config = PPOConfig.from_dict({"gamma": 0.9})
    assert (type(config), config.algorithm, config.gamma) == (PPOConfig, "ppo", 0.9)
    config.save(tmp_path / "config.yaml")
    assert PPOConfig.from_yaml(tmp_path / "config.yaml") == config
    assert GRPOConfig.from_yaml(tmp_path / "config.yaml").to_dict() == config.to_dict()
    with pytest.raises(UsageError, match="no_such_setting"):
        PPOConfig(no_such_setting=1)
