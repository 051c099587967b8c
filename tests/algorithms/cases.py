"""Golden cases (computed by hand-written scalar code), and batches to try things on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from postrl.types import Batch, Rollout, VersionSpan

_FILE = Path(__file__).parent.parent / "golden_cases.json"
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in json.loads(_FILE.read_text())["cases"]}

both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])


def close(actual: Any, expected: Any, dtype: torch.dtype) -> None:
    """float32 to 1e-5, float64 to 1e-7 relative; the stored numbers have nine decimals."""
    rtol = 1e-5 if dtype == torch.float32 else 1e-7
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(
        torch.as_tensor(actual).double(), expected, rtol=rtol, atol=1e-6 if rtol > 1e-6 else 1e-9
    )


def matrix(rows: list[list[float]], dtype: torch.dtype, *, grad: bool = False) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype).requires_grad_(grad)


def rewards(values: list[float | None]) -> torch.Tensor:
    return torch.tensor([math.nan if v is None else v for v in values], dtype=torch.float64)


def rollout(length: int, *, finish_reason: str = "stop", version: int = 0) -> Rollout:
    return Rollout("p:0", 0, [1], list(range(length)), [0.0] * length, [VersionSpan(version, 0, length)], finish_reason)


def make_batch(mask: list[list[int]], **tensors: Any) -> Batch:
    """A batch with this mask; log-probs default to zeros, rewards and groups to one group of zeros."""
    mask_BT = torch.tensor(mask, dtype=torch.bool)
    n, width = mask_BT.shape
    defaults = {
        "rollouts": [rollout(width) for _ in range(n)],
        "group_B": torch.zeros(n, dtype=torch.int64),
        "rewards_B": torch.zeros(n, dtype=torch.float64),
        "mask_BT": mask_BT,
        "behav_BT": torch.zeros(n, width),
        "version": 0,
    }
    return Batch(**{**defaults, **tensors})


def random_batch(seed: int = 0, n: int = 6, width: int = 5) -> tuple[torch.Tensor, Batch]:
    """(live log-probs, batch) in float64: every kind of row (full, ragged, with a gap, wholly masked) and of ratio."""
    g = torch.Generator().manual_seed(seed)
    logp = -2 * torch.rand(n, width, generator=g, dtype=torch.float64)

    def near(scale: float) -> torch.Tensor:
        return logp + scale * torch.randn(n, width, generator=g, dtype=torch.float64)

    mask = torch.rand(n, width, generator=g) < 0.7
    mask[0], mask[1] = True, False
    batch = make_batch(
        mask.int().tolist(),
        advantages=torch.randn(n, generator=g, dtype=torch.float64),
        behav_BT=near(0.7),
        prox_BT=near(0.3),
        ref_BT=near(0.5),
    )
    return logp, batch
