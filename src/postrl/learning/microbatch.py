"""Which rollouts go into which optimizer step, onto which rank and into which forward pass. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def plan(
    lengths: Sequence[int], *, minibatches: int, ranks: int, max_tokens: int, groups: Sequence[int]
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
    """
    return [_deal(rows, lengths, ranks, max_tokens) for rows in _split(groups, minibatches)]


def _split(groups: Sequence[int], minibatches: int) -> list[list[int]]:
    order = sorted(range(len(groups)), key=lambda row: (groups[row], row))
    bounds = [round(i * len(order) / minibatches) for i in range(minibatches + 1)]
    return [order[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def _deal(rows: list[int], lengths: Sequence[int], ranks: int, max_tokens: int) -> list[list[list[int]]]:
    by_length = sorted(rows, key=lambda row: (-lengths[row], row))
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for row in by_length:  # longest first, onto the least loaded rank
        rank = loads.index(min(loads))
        shares[rank].append(row)
        loads[rank] += lengths[row]
    packed = [_pack(share, lengths, max_tokens) for share in shares]
    most = max((len(p) for p in packed), default=0)
    return [p + [[] for _ in range(most - len(p))] for p in packed]


def _pack(rows: list[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Rows, longest first, filled up to the budget: rows of like length share a pass, so little is padding."""
    out: list[list[int]] = []
    width = 0
    for row in rows:
        if out and (len(out[-1]) + 1) * width <= max_tokens:
            out[-1].append(row)
        else:
            out.append([row])
            width = lengths[row]
    return out
