"""The parts that presets name: advantage estimators and policy losses behind one signature each.

An adapter takes what its function needs out of the batch and the settings; the mathematics is in `advantages`, `losses`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from postrl.algorithms import advantages, losses
from postrl.algorithms.advantages import Pairs
from postrl.algorithms.reduce import Metrics
from postrl.types import Batch

if TYPE_CHECKING:
    from postrl.algorithms.algorithm import Algorithm


class Estimate(NamedTuple):
    """What an advantage estimator gives; an estimator of yours may return the first two as a plain pair."""

    advantages: Tensor
    """float32 [B], the same for every token of a completion, or [B, T]."""
    metrics: Pairs
    returns_BT: Tensor | None = None
    """float32 [B, T]: what a critic is to predict."""


Advantage = Callable[[Batch, "Algorithm"], tuple[Tensor, Pairs] | Estimate]
"""(scored batch of a whole step, algorithm) -> advantages, metrics."""
Loss = Callable[[Tensor, Tensor | None, Tensor, Tensor, "Algorithm"], tuple[Tensor, Metrics]]
"""(logp_BT, prox_BT, advantages, mask_BT, algorithm) -> token losses [B, T], metrics."""


def _group(batch: Batch, a: Algorithm) -> tuple[Tensor, Pairs]:
    return advantages.grpo(batch.rewards_B, batch.group_B, scale=a.scale_rewards)


def _clip(
    logp_BT: Tensor, prox_BT: Tensor | None, adv: Tensor, mask_BT: Tensor, a: Algorithm
) -> tuple[Tensor, Metrics]:
    return losses.ppo_clip(
        logp_BT, prox_BT, adv, mask_BT, epsilon_low=a.epsilon, epsilon_high=a.epsilon_upper, dual_clip=a.dual_clip
    )


ADVANTAGES: dict[str, Advantage] = {
    "group": _group,
}
LOSSES: dict[str, Loss] = {
    "clip": _clip,
}
