"""What the commands that score have in common."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postrl.config.setting import REWARD

if TYPE_CHECKING:
    from postrl.rewards.registry import RewardSpec
    from postrl.rewards.runner import RewardRunner

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", hidden=True)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
RewardArg = Annotated[
    list[str] | None,
    typer.Option(
        "--reward-arg",
        metavar="NAME.KEY=VALUE",
        help="Option of a reward function; repeatable.",
        rich_help_panel=REWARD,
    ),
]


def reward_specs(rewards: Sequence[str], args: Sequence[str]) -> list[RewardSpec]:
    """The rewards of these names with their options.

    Raises:
        UsageError: one cannot be found.
    """
    from postrl.rewards.registry import resolve, with_options

    specs = [resolve(reward) for reward in rewards]
    return with_options(specs, args) if specs else []


def show_failures(runner: RewardRunner) -> None:
    """What went wrong with each function: the first traceback."""
    from postrl import console

    for name, failures in runner.failures.items():
        if failures.count:
            console.error(f"reward {name} failed for {failures.count} completions; the first time:\n{failures.first}")


def write_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")
