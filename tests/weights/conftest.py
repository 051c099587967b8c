"""What the tests of weights compare servers with: the learner's model, version by version."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from helpers import tiny_model

PAIRS = [([5, 6, 7, 8, *range(20, 52)], 4), ([9, 200, 11, *range(100, 140)], 3)]
"""Fixed texts for the canary: 72 scored tokens."""


def learner_logps(
    model: Any, pairs: list[tuple[list[int], int]] = PAIRS, *, dtype: str = "float32"
) -> list[list[float]]:
    """transformers' log-probs of token_ids[start:] at temperature 1, in float32 with the weights rounded to `dtype`."""
    import torch

    model = copy.deepcopy(model).to(getattr(torch, dtype)).float()
    with torch.no_grad():
        rows = []
        for token_ids, start in pairs:
            logps = model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
            rows.append([logps[i - 1, token_ids[i]].item() for i in range(start, len(token_ids))])
    return rows


def largest_difference(a: list[list[float]], b: list[list[float]]) -> float:
    return max(abs(x - y) for row_a, row_b in zip(a, b, strict=True) for x, y in zip(row_a, row_b, strict=True))


def model_of_version(version: int) -> Any:
    """Version 0 is what the servers were started with; later ones are the same model with noise on every weight."""
    import torch

    model = tiny_model()
    torch.manual_seed(version)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * version * torch.randn_like(parameter))
    return model


def eventually(condition: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        time.sleep(0.02)
