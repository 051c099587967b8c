"""What a setting is: a dataclass field with its help, its range and what else is told of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, Field, field
from typing import Any, NamedTuple

from postrl.config import paths


class Range(NamedTuple):
    """The numbers that a setting may have. None means "default" and is always allowed; NaN never is."""

    words: str
    holds: Callable[[float], bool]


AT_LEAST_1 = Range("1 or more", lambda x: x >= 1)
POSITIVE = Range("more than 0", lambda x: 0 < x < math.inf)
NOT_NEGATIVE = Range("0 or more", lambda x: 0 <= x < math.inf)
SHARE = Range("a share from 0 to 1", lambda x: 0 <= x <= 1)
SHARE_ABOVE_0 = Range("a share above 0, at most 1", lambda x: 0 < x <= 1)
SHARE_BELOW_1 = Range("a share from 0, below 1", lambda x: 0 <= x < 1)
STEPS = Range("1 or more, or -1 for num_train_epochs", lambda x: x == -1 or x >= 1)
STEPS_OR_SHARE = Range("0 or more; below 1: a share of all steps", lambda x: 0 <= x < 1 or x == x // 1 < math.inf)
SOME_STEPS_OR_SHARE = Range("1 or more, or a share of all steps", lambda x: 0 < x < 1 or 1 <= x == x // 1 < math.inf)


def setting(
    default: Any,
    panel: str,
    help: str,
    *,
    within: Range | None = None,
    resumable: bool = False,
    part_of: str = "",
    path: paths.Kind | None = None,
) -> Any:
    """A dataclass field with all that is told of a setting.

    Args:
        panel: where the help shows it.
        help: its help line.
        within: what a number may be.
        resumable: a resumed run may have it otherwise than the run it continues.
        part_of: what depends on it beside training, of: plan (what a run starts, needs and takes, in time and memory),
            serve (a server), score (the rewards of stored completions), reward (built-in ones that have an option of
            its name).
        path: of a setting that may be a path: which part of its value is one (see `postrl.config.paths`).
    """
    metadata = {
        "panel": panel, "help": help, "within": within, "resumable": resumable, "part_of": part_of.split(), "path": path,
    }  # fmt: skip
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def default_of(f: Field[Any]) -> Any:
    """A setting's default value."""
    return f.default if f.default is not MISSING else f.default_factory() if f.default_factory is not MISSING else None


MODEL, DATA, REWARD, ROLLOUT, ASYNC = "Model", "Data", "Reward", "Rollout", "Asynchronous mode"
ALGORITHM, CRITIC, OPTIMIZER, RUN = "Algorithm", "Critic (ppo, vapo)", "Optimizer", "Run"
PANELS = (MODEL, DATA, REWARD, ROLLOUT, ASYNC, ALGORITHM, CRITIC, OPTIMIZER, RUN)

Steps = float
"""A number of steps, or below 1 a share of all steps."""


def in_steps(value: float, total: int) -> int:
    """A number of steps, where it may be a share of `total` ones."""
    return math.ceil(value * total) if 0 < value < 1 else int(value)
