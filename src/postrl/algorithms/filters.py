"""Who is trained on. The order matters:

stale rollouts -> rewards, overlong punishment -> group statistics -> truncation mask -> denominators -> importance weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from postrl.types import Batch


def truncated(batch: Batch) -> Tensor:
    """bool [B]: completions that were cut at the token limit."""
    cut = [rollout.finish_reason == "length" for rollout in batch.rollouts]
    return torch.tensor(cut, dtype=torch.bool, device=batch.mask_BT.device)


def truncation_mask(mask_BT: Tensor, truncated_B: Tensor) -> Tensor:
    """The mask without completions that were cut at the token limit (DAPO, arXiv:2503.14476).

    Apply it after group statistics, where their rewards still count, and before the denominators are counted.
    `truncated_B`: bool, finish_reason == "length"; the last token does not tell, since stop texts differ.
    """
    return mask_BT & ~truncated_B.unsqueeze(-1)


def overlong_penalty(lengths_B: Tensor, max_length: float, cache: float) -> Tensor:
    """Soft overlong punishment (DAPO, arXiv:2503.14476, equation 13), float64 [B], at most 0.

    0 up to `max_length - cache` tokens, falling linearly to -1 at `max_length`, and -1 beyond.

    Args:
        lengths_B: generated tokens of each completion.
    """
    return -((lengths_B.double() - (max_length - cache)) / cache).clamp(0.0, 1.0)
