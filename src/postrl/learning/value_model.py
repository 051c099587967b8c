"""The critic's model: token ids in, the value of the state before each chosen token out.

Shapes: b rows of a micro-batch, L padded length of prompt and completion, N trainable tokens in the micro-batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from postrl.learning.body import Body
from postrl.learning.collate import Prefix


class ValueModel(Body):
    """A transformer body with a linear head of one output, in float32 and zero at the start: nothing is expected yet.

    The head has no bias. The value of completion token t is read where the policy predicts it, at position t - 1: what is
    to be expected before the token is drawn.

    Args:
        body: transformers model without a head, LoRA layers included where it has any.
    """

    def __init__(self, body: Any) -> None:
        super().__init__(body)
        self.head = nn.Linear(body.config.get_text_config().hidden_size, 1, bias=False, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)

    @property
    def in_float32(self) -> tuple[nn.Module, ...]:
        return (self.head,)

    def forward(self, input_ids: Tensor, select_bL: Tensor, prefix: Prefix | None = None) -> Tensor:
        """Values, float32 [N]; arguments as `Body.hidden`."""
        values_N1: Tensor = self.head(self.hidden(input_ids, select_bL, prefix).float())
        return values_N1.squeeze(-1)
