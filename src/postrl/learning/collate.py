"""Rollouts as the tensors of a forward pass, and what comes out of it back in its places.

Shapes: b rows of a micro-batch, L padded length of prompt and completion, N trainable tokens in the micro-batch,
T longest completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from postrl.types import Rollout


class Prefix(Protocol):
    """What the rows of a pass continue, where not each of them begins with its prompt: see `postrl.learning.on_cpu`."""

    def continued(self, transformer: Any, input_ids: Tensor) -> Tensor:
        """Final hidden states [b, L, D] of rows that go on with `input_ids`."""
        ...


def padded_right(rows: Sequence[Sequence[int]]) -> Tensor:
    """int64 [rows, longest], with zeros behind the shorter ones."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.long).reshape(len(rows), width)


def collate(
    rollouts: Sequence[Rollout], mask_BT: Tensor, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A micro-batch as `Policy.forward` takes it.

    Args:
        rollouts: the rows, b of them; none gives one dummy token, so that every rank runs the same collectives.
        mask_BT: bool [b, T], the completion tokens whose log-probs are wanted.

    Returns:
        input_ids [b, L], select_bL, targets_N, and place_bT: bool [b, T], where the N values belong.
    """
    if not rollouts:
        return (
            torch.zeros(1, 1, dtype=torch.long, device=device),
            torch.zeros(1, 1, dtype=torch.bool, device=device),
            torch.zeros(0, dtype=torch.long, device=device),
            torch.zeros(0, mask_BT.shape[1], dtype=torch.bool, device=device),
        )
    input_ids = padded_right([[*r.prompt_ids, *r.completion_ids] for r in rollouts])
    width = input_ids.shape[1]
    select = torch.zeros(len(rollouts), width, dtype=torch.bool)
    place = torch.zeros(mask_BT.shape, dtype=torch.bool)
    wanted = mask_BT.cpu()
    for i, rollout in enumerate(rollouts):
        start, n = len(rollout.prompt_ids), len(rollout.completion_ids)
        place[i, :n] = wanted[i, :n]
        select[i, start - 1 : start + n - 1] = wanted[i, :n]
    targets = input_ids.roll(-1, dims=1)[select]
    read = max(1, width - 1)  # nothing is predicted behind the last token
    return input_ids[:, :read].to(device), select[:, :read].to(device), targets.to(device), place.to(device)


@dataclass(frozen=True)
class Support:
    """The tokens that each of N targets was drawn from: where sampling left some out, log-probs are those of the rest."""

    ids_K: Tensor
    """int64, target after target."""
    sizes_N: Tensor
    """int64, on the CPU; 0: all tokens."""

    def split(self, size: int) -> Iterator[Support]:
        """Of `size` targets each, as `torch.split`."""
        sizes = torch.split(self.sizes_N, size)
        ids = torch.split(self.ids_K, [int(part.sum()) for part in sizes])
        return map(Support, ids, sizes)

    def restrict(self, logits_nV: Tensor) -> Tensor:
        """-inf in place of the logits of all other tokens, in place."""
        rows = torch.repeat_interleave(torch.arange(len(self.sizes_N)), self.sizes_N).to(logits_nV.device)
        outside = torch.ones_like(logits_nV, dtype=torch.bool)
        outside[rows, self.ids_K] = False
        outside[(self.sizes_N == 0).to(logits_nV.device)] = False
        return logits_nV.masked_fill_(outside, -torch.inf)


def support_of(rollouts: Sequence[Rollout], mask_BT: Tensor, device: torch.device) -> Support | None:
    """What the N targets of `collate` were drawn from; None where no rollout says so, and all tokens were possible."""
    if all(rollout.support is None for rollout in rollouts):
        return None
    wanted: list[list[int]] = []
    for rollout, row in zip(rollouts, mask_BT.tolist(), strict=True):
        supports = rollout.support or [[]] * len(rollout.completion_ids)
        wanted += [tokens for tokens, chosen in zip(supports, row) if chosen]
    ids = torch.tensor([token for tokens in wanted for token in tokens], dtype=torch.long, device=device)
    return Support(ids, torch.tensor([len(tokens) for tokens in wanted], dtype=torch.long))


def scatter(values_N: Tensor, place_bT: Tensor) -> Tensor:
    """[N] back to [b, T], zeros elsewhere; differentiable."""
    return values_N.new_zeros(place_bT.shape).masked_scatter(place_bT, values_N)
