"""One reward function in a process of its own, and what its calls give."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from postrl.errors import RewardError
from postrl.rewards.calling.child import Child, Failed
from postrl.rewards.calling.inside import Inside
from postrl.rewards.registry import RewardSpec
from postrl.rewards.score import STATUSES, Score
from postrl.types import Mean, Means

LARGEST_GROWTH = 2 << 30
"""Bytes by which a reward process may grow after its first call, before it is taken for a leak and started anew."""


@dataclass
class Outcome:
    """What one call gave."""

    scores: list[Score]
    """One for each completion."""
    error: str | None = None
    """What went wrong with the scores, if anything did."""
    seconds: float = 0.0
    extra: dict[str, list[Any]] = field(default_factory=dict)
    """Columns of `log_extra`: a value for each completion."""
    metrics: Means = field(default_factory=dict)
    """Of `log_metric`."""
    notes: list[str] = field(default_factory=list)
    """What went wrong beside the scores."""
    version: str = ""
    """Of the function, as its process said when it loaded it."""


class RewardProcess:
    """One reward function in its own process, started when first needed and again after it was killed.

    Args:
        settings: settings of the run that a built-in may have options for.
        load_timeout: seconds it may take to import its function.
        log_path: file for what the function prints; None: standard error.
        inside: call it in this process instead, see `inside.Inside`.
    """

    def __init__(
        self,
        spec: RewardSpec,
        name: str,
        *,
        settings: Mapping[str, Any],
        load_timeout: float,
        log_path: Path | None,
        inside: bool = False,
    ) -> None:
        self.name = name
        self.builtin = spec.kind == "builtin"
        self.child: Child | Inside
        if inside:
            self.child = Inside(spec, dict(settings), self._read_loaded)
        else:
            self.child = Child(
                "postrl.rewards.calling.serving",
                first={"spec": spec.to_wire(), "settings": dict(settings)},
                loaded=self._read_loaded,
                load_timeout=load_timeout,
                log_path=log_path,
            )
        self.restarts = 0
        """How often it was started anew because its memory had grown."""
        self.asks: dict[str, Any] = {"names": [], "required": [], "constant": [], "any": False}
        """The arguments that the function takes, as `serving.describe` says; known once it has started, as its version is."""
        self.version = ""
        self._memory: int | None = None
        """Bytes that were resident after its first call."""

    def start(self) -> None:
        """Start the process and load the function. Raises RewardError when it cannot be loaded."""
        try:
            self.child.start()
        except Failed as failure:
            raise RewardError(
                f"reward function {self.name} cannot be loaded: {failure}",
                hint=failure.hint
                or "importing its file, with everything that it imports, must work in a fresh Python process",
            ) from None

    def call(self, inputs: dict[str, list[Any]], count: int, timeout: float) -> Outcome:
        """Score `count` completions in `timeout` seconds, counted from when the function is loaded. Failures are in the
        outcome."""
        begin = time.monotonic()
        try:
            self.child.start()
            begin = time.monotonic()
            if self.builtin:  # a row of another data set: it says gold_unscorable
                inputs = {**dict.fromkeys(self.asks["required"], [None] * count), **inputs}
            request = {"inputs": _asked_for(self.asks, inputs), "count": count}
            outcome, memory = self.child.ask(request, timeout, "a call", partial(_read_outcome, count))
            outcome.version = self.version
            self._watch(memory, outcome)
        except Failed as failure:
            outcome = Outcome([Score(None, "infra_error")] * count, str(failure))
        outcome.seconds = time.monotonic() - begin
        return outcome

    def _watch(self, memory: int, outcome: Outcome) -> None:
        """End a process that has grown too much, between two calls: the next one starts it anew."""
        if self._memory is None:
            self._memory = memory
        elif memory - self._memory > LARGEST_GROWTH:
            self.child.end()
            self.restarts += 1
            outcome.notes.append(
                f"the memory of its process grew by more than {LARGEST_GROWTH / (1 << 30):.3g} GiB since its first call, "
                "so it is started anew; does the function keep what it was given?"
            )

    def _read_loaded(self, reply: dict[str, Any]) -> None:
        if "error" in reply:
            raise Failed(str(reply["error"]), str(reply["hint"]))
        asks = {name: [str(argument) for argument in reply["asks"][name]] for name in ("names", "required", "constant")}
        self.asks = {**asks, "any": bool(reply["asks"]["any"])}
        self.version, self._memory = str(reply["version"]), None


def _asked_for(asks: dict[str, Any], inputs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The inputs that the function's signature names; for one with **kwargs all that are no options of its own."""
    missing = [name for name in asks["required"] if name not in inputs]
    if missing:
        raise Failed(f"it asks for the argument {', '.join(missing)}; there are {', '.join(inputs)}")
    if asks["any"]:
        return {name: values for name, values in inputs.items() if name not in asks["constant"]}
    return {name: inputs[name] for name in asks["names"] if name in inputs}


def _read_outcome(count: int, reply: dict[str, Any]) -> tuple[Outcome, int]:
    """The outcome of a call, and the memory of the process. Raises Failed when the call failed, ValueError for what no
    process of ours sends."""
    error = reply["error"]
    if "values" not in reply:
        raise Failed(str(error))
    scores = [Score(value, status) for value, status in zip(reply["values"], reply["statuses"], strict=True)]
    for score in scores:
        if not (score.value is None or _is_number(score.value)) or score.status not in STATUSES:
            raise ValueError(f"{score} is not a score")
    extra = {str(column): list(values) for column, values in reply["extra"].items()}
    metrics = {str(name): Mean(total, counted) for name, (total, counted) in reply["metrics"].items()}
    if {len(scores), *map(len, extra.values())} != {count}:
        raise ValueError(f"{len(scores)} scores for {count} completions, or a column of another length")
    if not all(_is_number(x) for mean in metrics.values() for x in mean):
        raise ValueError(f"{metrics} are not sums and counts")
    notes = [str(note) for note in reply["notes"]]
    outcome = Outcome(scores, None if error is None else str(error), extra=extra, metrics=metrics, notes=notes)
    return outcome, int(reply["memory"])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
