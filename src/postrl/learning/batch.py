"""Groups of rollouts as the tensors of one step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from postrl.types import Batch, Group


def make_batch(groups: Sequence[Group], version: int, device: torch.device) -> Batch:
    """The rollouts of `groups` that are not dropped, in order, as a batch; staleness is filled in.

    Args:
        version: what the learner holds now, before the phase that trains on them.
    """
    rows = [(group.group_id, rollout) for group in groups for rollout in group.rollouts if rollout.dropped is None]
    width = max((len(rollout.completion_ids) for _, rollout in rows), default=0)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    behav = torch.zeros(len(rows), width)
    for i, (_, rollout) in enumerate(rows):
        rollout.staleness = max(0, version - rollout.oldest_version)
        n = len(rollout.completion_ids)
        mask[i, :n] = torch.tensor(rollout.loss_mask, dtype=torch.bool)
        behav[i, :n] = torch.tensor(rollout.logps)
    rewards = [math.nan if rollout.reward is None else rollout.reward for _, rollout in rows]
    return Batch(
        rollouts=[rollout for _, rollout in rows],
        group_B=torch.tensor([group_id for group_id, _ in rows], dtype=torch.int64, device=device),
        rewards_B=torch.tensor(rewards, dtype=torch.float64, device=device),
        mask_BT=mask.to(device),
        behav_BT=behav.to(device),
        version=version,
    )
