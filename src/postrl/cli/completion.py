"""What the shell offers after a flag (`postrl --install-completion`). Choices complete by themselves, files as ever."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def completion_of(name: str) -> Callable[[str], list[str]] | None:
    """A function that completes the values of a setting, where they have names; else None."""
    names = _NAMES.get(name)
    if names is None:
        return None

    def complete(incomplete: str) -> list[str]:
        return sorted(value for value in names() if value.startswith(incomplete))

    return complete


def _algorithms() -> Iterable[str]:
    from postrl.algorithms.presets import PRESETS

    return PRESETS


def _datasets() -> Iterable[str]:
    from postrl.rows.recipes import RECIPES

    return RECIPES


def _rewards() -> Iterable[str]:
    from postrl.rewards.builtin import BUILTINS

    return BUILTINS


def _models() -> Iterable[str]:
    from postrl.models.packaged import PACKAGED

    return PACKAGED


def _trackers() -> Iterable[str]:
    from postrl.run.trackers import TRACKERS

    return TRACKERS


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "algorithm": _algorithms,
    "dataset": _datasets,
    "eval_dataset": _datasets,
    "reward": _rewards,
    "model": _models,
    "critic_model": _models,
    "report_to": _trackers,
}
