"""The process that runs computer algebra, so that it can be killed.

    caller --pipe--> zygote --pipe--> child

A question gets its seconds of processor time; then the child is killed, and the next one is forked from the warm zygote
in milliseconds. Both end with this process, however that ends (see `zygote`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

from postrl.host.python import child_environment, python
from postrl.rewards.calling import frames
from postrl.rewards.calling.lifetime import kill_group

SECONDS = 2.0
"""Processor time of one question. The work that decides is counted (`symbolic.MOST_CALLS`); this only ends what a count
cannot see, such as one operation with enormous numbers."""
WALL_FACTOR = 20
"""How much longer than its processor time a question may take on a busy machine."""
START_SECONDS = 120.0
"""For the zygote's imports on a loaded machine."""
GRACE_SECONDS = 20.0
"""What a reply may take longer than a question: killing a child, forking the next, a loaded machine."""
WAIT_SECONDS = 120.0
"""For a free grader."""


class GraderTimeout(Exception):
    """The question was not answered in its time."""


class GraderFailure(Exception):
    """The grader died, cannot be started, or has no memory left."""


class Grader:
    """The caller's side of one zygote, started when first needed and again after its death. One question at a time.

    Args:
        seconds: processor time of one question.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._replies = -1

    def ask(self, question: dict[str, Any]) -> bool:
        """The answer to a question of `symbolic`. A grader that dies over it is asked once more.

        Raises:
            GraderTimeout: no answer in time.
            GraderFailure: it died twice, or cannot be started.
        """
        try:
            return self._ask(question)
        except GraderFailure:
            return self._ask(question)

    def _ask(self, question: dict[str, Any]) -> bool:
        self.start()
        reply = self._exchange(question, self._times()[1] + GRACE_SECONDS)
        if "equal" in reply:
            return bool(reply["equal"])
        if reply.get("problem") == "timeout":
            raise GraderTimeout(f"computer algebra took longer than {self.seconds:g} s of processor time")
        raise GraderFailure(str(reply.get("problem")))

    def _times(self) -> tuple[float, float]:
        """Processor time and wall time of one question."""
        return self.seconds, WALL_FACTOR * self.seconds

    def start(self) -> None:
        """Start the zygote and wait until it is warm, if none is running. Raises GraderFailure."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        for_zygote, self._requests = os.pipe()
        self._replies, from_zygote = os.pipe()
        os.set_blocking(self._requests, False)
        command = [*python(), "-m", "postrl.rewards.math.zygote"]
        # SYMPY_GROUND_TYPES: with gmpy2 a kill and an alarm would behave otherwise, and memory limits abort
        environment = {
            **child_environment(),
            "SYMPY_GROUND_TYPES": "python",
            "PYTHONHASHSEED": "0",
            "PYTHONWARNINGS": "ignore",
        }
        try:
            self._process = subprocess.Popen(
                [*command, str(for_zygote), str(from_zygote), str(os.getpid()), *map(str, self._times())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(for_zygote, from_zygote),
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            raise GraderFailure(f"the math grader cannot be started: {error}") from error
        finally:
            os.close(for_zygote)
            os.close(from_zygote)
        hello = self._exchange(None, START_SECONDS)
        if "ready" not in hello:
            raise GraderFailure(f"the math grader cannot be started: {hello.get('problem')}")

    def _exchange(self, question: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + seconds

        def alive() -> bool:
            return process.poll() is None

        try:
            if question is not None:
                frames.send(self._requests, json.dumps(question).encode(), deadline, alive)
            reply = json.loads(frames.receive(self._replies, deadline, alive, frames.LARGEST_REPLY))
        except TimeoutError:
            problem = f"the math grader did not answer within {seconds:g} s"
        except EOFError:
            problem = "the math grader died"
        except ValueError as error:
            problem = f"the math grader sent a malformed reply: {error}"
        else:
            if isinstance(reply, dict):
                return reply
            problem = "the math grader sent a malformed reply"
        self.close()
        raise GraderFailure(problem)

    def close(self) -> None:
        """Kill the zygote and its child and reap it. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            kill_group(process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for fd in (self._requests, self._replies):
            if fd >= 0:
                os.close(fd)
        self._requests = self._replies = -1


class Pool:
    """As many graders as there are callers at the same time, at most half the cores."""

    def __init__(self) -> None:
        self.graders = [Grader() for _ in range(max(1, min(8, (os.cpu_count() or 1) // 2)))]
        self._free: queue.LifoQueue[Grader] = queue.LifoQueue()  # last in, first out: warm ones first
        for grader in reversed(self.graders):
            self._free.put(grader)

    def ask(self, question: dict[str, Any]) -> bool:
        """Ask a free grader. Raises what it raises, and GraderFailure when none gets free."""
        with self._grader() as grader:
            return grader.ask(question)

    def warm(self) -> None:
        """Start one grader now instead of at the first question."""
        with self._grader() as grader:
            grader.start()

    @contextlib.contextmanager
    def _grader(self) -> Iterator[Grader]:
        try:
            grader = self._free.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            raise GraderFailure(f"no math grader was free within {WAIT_SECONDS:g} s") from None
        try:
            yield grader
        finally:
            self._free.put(grader)

    def close(self) -> None:
        for grader in self.graders:
            grader.close()


_pool: Pool | None = None
_lock = threading.Lock()


def pool() -> Pool:
    """This process's graders."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = Pool()
            atexit.register(_pool.close)
        return _pool


def _forget() -> None:
    """In a forked child: the graders belong to the parent, and so may a held lock."""
    global _pool, _lock
    if _pool is not None:
        atexit.unregister(_pool.close)
    _pool, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
