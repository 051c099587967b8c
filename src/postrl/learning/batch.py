"""Groups of rollouts as the tensors of one step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from postrl.types import Batch, Group, Rollout


def make_batch(
    groups: Sequence[Group], version: int, device: torch.device, rewards: Sequence[str] | None = None
) -> Batch:
    """The rollouts of `groups` that are not dropped, in order, as a batch; staleness is filled in.

    Args:
        version: what the learner holds now, before the phase that trains on them.
        rewards: names of the run's reward functions, the columns of `parts_BF`; None: those that scored any of the
            rollouts, by name.
    """
    rows = [(group, rollout) for group in groups for rollout in group.rollouts if rollout.dropped is None]
    width = max((len(rollout.completion_ids) for _, rollout in rows), default=0)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    behav = torch.zeros(len(rows), width)
    for i, (_, rollout) in enumerate(rows):
        rollout.staleness = max(0, version - rollout.oldest_version)
        n = len(rollout.completion_ids)
        mask[i, :n] = torch.tensor(rollout.loss_mask, dtype=torch.bool)
        behav[i, :n] = torch.tensor(rollout.logps)

    greedy = [group.greedy for group, _ in rows]

    def reward_of(rollouts: Iterable[Rollout | None]) -> torch.Tensor:
        found = [math.nan if r is None or r.reward is None else r.reward for r in rollouts]
        return torch.tensor(found, dtype=torch.float64, device=device)

    return Batch(
        rollouts=[rollout for _, rollout in rows],
        group_B=torch.tensor([group.group_id for group, _ in rows], dtype=torch.int64, device=device),
        rewards_B=reward_of(rollout for _, rollout in rows),
        mask_BT=mask.to(device),
        behav_BT=behav.to(device),
        version=version,
        parts_BF=_parts([rollout for _, rollout in rows], rewards).to(device),
        greedy_B=reward_of(greedy) if any(greedy) or not rows else None,
        correct_B=torch.tensor([rollout.correct is True for _, rollout in rows], dtype=torch.bool, device=device),
    )


def _parts(rollouts: Sequence[Rollout], names: Sequence[str] | None) -> torch.Tensor:
    """The scores of each reward function, float64 [B, F]; NaN where it gave none."""
    if names is None:
        names = sorted({name for rollout in rollouts for name in rollout.rewards})
    scores = [[rollout.rewards.get(name) for name in names] for rollout in rollouts]
    found = [[math.nan if score is None else score for score in row] for row in scores]
    return torch.tensor(found, dtype=torch.float64).reshape(len(rollouts), len(names))
