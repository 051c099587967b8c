"""The worker processes of one reward function, behind a coroutine.

Each has a thread of its own, which starts the process, talks to it and reaps it, so that

  - a call goes to whichever process is free, and its time limit starts with its work, not while it queues;
  - nothing is bound to an event loop: a later `asyncio.run` goes on where the last one stopped;
  - the thread that started a process lives as long as the process (see `process`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from postrl.errors import RewardError
from postrl.rewards.calling.process import Outcome, WorkerProcess
from postrl.rewards.registry import RewardSpec

MEET_SECONDS = 600.0
"""For all threads to be free at a start: calls of an earlier use may still run."""


class RewardPool:
    """One reward function in `workers` processes.

    Args:
        timeout: number of completions -> seconds that their call may take before its worker is killed.
        settings, load_timeout, log_path: as for WorkerProcess.
    """

    def __init__(
        self,
        spec: RewardSpec,
        name: str,
        *,
        workers: int,
        timeout: Callable[[int], float],
        settings: Mapping[str, Any],
        load_timeout: float,
        log_path: Path | None,
    ) -> None:
        self.name, self.timeout = name, timeout
        self._processes = [
            WorkerProcess(spec, name, settings=settings, load_timeout=load_timeout, log_path=log_path)
            for _ in range(workers)
        ]
        self._unclaimed = deque(self._processes)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=f"reward-{name}")
        self._mine = threading.local()
        self._starting = threading.Lock()
        self._closed = False

    @property
    def restarts(self) -> int:
        """How often a process was started anew because its memory had grown."""
        return sum(process.restarts for process in self._processes)

    @property
    def required(self) -> list[str]:
        """The arguments without which the function cannot be called; known once it has started."""
        return self._processes[0].required

    @property
    def version(self) -> str:
        """Of the function that is loaded; empty while none is."""
        return self._processes[0].version

    async def start(self) -> None:
        """Start all processes and load the function. Raises RewardError when it cannot be loaded."""
        self._check_open()
        together = threading.Barrier(len(self._processes), timeout=MEET_SECONDS)
        with self._starting:  # two starts that take half of the threads each would wait for each other
            try:
                starts = [self._threads.submit(self._start, together) for _ in self._processes]
            except RuntimeError:  # closed meanwhile: those that wait for the others must not keep `close` waiting
                together.abort()
                self._check_open()
                raise
        await asyncio.gather(*map(asyncio.wrap_future, starts))

    async def call(self, inputs: dict[str, list[Any]], count: int) -> Outcome:
        """Score `count` completions. Failures are in the outcome; RewardError only when it was closed meanwhile."""
        self._check_open()
        return await asyncio.wrap_future(self._threads.submit(self._call, inputs, count))

    def close(self) -> None:
        """Kill and reap all processes, even in the middle of a call. Safe to call twice."""
        self._closed = True
        for process in self._processes:
            process.kill()
        self._threads.shutdown(wait=True)
        for process in self._processes:
            process.end()

    def _start(self, together: threading.Barrier) -> None:
        try:
            together.wait()  # so that each thread starts its own
        except threading.BrokenBarrierError:
            self._check_open()
            raise RewardError(
                f"the workers of reward function {self.name} were not free to start within {MEET_SECONDS:g} s",
                hint="a call that takes so long is cut by --reward-timeout",
            ) from None
        self._process().start()

    def _call(self, inputs: dict[str, list[Any]], count: int) -> Outcome:
        return self._process().call(inputs, count, self.timeout(count))

    def _process(self) -> WorkerProcess:
        """The process of this thread."""
        if not hasattr(self._mine, "process"):
            self._mine.process = self._unclaimed.popleft()
        process: WorkerProcess = self._mine.process
        return process

    def _check_open(self) -> None:
        if self._closed:
            raise RewardError(f"reward function {self.name} was called after its runner was closed")
