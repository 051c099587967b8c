"""Log-probabilities of chosen tokens, without ever holding [B, T, V] logits.

Shapes: N positions with a trainable token, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from postrl.learning.collate import Support

CHUNK_LOGITS = 1 << 24
"""Most logits held at once: 64 MiB in float32."""
CHUNK_LOGITS_ON_GPU = 1 << 26
"""The same on a GPU, 256 MiB: every chunk reads the whole head and adds to its whole gradient, which with the rows of a
smaller one (110 at 152 000 tokens) moves about as many bytes as the logits themselves."""


class _ChunkedLogProbs(torch.autograd.Function):
    """log softmax(h W^T + b, at a temperature)[target] chunk by chunk; the backward pass computes each chunk again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature: float,
        softcap: float | None,
        train_entropy: bool,
        support: Support | None,
    ) -> tuple[Tensor, Tensor]:
        logps, entropies, lses = [], [], []
        for (h, y), only in zip(_chunks(weight_VD.shape[0], hidden_ND, targets_N), _parts(support, weight_VD)):
            logits = _logits(h, weight_VD, bias_V, temperature, softcap)
            if only is not None:
                only.restrict(logits)
            lse = logits.logsumexp(-1)
            logps.append(logits.gather(-1, y[:, None]).squeeze(-1) - lse)
            # entropy = lse - sum p z, with p z -> 0 where a logit is -inf
            p = (logits - lse[:, None]).exp_()
            entropies.append(lse - torch.where(p > 0, p * logits, 0.0).sum(-1))
            lses.append(lse)
        entropy_N = torch.cat(entropies)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, torch.cat(lses), entropy_N)
        ctx.temperature, ctx.softcap, ctx.train_entropy, ctx.support = temperature, softcap, train_entropy, support
        if not train_entropy:
            ctx.mark_non_differentiable(entropy_N)
        return torch.cat(logps), entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        grad_N, grad_entropy_N = gradients
        hidden_ND, weight_VD, bias_V, targets_N, lse_N, entropy_N = ctx.saved_tensors
        if not ctx.train_entropy:
            grad_entropy_N = entropy_N  # not read
        grad_hidden = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight_VD, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias_V, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        start = 0
        rows = _chunks(weight_VD.shape[0], hidden_ND, targets_N, lse_N, grad_N, entropy_N, grad_entropy_N)
        for (h, y, lse, g, entropy, g_entropy), only in zip(rows, _parts(ctx.support, weight_VD)):
            logits = _logits(h, weight_VD, bias_V, ctx.temperature, ctx.softcap)
            if ctx.softcap is not None:
                slope = 1 - (logits * ctx.temperature / ctx.softcap) ** 2
            if only is not None:
                only.restrict(logits)
            pull = _entropy_gradient(logits, lse, entropy, g_entropy / ctx.temperature) if ctx.train_entropy else None
            # d logp / d logits = onehot - p, in place
            logits.sub_(lse[:, None]).exp_().neg_()
            logits.scatter_add_(-1, y[:, None], torch.ones_like(lse)[:, None])
            logits.mul_((g / ctx.temperature)[:, None])
            if pull is not None:
                logits.add_(pull)
            if ctx.softcap is not None:
                logits.mul_(slope)
            d = logits.to(h.dtype)
            if grad_hidden is not None:
                torch.mm(d, weight_VD, out=grad_hidden[start : start + len(h)])
            if grad_weight is not None:
                if d.dtype == torch.float32:
                    grad_weight.addmm_(d.T, h)
                else:
                    grad_weight += d.T @ h
            if grad_bias is not None:
                grad_bias += logits.sum(0)
            start += len(h)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VD.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            *[None] * 5,
        )


def _entropy_gradient(logits: Tensor, lse: Tensor, entropy: Tensor, g: Tensor) -> Tensor:
    """g * d entropy / d logits = -g p (log p + entropy); 0 where a logit is -inf."""
    logp = logits - lse[:, None]
    p = logp.exp()
    return torch.where(p > 0, -p * (logp + entropy[:, None]), 0.0).mul_(g[:, None])


def _logits(h: Tensor, weight_VD: Tensor, bias_V: Tensor | None, temperature: float, softcap: float | None) -> Tensor:
    logits = torch.nn.functional.linear(h, weight_VD, bias_V).float()
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    return logits if temperature == 1.0 else logits.div_(temperature)


def _chunks(vocabulary: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    size = _rows(vocabulary, tensors[0].is_cuda)
    return zip(*(torch.split(t, size) for t in tensors), strict=True)


def _parts(support: Support | None, weight_VD: Tensor) -> Iterable[Support | None]:
    """The support of each chunk."""
    return repeat(None) if support is None else support.split(_rows(weight_VD.shape[0], weight_VD.is_cuda))


def _rows(vocabulary: int, on_gpu: bool) -> int:
    return max(1, (CHUNK_LOGITS_ON_GPU if on_gpu else CHUNK_LOGITS) // vocabulary)


def token_logps(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    *,
    bias_V: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    train_entropy: bool = False,
    support: Support | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the distribution at `temperature`.

    Args:
        hidden_ND: final hidden states of the positions that predict the targets, in the compute dtype.
        weight_VD: language model head, same dtype.
        targets_N: int64 token ids.
        bias_V: the head's bias, where it has one.
        temperature: divides the logits, as in sampling.
        softcap: logits are squashed to +-softcap by tanh first (Gemma 2, arXiv:2408.00118).
        support: tokens that each target was drawn from; the distribution is the one over these alone.

    Returns:
        logps_N: float32, differentiable in hidden_ND, weight_VD and bias_V.
        entropy_N: float32, in nats; differentiable with `train_entropy` alone, which costs memory.
    """
    if not len(targets_N):
        # Connected to the head as well: a rank whose head had no gradient would leave the reduction to the others.
        anchor = hidden_ND.sum() + weight_VD[0, 0] + (0.0 if bias_V is None else bias_V[0])
        nothing = anchor.float() * hidden_ND.new_zeros(0, dtype=torch.float32)
        return nothing, nothing if train_entropy else nothing.detach()
    return _ChunkedLogProbs.apply(  # type: ignore[no-untyped-call, no-any-return]
        hidden_ND, weight_VD, bias_V, targets_N, temperature, softcap, train_entropy, support
    )
