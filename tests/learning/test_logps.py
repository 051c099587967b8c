"""Chunked log-probs against log_softmax and autograd, in float64 where the comparison is made."""

from __future__ import annotations

import pytest
import torch

from postrl.learning import logps
from postrl.learning.collate import Support
from postrl.learning.logps import token_logps

N, D, V = 11, 6, 13


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator).requires_grad_()

    targets = torch.randint(V, (N,), generator=generator)
    return random(N, D), random(V, D), random(V), targets


def plain(hidden, weight, targets, bias=None, temperature=1.0, softcap=None):
    """The definition, in float64."""
    logits = hidden.double() @ weight.double().T
    if bias is not None:
        logits = logits + bias.double()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    distribution = torch.log_softmax(logits / temperature, dim=-1)
    return distribution.gather(-1, targets[:, None]).squeeze(-1), -(distribution.exp() * distribution).sum(-1)


CASES = {
    "plain": {},
    "bias": {"bias": True},
    "temperature": {"temperature": 0.7},
    "softcap": {"softcap": 2.0},
    "all at once": {"bias": True, "temperature": 1.7, "softcap": 1.5},
}


@pytest.mark.parametrize("rows_per_chunk", [1, 4, N, 100])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_values_and_gradients_are_those_of_log_softmax(inputs, options, rows_per_chunk, monkeypatch):
    monkeypatch.setattr(logps, "CHUNK_LOGITS", rows_per_chunk * V)
    hidden, weight, bias, targets = inputs
    number = {name: value for name, value in options.items() if name != "bias"}
    learned = [hidden, weight, bias] if "bias" in options else [hidden, weight]
    upstream = torch.randn(N, generator=torch.Generator().manual_seed(1))

    ours, entropy = token_logps(hidden, weight, targets, bias_V=bias if "bias" in options else None, **number)
    our_gradients = torch.autograd.grad((ours * upstream).sum(), learned)
    theirs, their_entropy = plain(hidden, weight, targets, bias if "bias" in options else None, **number)
    their_gradients = torch.autograd.grad((theirs * upstream).sum(), learned)

    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy.double(), their_entropy, rtol=1e-5, atol=1e-6)
    for mine, expected in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows_per_chunk", [1, 4, 100])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_over_a_support_they_are_those_of_the_softmax_over_these_tokens_alone(
    inputs, options, rows_per_chunk, monkeypatch
):
    monkeypatch.setattr(logps, "CHUNK_LOGITS", rows_per_chunk * V)
    hidden, weight, bias, targets = inputs
    kept = [sorted({(3 * i + j) % V for j in range(i)} | {int(y)}) if i != 5 else [] for i, y in enumerate(targets)]
    support = Support(torch.tensor([v for ids in kept for v in ids]), torch.tensor([len(ids) for ids in kept]))
    number = {name: value for name, value in options.items() if name != "bias"}
    given = bias if "bias" in options else None
    learned = [hidden, weight] if given is None else [hidden, weight, bias]
    upstream = torch.randn(2, N, generator=torch.Generator().manual_seed(3))

    ours = token_logps(hidden, weight, targets, bias_V=given, train_entropy=True, support=support, **number)
    rows = [plain_over(ids, i, inputs, given, number) for i, ids in enumerate(kept)]
    theirs = [torch.stack(values) for values in zip(*rows, strict=True)]
    our_gradients = torch.autograd.grad(sum((x * u).sum() for x, u in zip(ours, upstream, strict=True)), learned)
    their_gradients = torch.autograd.grad(sum((x * u).sum() for x, u in zip(theirs, upstream, strict=True)), learned)

    for one, other in zip((*ours, *our_gradients), (*theirs, *their_gradients), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5)


def plain_over(ids, i, inputs, bias, number):
    """`plain` for position i with a vocabulary of these tokens; none: of all."""
    hidden, weight, _, targets = inputs
    chosen = torch.tensor(ids or range(V))
    target = (chosen == targets[i]).nonzero()[0]
    logp, entropy = plain(hidden[i : i + 1], weight[chosen], target, None if bias is None else bias[chosen], **number)
    return logp[0], entropy[0]


def test_entropy_of_equal_logits_is_the_log_of_the_vocabulary():
    _, entropy = token_logps(torch.zeros(2, D), torch.ones(V, D), torch.zeros(2, dtype=torch.long))
    torch.testing.assert_close(entropy, torch.full((2,), V).log())


def test_entropy_is_zero_where_one_token_has_all_the_probability():
    weight = torch.zeros(V, D)
    weight[3] = 1e4
    bias = torch.zeros(V)
    bias[5] = -torch.inf  # a token that can never come: its p log p counts as 0
    logp, entropy = token_logps(torch.ones(1, D), weight, torch.tensor([3]), bias_V=bias)
    assert logp.item() == 0.0
    assert entropy.item() == 0.0


def test_entropy_has_no_gradient(inputs):
    hidden, weight, _, targets = inputs
    _, entropy = token_logps(hidden, weight, targets)
    assert not entropy.requires_grad


def test_a_frozen_head_gets_no_gradient(inputs):
    hidden, weight, _, targets = inputs
    logp, _ = token_logps(hidden, weight.detach(), targets)
    (gradient,) = torch.autograd.grad(logp.sum(), [hidden])
    (expected,) = torch.autograd.grad(plain(hidden, weight, targets)[0].sum(), [hidden])
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def test_bfloat16_inputs_give_float32_log_probs_near_the_exact_ones(inputs):
    hidden, weight, _, targets = (t.detach().bfloat16() if t.is_floating_point() else t for t in inputs)
    ours, _ = token_logps(hidden, weight, targets)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), plain(hidden, weight, targets)[0], rtol=0, atol=0.05)


def test_no_positions_give_a_zero_that_is_connected_to_everything_trained(inputs):
    """A rank without a trainable token must still take part in the collectives of each parameter's gradient."""
    hidden, weight, bias, _ = inputs
    logp, entropy = token_logps(hidden[:0], weight, torch.zeros(0, dtype=torch.long), bias_V=bias)
    assert logp.shape == entropy.shape == (0,)
    logp.sum().backward()
    assert all(torch.equal(t.grad, torch.zeros_like(t)) for t in (hidden, weight, bias))


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_the_entropy_has_its_gradient_when_it_is_trained(inputs, options, monkeypatch):
    monkeypatch.setattr(logps, "CHUNK_LOGITS", 4 * V)
    hidden, weight, bias, targets = inputs
    number = {name: value for name, value in options.items() if name != "bias"}
    given = bias if "bias" in options else None
    learned = [hidden, weight] if given is None else [hidden, weight, bias]
    upstream = torch.randn(2, N, generator=torch.Generator().manual_seed(2))

    ours = token_logps(hidden, weight, targets, bias_V=given, train_entropy=True, **number)
    theirs = plain(hidden, weight, targets, given, **number)
    our_gradients = torch.autograd.grad(sum((x * u).sum() for x, u in zip(ours, upstream, strict=True)), learned)
    their_gradients = torch.autograd.grad(sum((x * u).sum() for x, u in zip(theirs, upstream, strict=True)), learned)

    for one, other in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-6)


def test_the_entropy_that_is_only_shown_takes_no_part_in_the_gradient(inputs):
    hidden, weight, _, targets = inputs
    _, entropy = token_logps(hidden, weight, targets)
    assert not entropy.requires_grad
