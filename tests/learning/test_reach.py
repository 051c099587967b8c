"""A run whose losses reach no weight stops after three steps, and only such a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny_model, tiny_tokenizer
from learning.batches import make_groups, make_learner, make_pair, settings, update, update_critic
from postrl import GRPOConfig, GRPOTrainer
from postrl.errors import PostrlError
from verdicts import token_sums


def numbed(model: Any) -> Any:
    """A model whose weights get gradients of 0, whatever the loss."""
    for parameter in model.parameters():
        parameter.register_hook(torch.zeros_like)
    return model


def shut(model: Any) -> Any:
    """A model whose forward pass has no backward pass."""
    forward = model.model.forward
    model.model.forward = torch.no_grad()(forward)
    model.lm_head.weight.requires_grad_(False)
    return model


@pytest.mark.parametrize("cut", [numbed, shut])
def test_after_three_steps_without_gradient_the_run_is_over(cut: Any) -> None:
    learner = make_learner(cut(tiny_model(tie=False)), settings(minibatches=2))
    for _ in range(2):
        assert not any(update(learner, make_groups()).grad_norms)
        assert learner.cut_off(2) is None
    update(learner, make_groups())
    error = learner.cut_off(3)
    assert error is not None and "the gradient of the policy was exactly 0 in 3 steps in a row, at step 3" in str(error)


def test_a_step_with_a_gradient_begins_the_count_anew() -> None:
    model = tiny_model()
    hooks = [parameter.register_hook(torch.zeros_like) for parameter in model.parameters()]
    learner = make_learner(model, settings())
    update(learner, make_groups())
    update(learner, make_groups())
    assert learner.reach.lost_in_a_row == 2
    for hook in hooks:
        hook.remove()
    update(learner, make_groups())
    assert learner.reach.lost_in_a_row == 0


def even_rewards() -> list[Any]:
    groups = make_groups()
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        rollout.reward = 1.0
    return groups


@pytest.mark.parametrize(
    ("groups", "options"),
    [
        (even_rewards, {}),  # no advantage
        (make_groups, {"is_correction": "icepop", "is_low": 0.999, "is_high": 1.001}),  # no token within its bounds
        (make_groups, {"is_correction": "mis_seq", "is_low": 0.999, "is_high": 1.001}),
    ],
    ids=["no advantage", "all tokens masked", "all sequences masked"],
)
def test_a_loss_that_asks_for_nothing_does_not_count(groups: Any, options: dict[str, Any]) -> None:
    learner = make_learner(tiny_model(), settings(**options))
    for _ in range(3):
        assert not any(update(learner, groups()).grad_norms)
    assert learner.reach.lost_in_a_row == 0 and learner.cut_off(3) is None


def test_a_critic_is_looked_at_for_itself() -> None:
    learner = make_pair(tiny_model(tie=False), settings(algorithm="ppo"))
    assert learner.critic is not None
    numbed(learner.critic.module)
    for _ in range(3):
        update(learner, make_groups())
        update_critic(learner, make_groups())
    error = learner.cut_off(3)
    assert error is not None and "the gradient of the critic was exactly 0" in str(error)


def test_a_run_of_a_frozen_model_stops_with_its_checkpoint(tmp_path: Path) -> None:
    args = GRPOConfig(
        output_dir=str(tmp_path / "run"), dataset=["arithmetic"], engine="transformers", max_completion_length=8,
        prompts_per_step=2, num_generations=4, max_steps=9,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=numbed(tiny_model(tie=False)), reward_funcs=token_sums, args=args, processing_class=tiny_tokenizer()
    )
    with pytest.raises(PostrlError, match="gradient of the policy was exactly 0 in 3 steps in a row, at step 3"):
        trainer.train()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["policy/grad_norm"] for row in rows if row["step"]] == [0.0, 0.0, 0.0]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000003"]
