"""The body of a transformer: token ids in, final hidden states of chosen positions out. Policy and critic put a head on it.

Shapes: b rows of a micro-batch, L padded length of prompt and completion, N chosen positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from postrl.learning.collate import Prefix


class Body(nn.Module):
    """Runs once over right-padded rows: causal attention never looks at the padding behind it, so no mask is needed.

    Args:
        model: what is trained; `transformer` is its part without a head.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def transformer(self) -> Any:
        """The transformers model that gives hidden states."""
        return self.model

    @property
    def in_float32(self) -> tuple[nn.Module, ...]:
        """Modules that compute in float32, whatever the rest computes in."""
        return ()

    def check_head(self) -> None:
        """Refuse a model whose head is not understood, where there is anything to misunderstand."""

    def hidden(self, input_ids: Tensor, select_bL: Tensor, prefix: Prefix | None = None) -> Tensor:
        """Final hidden states [N, D] of the chosen positions, in row order, in the compute dtype.

        Args:
            input_ids: int64 [b, L], right-padded; with a `prefix`, what follows it.
            select_bL: bool, the N positions.
        """
        if prefix is not None:
            return prefix.continued(self.transformer, input_ids)[select_bL]
        hidden: Tensor = self.transformer(input_ids=input_ids, use_cache=False).last_hidden_state
        return hidden[select_bL]


@contextmanager
def evaluating(module: Body) -> Iterator[None]:
    """Without gradients and dropout. Afterwards a sharded model is in shards again: a forward pass leaves the embedding
    and the head gathered, in the compute dtype, until a backward pass, and they would be pushed and saved like that."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)
        if hasattr(module, "reshard"):
            module.reshard()  # type: ignore[operator]
