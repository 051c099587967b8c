"""The endless order of prompts over epochs, resumable to the prompt."""

from __future__ import annotations

import hashlib
import json
import math
import random
import reprlib
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
        lower = f"lower the weight of {name} in --dataset" if name else f"set --prompts-per-step to {rows} or less"
        raise UsageError(what, hint=f"{lower}; --max-steps says how long a run is")
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
        self._prompts, self._digests = prompts, digests(prompts)
        self._ids = zlib.crc32("\n".join(prompt.prompt_id for prompt in prompts).encode())
        if weights is None:
            self._parts = [_Rows("", 1.0, list(prompts), seed, shuffle)]
        else:
            members: dict[str, list[Prompt]] = {}
            for prompt in prompts:
                members.setdefault(prompt.prompt_id.rpartition(":")[0], []).append(prompt)
            total = sum(weights[name] for name in members)
            self._parts = [_Rows(name, weights[name] / total, rows, seed, shuffle) for name, rows in members.items()]

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
        rows = {"number": self.num_prompts, "digests": self._digests}
        return {"prompts": self._ids, "rows": rows, "taken": {part.name: part.taken for part in self._parts}}

    def load_state(self, state: Mapping[str, Any]) -> str:
        """Continue where `state` was taken; returns what could not be compared, in a line, else nothing.

        Raises:
            DataError: it was taken from other prompts, or from these in another order, so that "where" has no meaning here.
        """
        taken, rows = state["taken"], state.get("rows")
        if differs := self._difference(state["prompts"], rows, list(taken)):
            raise DataError(
                f"the data set is not the one that the checkpoint was made with: {differs}",
                hint="resume with the same rows in the same order, or start a new run from the model (--model RUN/model)",
            )
        for part in self._parts:
            part.taken = int(taken[part.name])
        return "" if rows else "the checkpoint is of an older version: of its rows only number and names were compared"

    def _difference(self, ids: int, rows: Mapping[str, Any] | None, names: list[str]) -> str:
        own = [part.name for part in self._parts]
        if set(names) != set(own):
            return f"it is mixed of {', '.join(own) or 'one'}, and was of {', '.join(names) or 'one'}"
        if rows and rows["number"] != self.num_prompts:
            return f"it has {self.num_prompts} usable rows, and had {rows['number']}"
        if ids != self._ids:
            return f"its rows have other names or numbers, from {self._prompts[0].prompt_id} on"
        if rows is None or rows["digests"] == self._digests:
            return ""
        if sorted(rows["digests"]) == sorted(self._digests):
            return f"the rows are in another order, from {self._where(rows['digests'])} on"
        return f"the first row that differs is {self._where(rows['digests'])}"

    def _where(self, digests: Sequence[str]) -> str:
        """The first row that is another, or between which two it is."""
        block = next(i for i, pair in enumerate(zip(digests, self._digests, strict=True)) if pair[0] != pair[1])
        size = _block_size(self.num_prompts)
        of = self._prompts[block * size : (block + 1) * size]
        if len(of) > 1:
            return f"between {of[0].prompt_id} and {of[-1].prompt_id}"
        return f"{of[0].prompt_id} (now {reprlib.repr(of[0].text)})"


# -- what rows are -------------------------------------------------------------------------------------------------------

MOST_DIGESTS = 1024
"""Of a larger data set, several rows share a digest: all of them travel with each checkpoint."""


def _block_size(rows: int) -> int:
    return math.ceil(rows / MOST_DIGESTS)


def digests(prompts: Sequence[Prompt]) -> list[str]:
    """What the rows hold, in their order: prompts and every column. A conversation counts as its messages: a chat template
    may put today's date into the text."""
    size, found = _block_size(len(prompts)), []
    for start in range(0, len(prompts), size):
        block = hashlib.blake2b(digest_size=8)
        for prompt in prompts[start : start + size]:
            row = [prompt.messages or prompt.text, prompt.columns, prompt.rewards]
            block.update(json.dumps(row, sort_keys=True).encode() + b"\n")
        found.append(block.hexdigest())
    return found


class _Rows:
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
