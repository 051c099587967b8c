"""The built-in rewards: a row each, and nothing of them is imported before it is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

Columns = dict[str, Any]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Builtin:
    """A reward that ships with postrl: a function `f(completions, <columns it needs>, *, <options>) -> list[Score]`.

    A column of the data never fills an option: those come from `--reward-arg` and, under the same name, from the
    settings of the run.
    """

    target: str
    """Where the function is: `module:function`."""
    seconds: float = 0.0
    """What it lets one completion take: it limits itself. A call may take `reward_timeout`, or this for each of its
    completions where that is more."""
    processes: Callable[[Options], int] = lambda options: 1
    """How many it has with these options."""
    scorable: Callable[[Columns], bool] | None = None
    """Whether it can score completions of a row with these columns. None: it shapes, and needs nothing of the row."""
    why: Callable[[Columns], str] | None = None
    """In a few words, why it cannot score a row that is not `scorable`."""
    short: str = ""
    """The option that NAME:VALUE gives."""


def _by_arithmetic(columns: Columns) -> bool:
    from postrl.rewards.arithmetic import arithmetic_reward

    (score,) = arithmetic_reward([""], [columns.get("answer")])
    return score.status != "gold_unscorable"


def _late(function: str, column: str = "") -> Callable[[Columns], Any]:
    """The function `module:name`, imported when it is called, of the columns of a row or of one of them."""

    def call(columns: Columns) -> Any:
        module, _, name = function.partition(":")
        return getattr(import_module(module), name)(columns.get(column) if column else columns)

    return call


def _any_row(columns: Columns) -> bool:
    return True


def judge_processes(options: Options) -> int:
    """Processes that ask a judge at the same time, each about one group; no more than requests are allowed at once."""
    allowed = options.get("concurrency", 32)
    return min(4, max(1, allowed)) if isinstance(allowed, int) else 1


def model_processes(options: Options) -> int:
    """Processes of a reward model: one that holds it, or four that ask its server, each about one group."""
    return 4 if options.get("url") else 1


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


BUILTINS = {
    "arithmetic": Builtin("postrl.rewards.arithmetic:arithmetic_reward", scorable=_by_arithmetic),
    "math": Builtin(
        "postrl.rewards.math:math_reward",
        seconds=5.0,
        processes=lambda options: min(8, max(1, cores() // 2)),
        scorable=_late("postrl.rewards.math:scorable", "answer"),
        why=_late("postrl.rewards.math:why_unscorable", "answer"),
    ),
    "code": Builtin(  # runs samples in parallel
        "postrl.rewards.code:code_reward",
        seconds=30.0,
        scorable=_late("postrl.rewards.code:scorable"),
        why=_late("postrl.rewards.code:why_unscorable"),
    ),
    "reward_model": Builtin(  # seconds: a long text on a slow CPU
        "postrl.rewards.reward_model:model_reward",
        seconds=180.0,
        processes=model_processes,
        scorable=_any_row,
        short="model",
    ),
    "judge": Builtin("postrl.rewards.judge:judge_reward", seconds=180.0, processes=judge_processes, scorable=_any_row),
    "format": Builtin("postrl.rewards.shaping:format_reward"),
    "soft_overlong": Builtin("postrl.rewards.shaping:soft_overlong_punishment"),
    "cosine": Builtin(  # math is what its verifier is by default, 30 s what one may take
        "postrl.rewards.shaping:cosine_length_reward",
        seconds=30.0,
        scorable=_late("postrl.rewards.math:scorable", "answer"),
    ),
    "repetition": Builtin("postrl.rewards.shaping:repetition_penalty"),
}
VERIFIERS = ("arithmetic", "math", "code")
"""Those that say right or wrong: their mean is an accuracy."""
SHAPING = frozenset(name for name, row in BUILTINS.items() if row.scorable is None)
"""Built-in rewards that say nothing about the answer: format, soft_overlong, repetition. The user's own functions are part
of the task."""


def task_weights(weights: Mapping[str, float], shaping: Collection[str] = SHAPING) -> dict[str, float]:
    """Of the run's reward functions with their weights, those that are the task: all where every one of them shapes."""
    return {name: weight for name, weight in weights.items() if name not in shaping} or dict(weights)
