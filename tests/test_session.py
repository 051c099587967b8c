"""What a run is made of, from its settings."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_model_dir
from learning.batches import make_groups
from postrl import GRPOConfig, GRPOTrainer
from postrl.errors import UsageError
from postrl.metrics import read_metrics
from postrl.rollout.store import write_rollouts
from postrl.session import resolve_algorithm


def test_correction_bounds_and_dual_clip_reach_the_algorithm():
    a = resolve_algorithm(GRPOConfig(is_correction="icepop", is_low=0.4, is_high=4, dual_clip=3))
    assert (a.is_correction, a.bounds, a.dual_clip) == ("icepop", {"low": 0.4, "high": 4.0}, 3.0)
    assert resolve_algorithm(GRPOConfig(is_correction="seed", is_eps=0.3)).bounds == {"eps": 0.3}
    assert resolve_algorithm(GRPOConfig(is_correction="opsm", is_delta=0.5)).bounds == {"delta": 0.5}
    assert resolve_algorithm(GRPOConfig()).bounds == {}


def replayed(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Metrics of two steps on stored rollouts with a tiny model."""
    tiny_model_dir(folder / "tiny")
    for step in (1, 2):
        write_rollouts(folder / "stored" / "rollouts", step, "train", make_groups(seed=step))
    config = GRPOConfig(
        output_dir=str(folder / "run"), replay=str(folder / "stored"), max_completion_length=16, prompts_per_step=4,
        num_generations=4, learning_rate=1e-3, beta=0.1, **settings,
    )  # fmt: skip
    with closing(GRPOTrainer(model=str(folder / "tiny"), args=config)) as trainer:
        trainer.train()
    return read_metrics(folder / "run" / "metrics.jsonl")


def test_a_reference_that_follows_is_the_policy_again_after_its_step(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    stays = replayed(tmp_path / "a")
    follows = replayed(tmp_path / "b", sync_ref_model=True, ref_model_sync_steps=1, ref_model_mixup_alpha=1.0)
    assert stays[0]["policy/kl_ref"] == follows[0]["policy/kl_ref"] == pytest.approx(0.0, abs=1e-6)
    assert stays[1]["policy/kl_ref"] > 1e-4 > abs(follows[1]["policy/kl_ref"])


def test_a_reference_under_a_scripts_adapter_cannot_follow(tmp_path):
    from peft import LoraConfig

    tiny_model_dir(tmp_path / "tiny")
    config = GRPOConfig(
        output_dir=str(tmp_path / "run"), dataset=["arithmetic"], engine="transformers", beta=0.1, sync_ref_model=True
    )
    adapter = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    with pytest.raises(UsageError, match="sync_ref_model is on, and the reference of a model with an adapter"):
        GRPOTrainer(model=str(tmp_path / "tiny"), args=config, peft_config=adapter).train()
