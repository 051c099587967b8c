"""Which rollouts go into which optimizer step, onto which rank and into which forward pass. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import NamedTuple


class Packing(NamedTuple):
    """Which rows of one rank go into one micro-batch: neighbours in this order, as many as the budget allows."""

    order: Callable[[int], tuple[int, ...]]
    """The place of a row."""
    cost: Callable[[list[int]], int]
    """Rows of a micro-batch -> padded tokens of its forward pass."""


def padded(lengths: Sequence[int]) -> Packing:
    """Rows of like length together, padded to the longest."""
    return Packing(
        lambda row: (-lengths[row], row),
        lambda rows: len(rows) * max(lengths[row] for row in rows),
    )


def plan(
    lengths: Sequence[int],
    *,
    minibatches: int,
    ranks: int,
    max_tokens: int,
    groups: Sequence[int],
    packing: Packing | None = None,
    skip: Collection[int] = (),
) -> list[list[list[list[int]]]]:
    """Rows of a batch as plan[minibatch][rank][micro-batch] -> row indices.

    Every rank gets the same number of micro-batches in a mini-batch (the last ones may be empty): their collectives
    must stay in step. A group stays in one mini-batch where the sizes allow.

    Args:
        lengths: prompt and completion tokens of each row.
        minibatches: optimizer steps per pass over the batch.
        ranks: data-parallel ranks.
        max_tokens: most padded tokens of one micro-batch; a longer row stands alone.
        groups: group id of each row.
        packing: which rows go into one micro-batch; default: those of like length, `padded`.
        skip: rows that need no forward pass; they keep their place in the split into mini-batches.
    """
    order, cost = packing or padded(lengths)
    passed = [[row for row in rows if row not in skip] for rows in split(groups, minibatches)]
    dealt = [_deal(rows, lengths, ranks) for rows in passed]
    return [_level([_pack(sorted(share, key=order), cost, max_tokens) for share in shares]) for shares in dealt]


def split(groups: Sequence[int], minibatches: int) -> list[list[int]]:
    """The rows of each mini-batch: as equal in number as can be, in the order of their groups."""
    order = sorted(range(len(groups)), key=lambda row: (groups[row], row))
    bounds = [round(i * len(order) / minibatches) for i in range(minibatches + 1)]
    return [order[a:b] for a, b in pairwise(bounds)]


def _deal(rows: list[int], lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Longest first, onto the least loaded rank."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for row in sorted(rows, key=lambda row: (-lengths[row], row)):
        rank = loads.index(min(loads))
        shares[rank].append(row)
        loads[rank] += lengths[row]
    return shares


def _level(packed: list[list[list[int]]]) -> list[list[list[int]]]:
    """The same number of micro-batches on every rank, at least one."""
    most = max(1, *(len(micros) for micros in packed))
    return [micros + [[] for _ in range(most - len(micros))] for micros in packed]


def _pack(rows: list[int], cost: Callable[[list[int]], int], max_tokens: int) -> list[list[int]]:
    """Rows in order, each micro-batch filled up to the budget: neighbours are alike, so little is padding."""
    out: list[list[int]] = []
    for row in rows:
        if out and cost([*out[-1], row]) <= max_tokens:
            out[-1].append(row)
        else:
            out.append([row])
    return out
