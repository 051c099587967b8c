"""Whether what a loss asks of a model reaches its weights. A model that is cut off from its loss (frozen or quantised layers,
a forward pass without gradients) trains to the end of a run and learns nothing.

The loss asks for something where its gradient in what the model gives (log-probs, values) is not 0. That of rows without
advantage is, as is that of tokens outside the clip range or without importance weight: they ask for nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from postrl.errors import PostrlError

MAX_LOST = 3
"""Steps in a row in which nothing reached any weight, after which the run stops."""


class Reach:
    """Follows the updates of one model, on one rank.

    Args:
        name: the model's, for people.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.lost_in_a_row = 0
        self._reached = self._lost = False
        """Of this step: whether there was a gradient, and whether there was none where the loss asked for one."""
        self._asked = torch.zeros((), dtype=torch.bool, device=device)

    def watched(self, output: Tensor) -> Tensor:
        """What the model gives for a micro-batch. From a model that computes without gradients the loss gets no further."""
        output.requires_grad_().register_hook(self._see)  # type: ignore[no-untyped-call]
        return output

    def _see(self, gradient: Tensor) -> None:
        self._asked.logical_or_(gradient.any())

    def take_asked(self) -> bool:
        """Whether the loss of any micro-batch since the last call asked this rank's model for something."""
        asked = bool(self._asked)
        self._asked.zero_()
        return asked

    def updated(self, grad_norm: float, asked: bool) -> None:
        """Take in an optimizer step; `asked`: on any rank."""
        self._reached |= grad_norm > 0
        self._lost |= asked and grad_norm == 0

    def step_ended(self) -> None:
        """Count the step if its loss asked for something and none of its optimizer steps had a gradient."""
        if self._reached:
            self.lost_in_a_row = 0
        elif self._lost:
            self.lost_in_a_row += 1
        self._reached = self._lost = False

    def error(self, step: int) -> PostrlError | None:
        """The end of a run that learns nothing, after `step`; the same on every rank."""
        if self.lost_in_a_row < MAX_LOST:
            return None
        return PostrlError(
            f"the gradient of the {self.name} was exactly 0 in {MAX_LOST} steps in a row, at step {step}, although its loss "
            "was not flat: nothing is learned",
            hint="something cuts the weights off the loss, such as frozen or quantised layers or a forward pass without "
            "gradients, or every token has probability 1 (docs/failures.md)",
        )
