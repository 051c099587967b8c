"""Token losses to one number, independent of how a batch is cut into micro-batches and ranks.

The denominators are those of one whole optimizer step: all ranks, all micro-batches. They are counted once, before the
first backward, from the masks after filtering; importance weights do not change them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from postrl.algorithms.lookup import lookup
from postrl.types import Mean

Unit = Literal["n_tokens", "n_seqs"]


@dataclass(frozen=True)
class Denoms:
    """What one optimizer step averages over. `Denoms(*count(mask_BT))` for a single process and its whole batch."""

    n_tokens: float
    """Trainable tokens of all ranks."""
    n_seqs: float
    """Sequences of all ranks with at least one trainable token."""
    dp_size: int = 1
    """Ranks whose gradients are averaged; the local loss is multiplied by it to undo that average."""
    n_correct_tokens: float = 0.0
    """Trainable tokens of completions that are right."""


def count(mask_BT: Tensor) -> tuple[int, int]:
    """(trainable tokens, sequences with at least one) of a bool mask."""
    return int(mask_BT.sum()), int(mask_BT.any(-1).sum())


@dataclass(frozen=True)
class _Mode:
    unit: Unit
    """What is averaged over."""
    length: Callable[[Tensor, float | None], Tensor | float]
    """(mask, norm_const) -> what the token sum of each sequence is divided by, [B, 1] or a number."""


def _whole(mask_BT: Tensor, norm_const: float | None) -> float:
    return 1.0


def _own_length(mask_BT: Tensor, norm_const: float | None) -> Tensor:
    return mask_BT.sum(-1, keepdim=True).clamp(min=1)


def _constant_length(mask_BT: Tensor, norm_const: float | None) -> float:
    if norm_const is None or norm_const <= 0:
        raise ValueError(
            f"seq_mean_token_sum_norm divides by a constant length above 0, and norm_const is {norm_const}"
        )
    return norm_const


MODES: dict[str, _Mode] = {
    "token_mean": _Mode("n_tokens", _whole),
    "seq_mean_token_mean": _Mode("n_seqs", _own_length),
    "seq_mean_token_sum": _Mode("n_seqs", _whole),
    "seq_mean_token_sum_norm": _Mode("n_seqs", _constant_length),
}
"""token_mean: every token weighs the same (DAPO, arXiv:2503.14476). seq_mean_token_mean: every sequence weighs the
same (GRPO, arXiv:2402.03300). seq_mean_token_sum: the loss of whole sequences (RLOO, arXiv:2402.14740).
seq_mean_token_sum_norm: the same over a constant length, so that no length is favoured (Dr. GRPO, arXiv:2503.20783)."""


def totals(l_BT: Tensor, mask_BT: Tensor, mode: str, *, norm_const: float | None = None) -> Mean:
    """The local sum and count: added over micro-batches and ranks, sum / count is the aggregate of the whole batch.

    The sum keeps its graph; it is an exact 0 with zero gradients when no token is trainable.
    """
    rule = lookup(MODES, mode, "aggregation")
    selected = torch.where(mask_BT, l_BT, 0.0) / rule.length(mask_BT, norm_const)
    return Mean(selected.sum(), mask_BT.sum() if rule.unit == "n_tokens" else mask_BT.any(-1).sum())


def aggregate(l_BT: Tensor, mask_BT: Tensor, mode: str, denoms: Denoms, *, norm_const: float | None = None) -> Tensor:
    """The scalar to call `backward` on for one micro-batch: local masked sum / global denominator * dp_size.

    Summed over the micro-batches of a rank and averaged over ranks, its gradient is that of the whole batch. An empty
    micro-batch gives 0 that is still connected to `l_BT`, so that collectives in the backward pass stay in step.

    Args:
        l_BT: token losses; anything may stand where the mask is not set.
        mask_BT: bool, the trainable tokens.
        mode: a key of `MODES`.
        norm_const: the constant length of `seq_mean_token_sum_norm`, in tokens: a setting, never a tensor's width.

    Raises:
        ValueError: unknown mode, or `norm_const` missing where it is needed.
    """
    local = torch.as_tensor(totals(l_BT, mask_BT, mode, norm_const=norm_const).total)
    denominator = getattr(denoms, MODES[mode].unit)
    return local * (denoms.dp_size / denominator) if denominator else local * 0.0
