"""What `train()` returns."""

from __future__ import annotations

from typing import Any


class TrainResult(dict[str, Any]):
    """The metrics of the last step, by postrl's names; beside them what transformers' trainers return.

    Args:
        last: metrics of the last step.
        metrics: of the whole training, by transformers' names: train_runtime in seconds, train_loss, ...
        global_step: steps done.
    """

    def __init__(self, last: dict[str, Any], metrics: dict[str, float], global_step: int) -> None:
        super().__init__(last)
        self.metrics = metrics
        self.global_step = global_step

    @property
    def training_loss(self) -> float:
        """Mean of the loss over the steps of this call."""
        return self.metrics.get("train_loss", 0.0)
