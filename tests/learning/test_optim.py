"""Optimizers; learning-rate schedules, by hand: peak 1.0, 2 warm-up steps of 10."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from transformers import get_scheduler

from postrl.config import GRPOConfig
from postrl.config.training_settings import Schedule
from postrl.errors import UsageError
from postrl.learning.optim import make_optimizer, make_schedule


def rates(kind: str, warmup: float = 2, total: int = 10, steps: int = 12, **settings: object) -> list[float]:
    config = GRPOConfig(algorithm="grpo", learning_rate=1.0, lr_scheduler_type=kind, warmup_steps=warmup, **settings)
    return [*map(make_schedule(config, total), range(steps))]


def test_warm_up_rises_to_the_peak_and_constant_stays_there():
    assert rates("constant") == [0.0, 0.5, *[1.0] * 10]


def test_linear_falls_to_zero_at_the_end_and_stays():
    assert rates("linear") == pytest.approx([0.0, 0.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0, 0.0])


def test_cosine_is_half_way_down_in_the_middle():
    cosine = rates("cosine")
    assert cosine[2] == 1.0
    assert cosine[4] == pytest.approx(0.853553)  # (1 + cos(pi / 4)) / 2
    assert cosine[6] == pytest.approx(0.5)
    assert cosine[10] == pytest.approx(0.0)
    assert cosine[11] == pytest.approx(0.0)


def test_without_warm_up_the_first_step_has_the_peak():
    assert rates("linear", warmup=0, total=4, steps=4) == [1.0, 0.75, 0.5, 0.25]


def test_a_warm_up_longer_than_the_run_only_rises():
    assert rates("cosine", warmup=4, total=2, steps=3) == [0.0, 0.25, 0.5]


def test_a_warm_up_may_be_a_share_of_all_steps():
    assert rates("constant", warmup=0.25, total=10) == rates("constant", warmup=3, total=10)


def test_a_schedule_takes_its_arguments_and_says_which_it_does_not_take():
    assert rates("cosine_with_min_lr", warmup=0, lr_scheduler_arg=["min_lr_rate=0.1"])[10] == pytest.approx(0.1)
    assert rates("cosine_with_restarts", warmup=0, lr_scheduler_arg=["num_cycles=2"])[5] == pytest.approx(1.0)
    with pytest.raises(UsageError, match="unexpected keyword argument 'cycles'") as error:
        rates("cosine", lr_scheduler_arg=["cycles=2"])
    assert "--lr-scheduler-arg KEY=VALUE" in (error.value.hint or "")


@pytest.mark.parametrize("kind", get_args(Schedule))
@pytest.mark.parametrize("warmup", [0, 3])
def test_every_schedule_is_that_of_transformers(kind, warmup):
    further = {"warmup_stable_decay": {"num_decay_steps": 2}, "cosine_with_min_lr": {"min_lr": 0.1},
               "cosine_warmup_with_min_lr": {"min_lr": 0.1}}.get(kind, {})  # fmt: skip
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    theirs = get_scheduler(kind if kind != "constant" else "constant_with_warmup", optimizer, warmup, 10, further)
    expected = []
    for _ in range(10):
        expected += theirs.get_last_lr()
        optimizer.step()
        theirs.step()
    given = [f"{key}={value}" for key, value in further.items()]
    assert rates(kind, warmup, steps=10, lr_scheduler_arg=given) == pytest.approx(expected)


def test_adamw_has_the_betas_and_the_epsilon_that_are_set():
    config = GRPOConfig(adam_beta1=0.8, adam_beta2=0.99, adam_epsilon=1e-6)
    (group,) = make_optimizer([torch.nn.Parameter(torch.ones(2))], config).param_groups
    assert (group["betas"], group["eps"]) == ((0.8, 0.99), 1e-6)


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_only_what_is_trained_is_in_the_optimizer(name, kind):
    trained, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = make_optimizer([trained, frozen], GRPOConfig(optim=name, weight_decay=0.1, learning_rate=0.5))
    (group,) = optimizer.param_groups
    assert type(optimizer) is kind
    assert [id(p) for p in group["params"]] == [id(trained)]
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.1)
