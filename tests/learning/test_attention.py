"""Attention with shared keys against the plain formula and transformers' own."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny_model
from postrl.learning.on_cpu import GROUPED, grouped_attention, passes_on, use_grouped
from postrl.learning.passes import REPEATED, repeated_attention


class Module(torch.nn.Module):
    """What transformers hands to an attention function."""

    is_causal = True

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = groups


def causal(length: int, total: int) -> torch.Tensor:
    """The last `length` of `total` positions, each seeing itself and all before it; bool, [length, total]."""
    return torch.arange(total)[None, :] <= torch.arange(total - length, total)[:, None]


@pytest.mark.parametrize("attention", [grouped_attention, repeated_attention])
@pytest.mark.parametrize(("length", "total"), [(1, 7), (5, 5), (3, 8)])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_it_is_attention_over_repeated_keys(length, total, groups, attention):
    torch.manual_seed(0)
    batch, key_heads, width = 2, 2, 4
    query = torch.randn(batch, key_heads * groups, length, width, requires_grad=True)
    key, value = (torch.randn(batch, key_heads, total, width, requires_grad=True) for _ in range(2))
    mask = causal(length, total).expand(batch, 1, length, total).clone()
    mask[1, :, :, :2] = False  # padding on the left of the second row
    mask[1, :, :2, 0] = True  # a position that sees nothing would be NaN
    upstream = torch.randn(batch, length, key_heads * groups, width)

    ours, _ = attention(Module(groups), query, key, value, mask, scaling=0.3)
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


@pytest.mark.parametrize("attention", [grouped_attention, repeated_attention])
def test_without_a_mask_it_is_causal(attention):
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    mask = causal(5, 5)[None, None]
    torch.testing.assert_close(
        attention(Module(2), query, key, value, None)[0],
        attention(Module(2), query, key, value, mask)[0],
    )


def test_in_float32_on_a_gpu_torch_is_given_keys_that_are_not_shared(monkeypatch):
    """torch's float32 kernel without the [b, H, L, L] scores takes no shared keys."""
    model, shared = tiny_model(), []
    plain = torch.nn.functional.scaled_dot_product_attention

    def attend(query, key, *args, **options):
        shared.append(options.get("enable_gqa", False) or key.shape[1] < query.shape[1])
        return plain(query, key, *args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        expected = model(ids).logits
        passes_on(torch.device("cuda"), torch.float32).fit(model)
        found = model(ids).logits
    torch.testing.assert_close(found, expected)
    assert shared == [True] * 2 + [False] * 2


@pytest.mark.parametrize(
    ("device", "dtype", "name"),
    [("cpu", torch.bfloat16, GROUPED), ("cuda", torch.float32, REPEATED), ("cuda", torch.bfloat16, "sdpa")],
)
def test_each_device_gets_what_fits_it(device, dtype, name):
    model = tiny_model()
    passes_on(torch.device(device), dtype).fit(model)
    assert model.config._attn_implementation == name


def test_a_model_gives_the_same_logits_with_it():
    plain, switched = tiny_model(), tiny_model()
    use_grouped(switched)
    assert switched.config._attn_implementation == GROUPED
    ids = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 11, 12]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with torch.no_grad():
        expected = plain(ids, attention_mask=mask).logits
        found = switched(ids, attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()])


def test_a_model_with_another_attention_keeps_it():
    model = tiny_model()
    model.set_attn_implementation("eager")
    use_grouped(model)
    assert model.config._attn_implementation == "eager"
