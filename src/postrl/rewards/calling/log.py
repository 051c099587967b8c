"""`log_extra` and `log_metric`: what a reward function may say beside its scores, by the names that TRL has for it."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

from postrl.types import Mean, Means

RESERVED = frozenset({"mean", "latency_p99", "cost_total", "restarts", "misused_logs"})
"""Names of reward/<function>/<name> that postrl reports itself, beside status/<status>."""


class Log:
    """What one call logs. A mistake in it is noted and never costs the scores.

    Args:
        count: completions of the call.
    """

    ARGUMENTS = ("log_extra", "log_metric")

    def __init__(self, count: int) -> None:
        self.count = count
        self.columns: dict[str, list[Any]] = {}
        self.metrics: Means = {}
        """Of the values that are finite."""
        self.notes: list[str] = []

    def asked_for(self, function: Callable[..., Any]) -> dict[str, Callable[..., None]]:
        """The two, as far as the function's signature names them or takes any argument."""
        parameters = inspect.signature(function).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        mine: dict[str, Callable[..., None]] = {"log_extra": self.log_extra, "log_metric": self.log_metric}
        return {name: log for name, log in mine.items() if takes_any or name in parameters}

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        """Store a value for each completion beside it, as `extra/<column>`: JSON values, anything else as text."""
        try:
            found = list(values)
        except TypeError:
            self.notes.append(f"log_extra({column!r}) got a {type(values).__name__}, expected {self.count} values")
            return
        if len(found) != self.count:
            self.notes.append(f"log_extra({column!r}) got {len(found)} values for {self.count} completions")
            return
        self.columns[_printable(column)] = [_plain(value) for value in found]

    def log_metric(self, name: str, value: float) -> None:
        """Report the mean of the values as `reward/<function>/<name>`; values that are not finite do not count."""
        if name in RESERVED or str(name).startswith("status/"):
            self.notes.append(f"log_metric({name!r}): the name is taken by a metric of every reward")
            return
        try:
            number = float(value)
        except Exception:
            self.notes.append(f"log_metric({name!r}) got {value!r:.200} ({type(value).__name__}), expected a number")
            return
        before = self.metrics.get(_printable(name), Mean())
        after = before + Mean(number, 1.0)
        self.metrics[_printable(name)] = after if math.isfinite(after.total) else before


def _printable(name: Any) -> str:
    return str(name).encode("utf-8", "backslashreplace").decode()


def _plain(value: Any) -> Any:
    """A value as JSON has it: numpy scalars as numbers, what is not finite as null, anything else as its text."""
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    try:
        return json.loads(json.dumps(value, default=str), parse_constant=lambda constant: None)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, a loop
        return str(value)
