"""Probability ratios that cannot overflow and that masked positions cannot poison."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to plus or minus this before `exp`; beyond it the gradient is 0."""


def log_ratio(new_BT: Tensor, old_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`new - old` where the mask is set and 0 elsewhere, whatever stands there (NaN and infinities included)."""
    return torch.where(mask_BT, new_BT - old_BT, 0.0)


def ratio(log_ratio_BT: Tensor) -> Tensor:
    """`exp` of a log-ratio, clamped to plus or minus `LOG_RATIO_LIMIT`."""
    return log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
