"""A reward function in the process that scores, for those who want back what it leaves in lists, counters and globals."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from postrl.rewards.calling import serving
from postrl.rewards.registry import RewardSpec

T = TypeVar("T")


class Inside:
    """In place of a `child.Child`. Nothing protects the process: a function that hangs, exits hard or fills the memory takes
    it along.

    Args:
        settings, loaded: as for a reward process.
    """

    def __init__(self, spec: RewardSpec, settings: dict[str, Any], loaded: Callable[[dict[str, Any]], Any]) -> None:
        self.spec, self.settings, self.loaded = spec, settings, loaded
        self._function: Callable[..., Any] | None = None
        self._runner = asyncio.Runner()

    def start(self) -> None:
        """Load the function, unless it is. Raises Failed."""
        if self._function is None:
            try:
                self._function, told = serving.load_bound(self.spec, self.settings)
            except BaseException as error:  # a module may call sys.exit
                told = serving.refusal(error)
            self.loaded(told)

    def ask(self, request: Any, seconds: float, what: str, read: Callable[[dict[str, Any]], T]) -> T:
        """Call the function; `seconds` do not limit it, nor does its memory. Raises Failed."""
        self.start()
        assert self._function is not None
        reply = serving.answer(self._function, partial(copy.deepcopy, request), self._runner)
        return read({**reply, "memory": 0})

    def kill(self) -> None:
        """There is nothing to kill."""

    def end(self) -> None:
        """Close the event loop of an async function."""
        self._runner.close()
