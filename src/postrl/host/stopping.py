"""The graceful stop: a signal makes the run finish its step, save, and end; and which processes hear which signal.

    schedulers signal every process of a job, terminals a process group, people one process; all of it means the same

    launcher, ranks,        GracefulStop: asks for the stop (RUN/stop), once
    the script's process
    rollout worker,         bystander: such signals do nothing here; who started the process ends it
    reward processes
    vLLM, accelerate        blocked from outside (launch/reaper.py), and kept so (stay_blocked)
    what these fork         as usual: a Pool or a Process of the user's is ended with SIGTERM

SIGINT and SIGTERM are orders: a second one, a second after the first or later, stops at once. A burst is one: a process
group that is signalled as a whole, or `timeout` and make that both pass it on. SIGUSR1, SIGUSR2 and SIGHUP are warnings:
they ask for the stop and never hurry it. A signal that was ignored when the process began (nohup) stays ignored, and a
handler of the user's own stays in place.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from postrl.errors import PostrlError, ServerError

ORDERS = (signal.SIGINT, signal.SIGTERM)
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
STOP_SIGNALS = ORDERS + WARNINGS
FROM_OUTSIDE = (signal.SIGTERM, *WARNINGS)
"""Those that a vLLM server must not get; with SIGINT its reaper asks for its end."""
BURST = 1.0
"""Seconds within which signals count as one."""


def exit_on_signal(number: int, frame: FrameType | None) -> None:
    """A handler for who only has to be taken apart in order."""
    raise SystemExit(128 + number)


class GracefulStop:
    """While its block runs, signals to this process ask for the graceful stop; the handlers of before come back with its end.

        with GracefulStop(folder.request_stop, note) as stop:
            ...                        # KeyboardInterrupt: there is nothing to save yet
            stop.training = True
            ...                        # KeyboardInterrupt: a second order
        if stop.asked: ...

    Does nothing outside the main thread, where Python has no signals.

    Args:
        request: asks the learner to stop; gets the signal's name.
        say: tells the person at the terminal.
        on_hangup: what SIGHUP does: "save" stops like the others, "continue" goes on and says so.
        in_charge: whether it speaks and may end at once; else (a rank of the launcher's) it only asks.
    """

    def __init__(
        self,
        request: Callable[[str], None],
        say: Callable[[str], None],
        *,
        on_hangup: str = "save",
        training: bool | Callable[[], bool] = False,
        in_charge: bool = True,
    ) -> None:
        self.request, self.say, self.on_hangup = request, say, on_hangup
        self.in_charge = in_charge
        self.training = training
        """Whether there are steps to finish; else a signal ends the run at once."""
        self.asked: str | None = None
        """The signal that asked for the stop."""
        self._ordered_at: float | None = None
        self._ended_at: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> GracefulStop:
        if threading.current_thread() is threading.main_thread():
            ours = (signal.SIG_DFL, signal.default_int_handler, exit_on_signal, _nothing)
            for number in STOP_SIGNALS:
                if (before := signal.getsignal(number)) in ours:
                    self._before[number] = before
                    signal.signal(number, self._on_signal)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)  # a reaper may have blocked them until now
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        if number == signal.SIGHUP and self.on_hangup != "save":
            if self.in_charge:
                self.say("SIGHUP: the terminal is gone, and the run goes on (on_hangup = continue)")
        elif self._ended_at is not None and now - self._ended_at < BURST:
            pass  # one more of the burst that has ended it
        elif self.in_charge and (not self._steps_to_finish() or self._ordered_again(number, now)):
            self.asked, self._ended_at = self.asked or name, now
            raise KeyboardInterrupt(name)
        else:
            if number in ORDERS and self._ordered_at is None:
                self._ordered_at = now
            self._ask(name)

    def _ask(self, name: str) -> None:
        if self.asked is not None:
            return
        self.asked = name
        self.request(name)
        if self.in_charge:
            self.say(
                {
                    "SIGINT": "finishing the step, then saving; Ctrl-C again stops at once",
                    "SIGTERM": "SIGTERM: finishing the step, then saving; another one stops at once",
                }.get(name, f"{name}: finishing the step, then saving")
            )

    def _steps_to_finish(self) -> bool:
        return self.training() if callable(self.training) else self.training

    def _ordered_again(self, number: int, now: float) -> bool:
        return number in ORDERS and self._ordered_at is not None and now - self._ordered_at >= BURST


def came_of_the_stop(error: PostrlError) -> bool:
    """Whether an error is what a stop may bring about: servers hear the signals of a job too, and may have ended."""
    return isinstance(error, ServerError)


def without_the_step(error: PostrlError) -> str:
    """What to say then."""
    return f"the step could not be finished, the steps before it are saved: {error.message}"


def by_signal(error: KeyboardInterrupt) -> str:
    """ " (SIGTERM)"; nothing for Ctrl-C."""
    return f" ({error})" if str(error) not in ("", "SIGINT") else ""


def bystander() -> None:
    """From now on signals that ask a run to stop do nothing in this process, which its parent ends.

    What it starts or forks has the usual handlers: neither an ignored nor a blocked signal would come back to its default
    there.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


_mask = threading.local()
"""Of a thread that forks: the signals that it had blocked."""


def _before_a_fork() -> None:
    """A signal that comes while handlers change is kept until then."""
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _after_a_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _in_a_fork() -> None:
    """A copy of this process is no part of the run, and who forked it ends it with a signal."""
    for number in STOP_SIGNALS:
        handler = signal.getsignal(number)
        if handler is _nothing or isinstance(getattr(handler, "__self__", None), GracefulStop):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _after_a_fork()


os.register_at_fork(before=_before_a_fork, after_in_parent=_after_a_fork, after_in_child=_in_a_fork)


def stay_blocked() -> None:
    """Keep blocked, in this process and in what it starts, what its reaper has blocked; nothing where it blocked nothing.

    Python's resource tracker, when it is first started, unblocks SIGINT and SIGTERM in the thread that asks for it. So it
    is started here, and what should be blocked is blocked again. For programs with handlers of their own.
    """
    if blocked := signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {*STOP_SIGNALS}:
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked | {signal.SIGTERM})
