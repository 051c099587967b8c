"""An algorithm ready to compute: the parts that a preset names, with the settings of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from postrl.algorithms import advantages
from postrl.algorithms.aggregate import MODES
from postrl.algorithms.corrections import correction
from postrl.algorithms.kl import ESTIMATORS
from postrl.algorithms.lookup import lookup
from postrl.algorithms.presets import Preset
from postrl.algorithms.refused import problem
from postrl.types import Batch, Means


class Estimate(NamedTuple):
    """What an advantage estimator gives; an estimator of yours may return the first two as a plain pair."""

    advantages: Tensor
    """[B], the same for every token of a completion, or [B, T]; kept as float32."""
    metrics: Means
    returns_BT: Tensor | None = None
    """[B, T]: what a critic is to predict; kept as float32."""


Advantage = Callable[[Batch, "Algorithm"], tuple[Tensor, Means] | Estimate]
"""(scored batch of a whole step, algorithm) -> advantages, metrics."""
Loss = Callable[[Tensor, Tensor | None, Tensor, Tensor, "Algorithm"], tuple[Tensor, Means]]
"""(logp_BT, prox_BT, advantages, mask_BT, algorithm) -> token losses [B, T], metrics."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """What one update computes. The numbers have the names and the meaning of the configuration's settings.

    Raises:
        ValueError: a part that does not exist, or a combination that cannot be right.
    """

    preset: Preset
    advantage: Advantage
    loss: Loss
    needs: frozenset[str] = frozenset()
    """Forward passes and rollouts beyond the batch itself: of "prox", "ref", "values", "end", "greedy"; see `needs_of`."""
    epsilon: float = 0.2
    """The ratio is clipped below at 1 - epsilon ..."""
    epsilon_high: float | None = None
    """... and above at 1 + epsilon_high; None: epsilon."""
    dual_clip: float | None = None
    allow_wide_clip: bool = False
    beta: float = 0.0
    kl_estimator: str | None = None
    """None: k3_unbiased in the loss, k1 in the reward."""
    kl_placement: str = "loss"
    scale_rewards: str = "group"
    multi_objective_aggregation: str = "sum_then_normalize"
    reward_weights: tuple[float, ...] = ()
    loss_aggregation: str = "token_mean"
    is_correction: str = "tis"
    is_low: float | None = None
    is_high: float | None = None
    is_eps: float | None = None
    is_delta: float | None = None
    proximal: str = "learner"
    is_cap_low: float = 0.0
    is_cap_high: float = 5.0
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    entropy_coef: float = 0.0
    overlong_buffer: float = 0.0
    mask_truncated_completions: bool = False
    max_completion_length: int | None = None
    """Tokens; the constant length of seq_mean_token_sum_norm, and the limit of the soft overlong punishment."""
    num_iterations: int = 1
    minibatches: int = 1
    num_generations: int = 8
    gamma: float = 1.0
    gae_lambda: float = 1.0
    gae_lambda_critic: float = 1.0
    length_adaptive_alpha: float | None = None
    bootstrap_truncated: bool = False
    whiten_advantages: bool = True
    value_clip: float | None = 0.5
    nll_coef: float = 0.0

    def __post_init__(self) -> None:
        lookup(MODES, self.loss_aggregation, "loss_aggregation")
        correction(self.is_correction, self.bounds)
        lookup(advantages.SCALES, self.scale_rewards, "scale_rewards")
        lookup(ESTIMATORS, self.kl, "kl_estimator")
        lookup({"loss": 0, "reward": 0}, self.kl_placement, "kl_placement")
        for name in ("epsilon", "epsilon_upper", "beta"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 or more")
        for name in ("num_iterations", "minibatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.loss_aggregation == "seq_mean_token_sum_norm" and not (self.max_completion_length or 0) > 0:
            raise ValueError(
                f"loss_aggregation seq_mean_token_sum_norm divides by max_completion_length, which is {self.max_completion_length}"
            )
        if found := problem(self, self.preset):
            raise ValueError(". ".join(found))

    @property
    def name(self) -> str:
        return self.preset.name

    @property
    def epsilon_upper(self) -> float:
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def kl(self) -> str:
        """A key of `kl.ESTIMATORS`."""
        return self.kl_estimator or ("k1" if self.kl_placement == "reward" else "k3_unbiased")

    @property
    def bounds(self) -> dict[str, float]:
        """Bounds of the correction in place of its own, by their names there."""
        given = {"low": self.is_low, "high": self.is_high, "eps": self.is_eps, "delta": self.is_delta}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def num_updates(self) -> int:
        """Optimizer steps on one batch."""
        return self.num_iterations * self.minibatches

    @property
    def penalises_kl(self) -> bool:
        """Whether the KL to the reference is taken off the rewards."""
        return self.beta > 0 and self.kl_placement == "reward"
