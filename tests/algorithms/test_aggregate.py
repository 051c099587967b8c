from __future__ import annotations

import pytest
import torch

from postrl.algorithms.aggregate import MODES, Denoms, aggregate, count, totals

from .cases import both_precisions, close


def test_counts_tokens_and_sequences_that_have_one():
    assert count(torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=torch.bool)) == (3, 2)


@pytest.mark.parametrize(
    ("mode", "value"),
    [
        ("token_mean", (1 + 2 + 6) / 3),
        ("seq_mean_token_mean", (1.5 + 6) / 2),
        ("seq_mean_token_sum", (3 + 6) / 2),
        ("seq_mean_token_sum_norm", (3 + 6) / 2 / 4),
    ],
)
@both_precisions
def test_each_mode_by_hand(mode: str, value: float, dtype: torch.dtype):
    l_BT = torch.tensor([[1.0, 2.0, 99.0], [6.0, 99.0, 99.0]], dtype=dtype)
    mask_BT = torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.bool)
    close(aggregate(l_BT, mask_BT, mode, Denoms(*count(mask_BT)), norm_const=4), value, dtype)
    total, n = totals(l_BT, mask_BT, mode, norm_const=4)
    close(total / n, value, dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (0, 0)], ids=str)
def test_an_empty_micro_batch_is_a_zero_that_backward_reaches(mode: str, shape: tuple[int, int]):
    logp = torch.full(shape, torch.nan, requires_grad=True)
    loss = aggregate(logp, torch.zeros(shape, dtype=torch.bool), mode, Denoms(6, 3), norm_const=4)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logp.grad, torch.zeros(shape))


def test_a_step_without_any_token_is_zero_and_not_nan():
    logp = torch.ones(1, 2, requires_grad=True)
    loss = aggregate(logp, torch.zeros(1, 2, dtype=torch.bool), "token_mean", Denoms(0, 0))
    loss.backward()
    assert loss.item() == 0 and torch.equal(logp.grad, torch.zeros(1, 2))


def test_an_unknown_mode_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'mean'.*token_mean, seq_mean_token_mean"):
        aggregate(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), "mean", Denoms(1, 1))


def test_the_normalised_sum_needs_its_constant():
    with pytest.raises(ValueError, match="constant length"):
        aggregate(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), "seq_mean_token_sum_norm", Denoms(1, 1))
