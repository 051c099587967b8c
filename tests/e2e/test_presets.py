"""Every algorithm through the whole loop: two steps with the embedded engine on a tiny random model."""

from __future__ import annotations

import math
from contextlib import closing

import pytest
import torch
from safetensors.torch import load_file

from helpers import tiny_model_dir
from postrl import GRPOConfig, GRPOTrainer
from postrl.algorithms import PRESETS
from postrl.run.metrics import meaning, read_metrics
from verdicts import even

ROWS = [{"prompt": f"Say {word}."} for word in ("one", "two", "three", "four", "five", "six")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model_dir(tmp_path_factory.mktemp("presets") / "tiny")


@pytest.mark.parametrize("name", PRESETS)
def test_two_steps_move_the_policy(name, model, tmp_path):
    # Groups of one stay groups of one; the others are made small. Critics start at once.
    group = 1 if PRESETS[name].settings.get("num_generations") == 1 else 4
    critic = {"critic_warmup_steps": 0} if "values" in PRESETS[name].needs else {}
    if "length_adaptive_alpha" in PRESETS[name].settings:  # its own is for completions of thousands of tokens
        critic["length_adaptive_alpha"] = 2.0
    config = GRPOConfig(
        algorithm=name, output_dir=str(tmp_path), engine="transformers", prompts_per_step=8 // group, num_generations=group,
        max_completion_length=6, max_steps=2, learning_rate=1e-3, save_steps=0, **critic,
    )  # fmt: skip
    with closing(GRPOTrainer(model=str(model), reward_funcs=even, args=config, train_dataset=ROWS)) as trainer:
        trainer.train()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert math.isfinite(row["policy/loss"]) and row["policy/grad_norm"] > 0 and row["policy/nonfinite"] == 0
        assert all(meaning(metric) for metric in row), "every metric is explained"
    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "model" / "model.safetensors")
    assert any(not torch.equal(before[weight], after[weight]) for weight in before)


def test_with_top_p_and_top_k_learner_and_sampler_agree_on_the_tokens_that_were_left(model, tmp_path):
    config = GRPOConfig(
        output_dir=str(tmp_path), engine="transformers", prompts_per_step=2, num_generations=4, max_completion_length=6,
        max_steps=2, learning_rate=1e-4, save_steps=0, top_p=0.9, top_k=20, beta=0.1, minibatches=2,
    )  # fmt: skip
    with closing(GRPOTrainer(model=str(model), reward_funcs=even, args=config, train_dataset=ROWS)) as trainer:
        trainer.train()
    for row in read_metrics(tmp_path / "metrics.jsonl"):
        assert row["mismatch/max_abs"] < 1e-3 and row["policy/grad_norm"] > 0
        assert row["policy/entropy"] < math.log(20) + 1e-3, "of twenty tokens at most"
        assert math.isfinite(row["policy/kl_ref"])
