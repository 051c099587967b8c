"""From the name of an algorithm and a run's settings to the algorithm."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from postrl.algorithms.algorithm import Algorithm
from postrl.algorithms.lookup import lookup
from postrl.algorithms.parts import ADVANTAGES, LOSSES
from postrl.algorithms.presets import PRESETS, Preset, needs_of

SETTINGS = tuple(f.name for f in fields(Algorithm) if f.name not in ("preset", "advantage", "loss", "needs"))
"""What `resolve` takes, under the names of the configuration."""


def resolve(preset: str | Preset, **settings: Any) -> Algorithm:
    """The algorithm called `preset` with these settings; what is not given is the preset's, else GRPO's.

    Raises:
        ValueError: an unknown name, or an impossible combination.
    """
    row = preset if isinstance(preset, Preset) else lookup(PRESETS, preset, "algorithm")
    own = {name: value for name, value in row.settings.items() if name in SETTINGS}
    algorithm = Algorithm(
        preset=row,
        advantage=row.advantage if callable(row.advantage) else lookup(ADVANTAGES, row.advantage, "advantage"),
        loss=row.loss if callable(row.loss) else lookup(LOSSES, row.loss, "loss"),
        **{**own, **settings},
    )
    return replace(algorithm, needs=needs_of(row, algorithm))
