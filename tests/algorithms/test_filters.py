from __future__ import annotations

import pytest
import torch

from postrl.algorithms.filters import overlong_penalty, truncated, truncation_mask

from .cases import make_batch, rollout


def test_what_was_cut_is_told_by_how_it_ended_and_leaves_the_mask():
    reasons = ("stop", "length", "abort")
    batch = make_batch([[1, 1], [1, 1], [1, 0]], rollouts=[rollout(2, finish_reason=reason) for reason in reasons])
    assert truncated(batch).tolist() == [False, True, False]
    assert truncation_mask(batch.mask_BT, truncated(batch)).int().tolist() == [[1, 1], [0, 0], [1, 0]]
    assert truncated(batch.rows([])).shape == (0,)


@pytest.mark.parametrize(("length", "penalty"), [(0, 0.0), (16, 0.0), (17, -0.25), (20, -1.0), (10_000, -1.0)])
def test_the_overlong_penalty_ends_at_minus_1(length: int, penalty: float):
    assert overlong_penalty(torch.tensor([length]), 20, 4).tolist() == [penalty]
