"""Raising what is wrong with settings: one problem, or all of them at once."""

from __future__ import annotations

from collections.abc import Sequence

from postrl.algorithms.refused import Problem
from postrl.errors import UsageError


def refuse_all(found: Sequence[tuple[str, str]], source: str) -> None:
    """Raise all that was found in `source` in one error: each with its way out, so that a script is mended once."""
    if len(found) == 1:
        message, hint = found[0]
        raise UsageError(message, hint=hint)
    if found:
        lines = "".join(f"\n  {message.removeprefix(f'{source}: ')}; {hint}" for message, hint in found)
        raise UsageError(f"{source} has {len(found)} settings that cannot be:{lines}", hint="mend them all at once")


def refuse(found: Problem) -> None:
    """Raise what was found, where anything was."""
    if found:
        message, hint = found
        raise UsageError(message, hint=hint)
