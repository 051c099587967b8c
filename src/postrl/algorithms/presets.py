"""Algorithms as rows of a table. A new algorithm made of known parts is a row; a new part is one pure function, its
adapter here, and its hand-computed test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from postrl.algorithms import advantages, losses
from postrl.algorithms.aggregate import MODES
from postrl.algorithms.corrections import correction
from postrl.algorithms.kl import loss_estimator
from postrl.algorithms.lookup import lookup
from postrl.algorithms.reduce import Metrics
from postrl.types import Batch

Advantage = Callable[[Batch, "Algorithm"], tuple[Tensor, advantages.Pairs]]
"""(scored batch, algorithm) -> advantages [B], metrics."""
Loss = Callable[[Tensor, Tensor | None, Tensor, Tensor, "Algorithm"], tuple[Tensor, Metrics]]
"""(logp_BT, prox_BT, advantages, mask_BT, algorithm) -> token losses [B, T], metrics."""


@dataclass(frozen=True)
class Algorithm:
    """What one update computes: the parts, and the numbers they take.

    Raises:
        ValueError: a part that does not exist, or a combination that cannot be right.
    """

    name: str
    advantage: Advantage
    loss: Loss
    aggregation: str = "token_mean"
    """A key of `aggregate.MODES`."""
    epsilon_low: float = 0.2
    """The ratio is clipped below at 1 - epsilon_low ..."""
    epsilon_high: float = 0.2
    """... and above at 1 + epsilon_high."""
    beta: float = 0.0
    """Weight of the KL to the reference."""
    kl: str = "k3_unbiased"
    """A key of `kl.ESTIMATORS`, other than k1."""
    scale_rewards: str = "group"
    """What divides centred rewards, see `advantages.grpo`."""
    correction: str = "tis"
    """A key of `corrections.CORRECTIONS`."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """Bounds of the correction in place of its own, by their names there."""
    dual_clip: float | None = None
    """Ceiling of the ratio for negative advantages; None: none."""
    norm_const: float | None = None
    """Constant length of seq_mean_token_sum_norm, in tokens."""
    needs: frozenset[str] = frozenset()
    """Forward passes and rollouts beyond the batch itself: of "prox", "ref", "values", "greedy"."""

    def __post_init__(self) -> None:
        lookup(MODES, self.aggregation, "loss_aggregation")
        correction(self.correction, self.bounds)
        lookup(advantages.SCALES, self.scale_rewards, "scale_rewards")
        loss_estimator(self.kl)
        for name in ("epsilon_low", "epsilon_high", "beta"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 or more")
        if self.dual_clip is not None and not self.dual_clip > 1 + self.epsilon_high:
            raise ValueError(
                f"dual_clip is {self.dual_clip}, expected more than 1 + epsilon_high = {1 + self.epsilon_high}: "
                "below it would cut into the trust region"
            )
        if self.aggregation == "seq_mean_token_sum_norm" and not (self.norm_const and self.norm_const > 0):
            raise ValueError(
                f"loss_aggregation seq_mean_token_sum_norm divides by max_completion_length, which is {self.norm_const}"
            )


def _group_relative(batch: Batch, a: Algorithm) -> tuple[Tensor, advantages.Pairs]:
    return advantages.grpo(batch.rewards_B, batch.group_B, scale=a.scale_rewards)


def _ppo_clip(
    logp_BT: Tensor, prox_BT: Tensor | None, adv: Tensor, mask_BT: Tensor, a: Algorithm
) -> tuple[Tensor, Metrics]:
    return losses.ppo_clip(
        logp_BT, prox_BT, adv, mask_BT, epsilon_low=a.epsilon_low, epsilon_high=a.epsilon_high, dual_clip=a.dual_clip
    )


PRESETS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm("grpo", _group_relative, _ppo_clip),
    )
}  # fmt: skip


def resolve(
    name: str,
    *,
    num_updates_per_batch: int = 1,
    beta: float | None = None,
    epsilon: float | None = None,
    epsilon_high: float | None = None,
    scale_rewards: str | None = None,
    loss_aggregation: str | None = None,
    is_correction: str | None = None,
    is_low: float | None = None,
    is_high: float | None = None,
    is_eps: float | None = None,
    is_delta: float | None = None,
    kl: str | None = None,
    dual_clip: float | None = None,
    max_completion_length: int | None = None,
) -> Algorithm:
    """The row called `name` with the user's settings, under the names of the configuration; None keeps the row's.

    `epsilon_high` follows `epsilon` when only that is given. The result needs "ref" when beta > 0, and "prox" when a
    batch is trained on by more than one optimizer step (num_iterations x minibatches): then the policy at its start is
    no longer the live one.

    Raises:
        ValueError: an unknown name, or an impossible combination.
    """
    row = lookup(PRESETS, name, "algorithm")
    if num_updates_per_batch < 1:
        raise ValueError(f"num_updates_per_batch is {num_updates_per_batch}, expected at least 1")
    bounds = {"low": is_low, "high": is_high, "eps": is_eps, "delta": is_delta}
    given = {name: value for name, value in bounds.items() if value is not None}
    settings = {
        "beta": beta,
        "epsilon_low": epsilon,
        "epsilon_high": epsilon if epsilon_high is None else epsilon_high,
        "scale_rewards": scale_rewards,
        "aggregation": loss_aggregation,
        "correction": is_correction,
        "bounds": given if is_correction else {**row.bounds, **given},
        "kl": kl,
        "dual_clip": dual_clip,
        "norm_const": max_completion_length,
    }
    algorithm = replace(row, **{field: value for field, value in settings.items() if value is not None})  # type: ignore[arg-type]
    needed = {"ref": algorithm.beta > 0, "prox": num_updates_per_batch > 1}
    return replace(algorithm, needs=row.needs | {need for need, wanted in needed.items() if wanted})
