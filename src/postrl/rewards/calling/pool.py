"""The processes of one reward function, behind a coroutine.

A call goes to whichever is free, in a thread, and its time limit starts with its work, not while it queues. Nothing is bound
to an event loop: a later `asyncio.run` goes on where the last one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from postrl.errors import RewardError
from postrl.rewards.calling.child import Killed
from postrl.rewards.calling.process import Outcome, RewardProcess
from postrl.rewards.registry import RewardSpec

T = TypeVar("T")


class RewardPool:
    """One reward function in `processes` processes; 0: in this one.

    Args:
        timeout: number of completions -> seconds that their call may take before its process is killed.
        settings, load_timeout, log_path: as for RewardProcess.
    """

    def __init__(
        self,
        spec: RewardSpec,
        name: str,
        *,
        processes: int,
        timeout: Callable[[int], float],
        settings: Mapping[str, Any],
        load_timeout: float,
        log_path: Path | None,
    ) -> None:
        self.name, self.timeout = name, timeout
        self._processes = [
            RewardProcess(
                spec, name, settings=settings, load_timeout=load_timeout, log_path=log_path, inside=processes == 0
            )
            for _ in range(processes or 1)
        ]
        self._free: SimpleQueue[RewardProcess] = SimpleQueue()
        for process in self._processes:
            self._free.put(process)
        self._threads = ThreadPoolExecutor(len(self._processes), thread_name_prefix=f"reward-{name}")

    @property
    def restarts(self) -> int:
        """How often a process was started anew because its memory had grown."""
        return sum(process.restarts for process in self._processes)

    @property
    def required(self) -> list[str]:
        """The arguments without which the function cannot be called; known once it has started."""
        return list(self._processes[0].asks["required"])

    @property
    def version(self) -> str:
        """Of the function, as it was loaded last; empty before."""
        return self._processes[0].version

    async def start(self) -> None:
        """Start all processes and load the function. Raises RewardError when it cannot be loaded."""
        # First in, first out: so many turns reach every process.
        await asyncio.gather(*(self._use_one(RewardProcess.start) for _ in self._processes))

    async def call(self, inputs: dict[str, list[Any]], count: int) -> Outcome:
        """Score `count` completions. Failures are in the outcome; RewardError only when it was closed meanwhile."""
        return await self._use_one(lambda process: process.call(inputs, count, self.timeout(count)))

    def close(self) -> None:
        """Kill and reap all processes, even in the middle of a call. Safe to call twice."""
        for process in self._processes:
            process.child.kill()
        self._threads.shutdown(wait=True)
        for process in self._processes:
            process.child.end()

    async def _use_one(self, use: Callable[[RewardProcess], T]) -> T:
        """Use a free process in a thread."""

        def take_turn() -> T:
            process = self._free.get()
            try:
                return use(process)
            finally:
                self._free.put(process)

        closed = RewardError(f"reward function {self.name} was called after its runner was closed")
        try:
            turn = self._threads.submit(take_turn)
        except RuntimeError:  # the threads have ended
            raise closed from None
        try:
            return await asyncio.wrap_future(turn)
        except Killed:
            raise closed from None
