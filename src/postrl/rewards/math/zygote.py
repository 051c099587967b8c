"""The process that runs computer algebra: a warm zygote, and for each question a child forked from it.

    python -m postrl.rewards.math.zygote FD PARENT      (started by `grader.Grader`)

The zygote imports and warms everything once and never computes. Its child waits for a question, and has the seconds of
processor time that `grader` says, so that a busy machine changes nothing: the child's own timer kills it. How a child ends is
its answer, and no question sees what another one has left in sympy's caches.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
from typing import Any

from postrl.host.lifetime import kill_group
from postrl.host.stopping import bystander
from postrl.rewards.calling import frames
from postrl.rewards.calling.child import Caller

ROOM = 1 << 30
"""Bytes of address space that a child may take beyond the zygote's."""
EQUAL, DIFFERENT, NO_MEMORY, CRASHED = range(4)
ANSWERS: dict[int, dict[str, Any]] = {
    EQUAL: {"equal": True},
    DIFFERENT: {"equal": False},
    NO_MEMORY: {"problem": "out of memory"},
    -signal.SIGPROF: {"problem": "timeout"},
    -signal.SIGALRM: {"problem": "timeout"},
}
"""By the exit code of a child, or the signal that ended it."""


def main() -> None:
    caller = Caller()
    seconds = frames.decode(caller.next())
    try:
        from postrl.rewards.math import symbolic

        symbolic.warm()
    except Exception as error:
        caller.reply({"problem": f"{type(error).__name__}: {error}"})
        return
    _limit_memory()
    gc.freeze()
    caller.reply({"ready": True})
    while True:
        child = os.fork()
        if child == 0:
            code = CRASHED
            try:
                code = _compute(caller, seconds["processor"], seconds["wall"])
            finally:
                os._exit(code)
        ending = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ending not in ANSWERS:  # killed from outside, perhaps before it had its question: who asks starts anew
            kill_group(0)
        caller.reply(ANSWERS[ending])


def _compute(caller: Caller, processor: float, wall: float) -> int:
    """The child: the exit code that answers the next question."""
    from postrl.rewards.math import symbolic

    bystander()
    question = frames.decode(caller.next())
    signal.setitimer(signal.ITIMER_PROF, processor)
    signal.setitimer(signal.ITIMER_REAL, wall)
    try:
        return EQUAL if symbolic.answer(question) else DIFFERENT
    except MemoryError:
        return NO_MEMORY
    except (
        Exception,
        symbolic.TooMuchWork,
    ):  # sympy raises anything on what it cannot compare: then they are not equal
        return DIFFERENT


def _limit_memory() -> None:
    if sys.platform != "linux":
        return
    with open("/proc/self/statm", encoding="utf-8") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    with contextlib.suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, now + ROOM))


if __name__ == "__main__":
    main()
