"""An asyncio event loop whose clock jumps to the next timer: hours of waiting pass in milliseconds, in a fixed order.

For simulations and for tests of what waits: the code under it is the code of a real run, as long as it asks the loop for
the time and waits for nothing outside of it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time, which starts at 0.

    Raises:
        RuntimeError: everything waits and no timer is set: it would wait for ever.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds


class _Jumping(selectors.DefaultSelector):
    """Never sleeps: the time it was to wait for passes at once."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and nothing will ever happen")
        if not ready and timeout and timeout > 0:
            self._loop.jump(timeout)
        return ready
