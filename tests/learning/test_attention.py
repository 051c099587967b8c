"""Grouped attention on CPUs against transformers' own."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny_model
from postrl.learning.attention import NAME, grouped_attention, use_on_cpu


class Module(torch.nn.Module):
    """What transformers hands to an attention function."""

    is_causal = True

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = groups


def causal(length: int, total: int) -> torch.Tensor:
    """The last `length` of `total` positions, each seeing itself and all before it; bool, [length, total]."""
    return torch.arange(total)[None, :] <= torch.arange(total - length, total)[:, None]


@pytest.mark.parametrize(("length", "total"), [(1, 7), (5, 5), (3, 8)])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_it_is_attention_over_repeated_keys(length, total, groups):
    torch.manual_seed(0)
    batch, key_heads, width = 2, 2, 4
    query = torch.randn(batch, key_heads * groups, length, width, requires_grad=True)
    key, value = (torch.randn(batch, key_heads, total, width, requires_grad=True) for _ in range(2))
    mask = causal(length, total).expand(batch, 1, length, total).clone()
    mask[1, :, :, :2] = False  # padding on the left of the second row
    mask[1, :, :2, 0] = True  # a position that sees nothing would be NaN
    upstream = torch.randn(batch, length, key_heads * groups, width)

    ours, _ = grouped_attention(Module(groups), query, key, value, mask, scaling=0.3)
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * 0.3
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    theirs = (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2)

    torch.testing.assert_close(ours, theirs)
    inputs = (query, key, value)
    for mine, expected in zip(
        torch.autograd.grad((ours * upstream).sum(), inputs),
        torch.autograd.grad((theirs * upstream).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-5)


def test_without_a_mask_it_is_causal():
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    mask = causal(5, 5)[None, None]
    torch.testing.assert_close(
        grouped_attention(Module(2), query, key, value, None)[0],
        grouped_attention(Module(2), query, key, value, mask)[0],
    )


def test_a_model_gives_the_same_logits_with_it():
    plain, switched = tiny_model(), tiny_model()
    use_on_cpu(switched)
    assert switched.config._attn_implementation == NAME
    ids = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 11, 12]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with torch.no_grad():
        expected = plain(ids, attention_mask=mask).logits
        found = switched(ids, attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()])


def test_a_model_with_another_attention_keeps_it():
    model = tiny_model()
    model.set_attn_implementation("eager")
    use_on_cpu(model)
    assert model.config._attn_implementation == "eager"
