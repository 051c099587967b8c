"""The process that runs computer algebra: a warm zygote that forks the child which computes.

    python -m postrl.rewards.math.zygote REQUEST_FD REPLY_FD CALLER_PID SECONDS WALL      (started by `grader.Grader`)

SECONDS are of processor time, so that a busy machine changes nothing: the child's own timer kills it. WALL bounds the
wait for it.

The zygote imports and warms everything once and never computes, so that it can always kill the child and fork the next
one in milliseconds. Nothing is left behind: the zygote looks four times a second whether its caller lives, and the
child gets the kernel's signal when the zygote dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any

from postrl.host.stopping import bystander
from postrl.rewards.calling import frames
from postrl.rewards.calling.lifetime import die_with_parent, kill_group

WATCH_SECONDS = 0.25
ROOM = 1 << 30
"""Bytes of address space that a child may take beyond the zygote's."""
MOST_QUESTIONS = 1000
"""Of one child: sympy's caches grow."""


def main() -> None:
    requests, replies, caller = (int(argument) for argument in sys.argv[1:4])
    seconds, wall = float(sys.argv[4]), float(sys.argv[5])
    _watch(caller)
    for fd in (requests, replies):
        os.set_inheritable(fd, False)
    try:
        from postrl.rewards.math import symbolic

        symbolic.warm()
    except Exception as error:
        _send(replies, {"problem": f"{type(error).__name__}: {error}"})
        return
    _send(replies, {"ready": True})
    child = _Child(seconds, wall)
    with contextlib.suppress(EOFError):
        while True:
            _send(replies, child.ask(frames.receive(requests)))
    kill_group(0)


def _watch(caller: int) -> None:
    """End with the caller, even during imports. Not by the parent-death signal: that would come when the caller's
    *thread* that started us ends."""

    def look(*_: object) -> None:
        if os.getppid() != caller:
            kill_group(0)

    bystander()
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, WATCH_SECONDS, WATCH_SECONDS)


class _Child:
    """The zygote's side of the process that computes."""

    def __init__(self, seconds: float, wall: float) -> None:
        self.seconds, self.wall = seconds, wall
        self.pid = 0
        self.ended = True
        self.out_of_time = False
        """Whether it was its timer that ended it."""
        self.questions = self.answers = -1
        self.asked = 0

    def ask(self, question: bytes) -> dict[str, Any]:
        if self.asked >= MOST_QUESTIONS and not self.ended:
            self._end()
        if self.ended:
            self._fork()
        self.asked += 1
        deadline = time.monotonic() + self.wall
        try:
            frames.send(self.questions, question, deadline, self._alive)
            reply = json.loads(frames.receive(self.answers, deadline, self._alive, frames.LARGEST_REPLY))
            return dict(reply)
        except TimeoutError:
            self._end()
            return {"problem": "timeout"}
        except (EOFError, ValueError):
            self._end()
            return {"problem": "timeout" if self.out_of_time else "the process that computes died"}

    def _alive(self) -> bool:
        if not self.ended:
            self._reap(os.WNOHANG)
        return not self.ended

    def _reap(self, options: int = 0) -> None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.ended = True
            self.out_of_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF

    def _fork(self) -> None:
        for_child, self.questions = os.pipe()
        self.answers, from_child = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.questions)
                os.close(self.answers)
                _compute(for_child, from_child, self.seconds)
            finally:
                os._exit(1)
        self.ended, self.asked = False, 0
        os.close(for_child)
        os.close(from_child)
        os.set_blocking(self.questions, False)

    def _end(self) -> None:
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()
        os.close(self.questions)
        os.close(self.answers)


def _compute(questions: int, answers: int, seconds: float) -> None:
    """The child: answers until it is killed."""
    from postrl.rewards.math import symbolic

    bystander()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    die_with_parent(os.getppid())
    _limit_memory()
    while True:
        question = json.loads(frames.receive(questions))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            reply: dict[str, Any] = {"equal": symbolic.answer(question)}
        except symbolic.TooMuchWork:  # sympy's caches may be half written: the next question goes to a new child
            _send(answers, {"equal": False})
            return
        except MemoryError:
            reply = {"problem": "out of memory"}
        except Exception:  # sympy raises anything on what it cannot compare: then they are not equal
            reply = {"equal": False}
        _send(answers, reply)


def _limit_memory() -> None:
    if sys.platform != "linux":
        return
    with open("/proc/self/statm", encoding="utf-8") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    with contextlib.suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, now + ROOM))


def _send(fd: int, reply: dict[str, Any]) -> None:
    frames.send(fd, json.dumps(reply).encode())


if __name__ == "__main__":
    main()
