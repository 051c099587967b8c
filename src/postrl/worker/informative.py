"""Which groups teach something, by the raw metric of the task (dynamic sampling of DAPO, arXiv:2503.14476, section 3.2).

Judged is what the task asks for and not what shapes the reward: of completions that are all wrong, a length penalty still
prefers the short ones, and a batch full of such groups trains on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from postrl.rewards.builtin import task_weights
from postrl.rewards.score import Score
from postrl.types import Group, Rollout

EQUAL = 1e-8
"""Rewards of a group that differ by no more are equal: all its advantages are 0. As in algorithms/advantages.py."""


def informative(group: Group, task: Mapping[str, float] | None = None) -> bool:
    """Whether the completions of a group differ in the raw metric, so that some of them can be preferred.

    With verdicts (a verifier among the functions): some are right and some are wrong. Without: the weighted sums of the
    task's scores differ by more than 1e-8. A group that nothing could score is not informative.

    Args:
        task: the reward functions that make the metric, with their weights; default: those that scored the group, except
            SHAPING, added up.
    """
    if task is None:
        task = task_weights(dict.fromkeys((name for r in group.rollouts for name in r.rewards), 1.0))
    verdicts = [right for r in group.rollouts if (right := r.verdict(task)) is not None]
    if verdicts:
        return 0 < sum(verdicts) < len(verdicts)
    scores = [score for r in group.rollouts if (score := _raw(r, task)) is not None]
    return len(scores) > 1 and max(scores) - min(scores) > EQUAL


def _raw(rollout: Rollout, task: Mapping[str, float]) -> float | None:
    scores = [(weight, score) for name, weight in task.items() if (score := rollout.rewards.get(name)) is not None]
    return sum(weight * score for weight, score in scores) if scores else None


def unjudged(group: Group) -> bool:
    """Whether a reward function failed for a completion of the group: that counts against the run's budget of failures,
    and says nothing about the prompt."""
    return any(Score(r.rewards.get(name), status).failed for r in group.rollouts for name, status in r.statuses.items())
