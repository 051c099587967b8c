"""Rewards: built-in ones and the user's, each in a killable process."""

from __future__ import annotations

from postrl.rewards.builtin import BUILTINS
from postrl.rewards.registry import RewardSpec, resolve
from postrl.rewards.score import STATUSES, Score

__all__ = ["BUILTINS", "STATUSES", "RewardRunner", "RewardSpec", "Score", "resolve"]


def __getattr__(name: str) -> object:
    if name == "RewardRunner":  # a reward process imports this package and needs no runner
        from postrl.rewards.runner import RewardRunner

        return RewardRunner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
