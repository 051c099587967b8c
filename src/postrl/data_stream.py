"""The endless order of prompts over epochs, resumable to the prompt."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from postrl.config import GRPOConfig
from postrl.errors import DataError, UsageError
from postrl.types import Prompt


def steps_for_epochs(num_prompts: int, prompts_per_step: int, epochs: float) -> int:
    """Steps that pass `epochs` times over the prompts; the last step may reach into the next epoch. At least 1."""
    return max(1, math.ceil(round(epochs * num_prompts / prompts_per_step, 9)))


def planned_steps(config: GRPOConfig, num_prompts: int) -> int:
    """Steps of a run that generates: max_steps, else what num_train_epochs needs."""
    if config.max_steps > 0:
        return config.max_steps
    return steps_for_epochs(num_prompts, config.prompts_per_step, config.num_train_epochs)


MOST_REPEATS = 256
"""Times that a step may take one prompt: beyond it the number is a mistake, and its groups fill the memory."""


def repeats(per_step: float, rows: int, name: str = "") -> str:
    """One line where a step takes more prompts than a data set has; empty where it does not.

    Args:
        per_step: prompts that a step takes from it.
        rows: what it has; likewise its `name`, where there are others.

    Raises:
        UsageError: more than MOST_REPEATS times as many.
    """
    if per_step <= rows:
        return ""
    what = (
        f"prompts_per_step asks for {math.ceil(per_step)} prompts{f' of {name}' if name else ''}, and there are {rows}"
    )
    if per_step > MOST_REPEATS * rows:
        raise UsageError(what, hint=f"set --prompts-per-step to {rows} or less; --max-steps says how long a run is")
    return f"{what}: a step takes each {per_step / rows:.3g} times (lower --prompts-per-step, or raise --num-generations instead)"


class PromptStream:
    """Prompts one after the other, epoch after epoch, in an order that depends on `seed` and nothing else.

    Epoch e is the permutation of `random.Random(f"{seed}:{data set}:{e}")`; without `shuffle` it is the rows' order.
    With `weights`, each data set is such a stream of its own, and the next prompt comes from the one that is furthest
    behind its share: after n prompts each has given its share of n, to within one prompt.

    Args:
        prompts: what to draw from; the data set of a prompt is its id up to the last colon.
        weights: share of each data set by name, in any unit; None: each prompt once an epoch.
    """

    def __init__(
        self, prompts: Sequence[Prompt], *, seed: int, shuffle: bool, weights: Mapping[str, float] | None = None
    ) -> None:
        if not prompts:
            raise DataError("there is no prompt to draw from", hint="check --dataset")
        self.num_prompts = len(prompts)
        self._ids = zlib.crc32("\n".join(prompt.prompt_id for prompt in prompts).encode())
        if weights is None:
            self._parts = [_Part("", 1.0, list(prompts), seed, shuffle)]
        else:
            members: dict[str, list[Prompt]] = {}
            for prompt in prompts:
                members.setdefault(prompt.prompt_id.rpartition(":")[0], []).append(prompt)
            total = sum(weights[name] for name in members)
            self._parts = [_Part(name, weights[name] / total, rows, seed, shuffle) for name, rows in members.items()]

    @property
    def position(self) -> int:
        """Prompts drawn so far; also the next group id."""
        return sum(part.taken for part in self._parts)

    @property
    def epoch(self) -> float:
        """Prompts drawn so far over the number of prompts."""
        return self.position / self.num_prompts

    def repeats(self, n: int) -> list[str]:
        """A line for each data set of which a step of n prompts takes some more than once.

        Raises:
            UsageError: far more than once.
        """
        return [line for part in self._parts if (line := repeats(part.share * n, len(part.prompts), part.name))]

    def next(self, n: int) -> list[tuple[int, Prompt]]:
        """The next n prompts, each with its group id (its place in the stream: unique in a run, resumed or not)."""
        return [self._draw() for _ in range(n)]

    def _draw(self) -> tuple[int, Prompt]:
        position = self.position
        part = max(self._parts, key=lambda part: part.share * (position + 1) - part.taken)
        return position, part.draw()

    def state(self) -> dict[str, Any]:
        """Where the stream stands, as plain JSON values, for `load_state`."""
        return {"prompts": self._ids, "taken": {part.name: part.taken for part in self._parts}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            DataError: it was taken from other prompts, so that "where" has no meaning here.
        """
        taken = state["taken"]
        if state["prompts"] != self._ids or set(taken) != {part.name for part in self._parts}:
            raise DataError(
                "the data set is not the one that the checkpoint was made with",
                hint="resume with the same --dataset, --max-prompt-length and files, or start a new run",
            )
        for part in self._parts:
            part.taken = int(taken[part.name])


class _Part:
    """One data set's own endless stream; `taken` is all its state."""

    def __init__(self, name: str, share: float, prompts: list[Prompt], seed: int, shuffle: bool) -> None:
        self.name, self.share, self.prompts, self.seed, self.shuffle = name, share, prompts, seed, shuffle
        self.taken = 0
        self._order: tuple[int, list[int]] = (-1, [])

    def draw(self) -> Prompt:
        epoch, place = divmod(self.taken, len(self.prompts))
        if self._order[0] != epoch:
            rows = list(range(len(self.prompts)))
            if self.shuffle:
                random.Random(f"{self.seed}:{self.name}:{epoch}").shuffle(rows)
            self._order = (epoch, rows)
        self.taken += 1
        return self.prompts[self._order[1][place]]
