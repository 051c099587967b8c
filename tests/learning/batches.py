"""Replayed rollouts for tests: groups of random completions with made-up rewards, and a learner to train on them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from helpers import tiny_tokenizer
from postrl.algorithms.algorithm import Algorithm
from postrl.algorithms.objective import PolicyObjective, ValueObjective, with_advantages
from postrl.config import GRPOConfig
from postrl.learning.batch import make_batch
from postrl.learning.critic import Critic, critic_body
from postrl.learning.learner import Learner
from postrl.learning.optimizing import UpdateReport
from postrl.learning.sharding import Ranks, whole
from postrl.session import resolve_algorithm
from postrl.types import Batch, Group, Rollout, VersionSpan

ALONE = Ranks(0, 1, torch.device("cpu"))


def make_groups(num_groups: int = 4, size: int = 4, *, seed: int = 0, longest: int = 12) -> list[Group]:
    """Random tokens, rewards 0 or 1, sampler log-probs far enough off that some are truncated."""
    draw = random.Random(seed)
    vocabulary = len(tiny_tokenizer())

    def tokens(n: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(n)]

    def rollout(prompt_id: str, prompt: list[int], i: int) -> Rollout:
        n = draw.randint(1, longest)
        return Rollout(
            prompt_id=prompt_id,
            sample_index=i,
            prompt_ids=prompt,
            completion_ids=tokens(n),
            logps=[-draw.uniform(3.0, 8.0) for _ in range(n)],
            version_spans=[VersionSpan(0, 0, n)],
            finish_reason=draw.choice(["stop", "length"]),
            rewards={"made_up": float(i % 2)},
            statuses={"made_up": "scored"},
            reward=float(i % 2),
        )

    groups = []
    for g in range(num_groups):
        prompt = tokens(draw.randint(1, 8))
        rollouts = [rollout(f"test:{g}", prompt, i) for i in range(size)]
        groups.append(Group(f"test:{g}", g, "", None, {}, rollouts))
    return groups


def settings(**options: Any) -> GRPOConfig:
    """SGD with rate 1 and no clipping of the norm: the step is the gradient."""
    chosen = {"learning_rate": 1.0, "optim": "sgd", "max_grad_norm": 0.0, "max_completion_length": 16, **options}
    return GRPOConfig(**chosen)


def make_learner(
    model: Any, config: GRPOConfig, *, ranks: Ranks = ALONE, dtype: str = "float32", **options: Any
) -> Learner:
    return Learner(
        model, config=config, ranks=ranks, dtype=dtype, total_updates=options.pop("total_updates", 10), **options
    )


def make_pair(
    model: Any, config: GRPOConfig, *, ranks: Ranks = ALONE, dtype: str = "float32", total_updates: int = 10
) -> Learner:
    """A learner with a critic, as a run has them for ppo."""
    body = critic_body(config, model, tiny_tokenizer())
    critic = Critic(body, config=config, ranks=ranks, dtype=dtype, total_updates=total_updates)
    return make_learner(model, config, ranks=ranks, dtype=dtype, total_updates=total_updates, critic=critic)


def prepared(learner: Learner, groups: list[Group], version: int = 0) -> tuple[Batch, Algorithm]:
    """Assessed, with advantages: what `update` takes."""
    algorithm = resolve_algorithm(learner.config)
    batch = learner.assess(make_batch(groups, version, learner.ranks.device), algorithm.needs)
    return with_advantages(batch, algorithm), algorithm


def update(learner: Learner, groups: list[Group], version: int = 0, spoil: Any = None) -> UpdateReport:
    """One phase, as the trainer does it. `spoil` may change the loss of a micro-batch."""
    batch, algorithm = prepared(learner, groups, version)
    return learner.update(batch, PolicyObjective(algorithm) if spoil is None else Spoilt(algorithm, spoil))


@dataclass(frozen=True)
class Spoilt(PolicyObjective):
    spoil: Callable[[Any, Any], Any]

    def loss(self, *args: Any) -> Any:
        return self.spoil(*super().loss(*args))


def update_critic(learner: Learner, groups: list[Group], version: int = 0) -> UpdateReport:
    """One phase of the critic alone."""
    batch, algorithm = prepared(learner, groups, version)
    assert learner.critic is not None
    return learner.critic.update(batch, ValueObjective(algorithm))


def critic_weights(learner: Learner) -> dict[str, torch.Tensor]:
    """Everything that is trained, and the rest."""
    assert learner.critic is not None
    return {name: whole(p.detach()).clone() for name, p in learner.critic.module.named_parameters()}


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.weights()}


def assert_same_step(
    before: dict[str, torch.Tensor], one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], rtol: float = 1e-5
) -> None:
    """Two learners that started from `before` made the same step, relative to the size of each tensor's step."""
    assert before.keys() == one.keys() == other.keys()
    for name in before:
        step, twin = one[name].double() - before[name].double(), other[name].double() - before[name].double()
        assert step.norm() > 0, f"{name} did not move"
        assert (step - twin).norm() <= rtol * step.norm(), f"{name}: {float((step - twin).norm() / step.norm()):.2g}"
