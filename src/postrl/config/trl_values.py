"""What the rules for TRL's names work with: the settings that are left, and the forms in which TRL's values come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from postrl.algorithms.presets import PRESETS
from postrl.errors import UsageError

Values = dict[str, Any]


class Rest(Values):
    """The settings that were not looked at yet, and what is to be told of the others."""

    def __init__(self, values: Any, *, trl: bool) -> None:
        super().__init__(values)
        self.trl = trl
        """Whether they are a script of TRL's: one of its names is among them."""
        self.filled: dict[str, Any] = {}
        """What nobody has set and TRL has otherwise than postrl, with TRL's values."""
        self.passed: dict[str, str] = {}
        self.said: list[str] = []

    def fill(self, values: Values) -> None:
        """TRL's defaults, for what is neither set nor a default of the algorithm's."""
        self.filled = {name: v for name, v in values.items() if name not in self and name not in of_algorithm(self)}
        self.update(self.filled)

    def or_default(self, name: str, default: int) -> int:
        """A setting as it is given, else the algorithm's, else the default."""
        value = self.get(name)
        return int(of_algorithm(self).get(name, default) if value is None else value)

    def pass_over(self, name: str, why: str) -> None:
        """A setting of TRL's without effect here, and why."""
        self.passed.setdefault(name, why)

    def say(self, line: str) -> None:
        """What is not as in TRL."""
        self.said.append(line)


def of_algorithm(rest: Values) -> Values:
    """The settings that the algorithm has otherwise than GRPO."""
    return dict(PRESETS[rest["algorithm"]].settings) if rest.get("algorithm") in PRESETS else {}


Convert = Callable[[Values, Rest], Values]
"""(those of the names that are given, with values; all others, which it may change) -> our settings. Raises UsageError."""


def text(value: Any) -> str:
    """An enum member of transformers, a torch dtype or a plain string as the plain string."""
    return str(getattr(value, "value", value)).removeprefix("torch.")


def mapping(name: str, value: Any) -> dict[str, Any]:
    """A field that is a dict, or a dict as JSON, as TRL's command line gives it; empty where there is none."""
    try:
        value = json.loads(value) if isinstance(value, str) else value or {}
    except ValueError:
        value = None
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}, expected a dict", hint=f"{name}={{'key': value}}")
    return dict(value)


def as_args(found: Mapping[str, Any]) -> list[str]:
    """Arguments as KEY=VALUE, the form of our own settings of several options."""
    return [f"{key}={json.dumps(value)}" for key, value in found.items()]


def renamed(new: str) -> Convert:
    def rule(found: Values, rest: Rest) -> Values:
        (value,) = found.values()
        return {} if value is None else {new: value}

    return rule


def none_as(nothing: Any) -> Convert:
    """The same name, whose "off" TRL spells None (or -1)."""

    def rule(found: Values, rest: Rest) -> Values:
        ((name, value),) = found.items()
        off = value is None or (isinstance(value, int | float) and value == -1)
        return {name: nothing if off else value}

    return rule
