"""How rows pass through a model on one rank: with which attention, which rows together, what is read of them.

This is the way of GPUs. What ranks on CPUs do otherwise is in `postrl.learning.on_cpu`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from postrl.learning.attention import use_repeated
from postrl.learning.body import Body
from postrl.learning.collate import Prefix, collate
from postrl.learning.microbatch import Packing
from postrl.types import Batch, Rollout


class Passes:
    """The passes of a model that computes in `dtype` on `device`."""

    recompute = True
    """Whether activations are computed again in the backward pass, where the settings do not say."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def fit(self, model: Any) -> None:
        """Give a transformers model that would use sdpa the attention that fits the device."""
        if self.dtype == torch.float32:
            use_repeated(model)

    def begin(self, body: Body, *, sharded: bool) -> None:
        """Look at a model that is on its device, before its first pass."""

    def inputs(
        self, rollouts: Sequence[Rollout], mask_BT: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Prefix | None]:
        """input_ids, select_bL, targets_N and place_bT as `collate` gives them, and what the rows continue."""
        return (*collate(rollouts, mask_BT, self.device), None)

    def packing(self, batch: Batch) -> Packing | None:
        """Which rows of a batch go into one pass, see `microbatch.plan`; None: those of like length."""
        return None

    def give_back_memory(self) -> None:
        """Hand freed memory back to the machine, where it would be kept."""
