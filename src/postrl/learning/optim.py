"""Optimizer and learning-rate schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

import torch

from postrl.config.setting import in_steps
from postrl.config.values import arguments
from postrl.errors import UsageError

if TYPE_CHECKING:
    from postrl.config import GRPOConfig


def make_optimizer(parameters: Iterable[torch.nn.Parameter], config: GRPOConfig) -> torch.optim.Optimizer:
    trained = [p for p in parameters if p.requires_grad]
    if config.optim == "sgd":
        return torch.optim.SGD(trained, lr=config.learning_rate, weight_decay=config.weight_decay)
    return torch.optim.AdamW(
        trained,
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
        # Left to itself, torch loops over sharded parameters, with a dozen small kernels for each.
        fused=True if any(p.device.type == "cuda" for p in trained) else None,
    )


def make_schedule(config: GRPOConfig, total: int) -> Callable[[int], float]:
    """The learning rate of each optimizer step (from 0) of `total`: that of transformers' schedule of this name, which begins
    its warm-up at 0.

    Raises:
        UsageError: the schedule does not take the arguments, or misses one.
    """
    from transformers import get_scheduler

    name = "constant_with_warmup" if config.lr_scheduler_type == "constant" else config.lr_scheduler_type
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=config.learning_rate)  # schedules are made for an optimizer
    warmup = in_steps(config.warmup_steps, total)
    try:
        schedule = get_scheduler(name, optimizer, warmup, total, arguments(config.lr_scheduler_arg))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"lr_scheduler_type = {config.lr_scheduler_type} cannot be made of lr_scheduler_arg = {config.lr_scheduler_arg}: {error}",
            hint="its arguments are those of transformers' get_scheduler, each as --lr-scheduler-arg KEY=VALUE",
        ) from error
    (share,) = cast("torch.optim.lr_scheduler.LambdaLR", schedule).lr_lambdas
    return lambda step: config.learning_rate * float(share(min(step, total)))  # a cosine would rise again
