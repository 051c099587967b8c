"""The process that runs computer algebra, so that it can be killed.

    caller --socket--> zygote --fork--> child

A question gets its seconds of processor time; then its child is killed, and the next one is forked from the warm zygote
in milliseconds. Both end with this process, however that ends (`calling.child`).
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from pathlib import Path
from typing import Any

from postrl.rewards.calling.child import Child, Failed, Killed

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
ENVIRONMENT = {"SYMPY_GROUND_TYPES": "python", "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
"""Of the zygote. With gmpy2 a kill and a timer would behave otherwise, and memory limits abort."""


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
        self.seconds, self.wall = seconds, WALL_FACTOR * seconds
        self.child = Child(
            "postrl.rewards.math.zygote",
            first={"processor": self.seconds, "wall": self.wall},
            loaded=_check_ready,
            load_timeout=START_SECONDS,
            log_path=Path(os.devnull),
            environment=ENVIRONMENT,
        )

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
        try:
            reply = self.child.ask(question, self.wall + GRACE_SECONDS, "a question", dict)
        except (Failed, Killed) as error:
            raise GraderFailure(f"the math grader: {error}") from error
        if "equal" in reply:
            return bool(reply["equal"])
        if reply.get("problem") == "timeout":
            raise GraderTimeout(f"computer algebra took longer than {self.seconds:g} s of processor time")
        raise GraderFailure(f"the math grader: {reply.get('problem')}")


def _check_ready(reply: dict[str, Any]) -> None:
    if "ready" not in reply:
        raise Failed(str(reply.get("problem")))


class Pool:
    """As many graders as there are callers at the same time, at most half the cores."""

    def __init__(self) -> None:
        self.graders = [Grader() for _ in range(max(1, min(8, (os.cpu_count() or 1) // 2)))]
        self._free: queue.LifoQueue[Grader] = queue.LifoQueue()  # last in, first out: warm ones first
        for grader in reversed(self.graders):
            self._free.put(grader)

    def ask(self, question: dict[str, Any]) -> bool:
        """Ask a free grader. Raises what it raises, and GraderFailure when none gets free."""
        try:
            grader = self._free.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            raise GraderFailure(f"no math grader was free within {WAIT_SECONDS:g} s") from None
        try:
            return grader.ask(question)
        finally:
            self._free.put(grader)

    def close(self) -> None:
        """Kill all, in the middle of a question too. No question is answered any more."""
        for grader in self.graders:
            grader.child.kill()


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
