"""Optimizer and learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from postrl.config import GRPOConfig


def make_optimizer(parameters: Iterable[torch.nn.Parameter], config: GRPOConfig) -> torch.optim.Optimizer:
    trained = [p for p in parameters if p.requires_grad]
    if config.optim == "sgd":
        return torch.optim.SGD(trained, lr=config.learning_rate, weight_decay=config.weight_decay)
    # Left to itself, torch loops over sharded parameters, with a dozen small kernels for each.
    fused = True if any(p.device.type == "cuda" for p in trained) else None
    return torch.optim.AdamW(trained, lr=config.learning_rate, weight_decay=config.weight_decay, fused=fused)


def learning_rate(config: GRPOConfig, step: int, total: int) -> float:
    """The learning rate of optimizer step `step` (from 0) of `total`: linear warm-up, then the chosen shape."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.lr_scheduler_type == "constant":
        return config.learning_rate
    progress = min(1.0, (step - config.warmup_steps) / max(1, total - config.warmup_steps))
    if config.lr_scheduler_type == "linear":
        return config.learning_rate * (1.0 - progress)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
