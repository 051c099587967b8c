"""What the shell offers after a flag (`postrl --install-completion`). Choices complete by themselves, files as ever."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from postrl.algorithms.presets import PRESETS
from postrl.models.packaged import PACKAGED
from postrl.rewards.builtin import BUILTINS
from postrl.rows.recipes import RECIPES
from postrl.run.trackers import TRACKERS

NAMES: dict[str, Iterable[str]] = {
    "algorithm": PRESETS,
    "dataset": RECIPES,
    "eval_dataset": RECIPES,
    "reward": BUILTINS,
    "model": PACKAGED,
    "critic_model": PACKAGED,
    "report_to": TRACKERS,
}
"""Setting -> the names that its values may have."""


def completion_of(name: str) -> Callable[[str], list[str]] | None:
    """A function that completes the values of a setting, where they have names; else None."""
    if name not in NAMES:
        return None

    def complete(incomplete: str) -> list[str]:
        return sorted(value for value in NAMES[name] if value.startswith(incomplete))

    return complete
