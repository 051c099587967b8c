"""Learning-rate schedules, by hand: peak 1.0, 2 warm-up steps of 10."""

from __future__ import annotations

import pytest
import torch

from postrl.config import GRPOConfig
from postrl.learning.optim import learning_rate, make_optimizer


def rates(kind: str, warmup: int = 2, total: int = 10, steps: int = 12) -> list[float]:
    config = GRPOConfig(learning_rate=1.0, lr_scheduler_type=kind, warmup_steps=warmup)
    return [learning_rate(config, step, total) for step in range(steps)]


def test_warm_up_rises_to_the_peak_and_constant_stays_there():
    assert rates("constant") == [0.5, *[1.0] * 11]


def test_linear_falls_to_zero_at_the_end_and_stays():
    assert rates("linear") == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0, 0.0])


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
    assert rates("cosine", warmup=4, total=2, steps=3) == [0.25, 0.5, 0.75]


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_only_what_is_trained_is_in_the_optimizer(name, kind):
    trained, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = make_optimizer([trained, frozen], GRPOConfig(optim=name, weight_decay=0.1, learning_rate=0.5))
    (group,) = optimizer.param_groups
    assert type(optimizer) is kind
    assert [id(p) for p in group["params"]] == [id(trained)]
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.1)
