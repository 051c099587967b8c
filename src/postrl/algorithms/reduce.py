"""Metrics as `Mean(total, count)`: added over micro-batches and ranks, divided once at the end.

How a metric is reduced is read from its name, and only from its name:

    mismatch/max_abs, anything_max   a maximum, held as Mean(maximum, 1): the larger one wins (`is_maximum`)
    every other name                 total and count are added

Over ranks, all-reduce those of the first kind with MAX and of the second with SUM; every rank holds the same names
as long as each ran at least one micro-batch, an empty one included. Values may be 0-d tensors, so that no micro-batch
waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from postrl.types import Mean, Means, reported

Pair = tuple[float | Tensor, float | Tensor]
"""A `Mean`, or what an algorithm of the user's gives for one."""


def masked_mean(x_BT: Tensor, mask_BT: Tensor) -> Mean:
    """The mean of `x` where the mask is set."""
    return Mean(torch.where(mask_BT, x_BT.detach(), 0.0).sum(), mask_BT.sum())


def masked_row_mean(x: Tensor, mask_BT: Tensor) -> Tensor:
    """One number for each row: `x` itself when it is [B], its mean where the mask is set when it is [B, T]."""
    if x.dim() == 1:
        return x
    return torch.where(mask_BT, x, 0.0).sum(-1) / mask_BT.sum(-1).clamp(min=1)


def masked_max(x_BT: Tensor, mask_BT: Tensor) -> Mean:
    """The maximum of `x` where the mask is set, for an `x` of at least 0; 0 when nothing is set."""
    selected = torch.where(mask_BT, x_BT.detach(), 0.0).flatten()
    return Mean(torch.cat([selected, selected.new_zeros(1)]).max(), 1.0)


def is_maximum(name: str) -> bool:
    """Whether a metric is reduced by taking the largest instead of by adding."""
    return name.endswith(("_max", "/max_abs"))


def as_means(metrics: Mapping[str, Pair]) -> Means:
    return {name: Mean(*pair) for name, pair in metrics.items()}


def accumulate(totals: Mapping[str, Pair], metrics: Mapping[str, Pair]) -> Means:
    """`totals` with the metrics of one more micro-batch (or rank) taken in. Neither argument is changed."""
    merged = as_means(totals)
    for name, more in as_means(metrics).items():
        if name not in merged:
            merged[name] = more
        elif is_maximum(name):
            merged[name] = Mean(torch.maximum(torch.as_tensor(merged[name].total), torch.as_tensor(more.total)), 1.0)
        else:
            merged[name] += more
    return merged


def finish(totals: Mapping[str, Pair]) -> dict[str, float]:
    """The values to report. A metric for which nothing was counted is left out.

    `mismatch/ratio` and `mismatch/ratio_sq`, the first two moments of the importance ratio, become the effective sample
    size `mismatch/ess` = mean(ratio)^2 / mean(ratio^2): 1 when sampler and learner agree, 1/n when one token of n
    carries everything.
    """
    values = reported(as_means(totals))
    mean, mean_sq = values.pop("mismatch/ratio", None), values.pop("mismatch/ratio_sq", None)
    if mean is not None and mean_sq is not None:
        values["mismatch/ess"] = mean**2 / mean_sq
    return values
