"""The rollout worker's process: watched, and started again where it died without an error of its own."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from postrl.errors import ChildError, PostrlError, WaitTimeout
from postrl.launch.failures import error_of
from postrl.launch.process import ChildProcess, RestartBudget, describe_exit
from postrl.run.folder import RunFolder

POLL = 0.1
"""Seconds between two looks at a worker that starts."""
START_TIMEOUT = 900.0
"""Seconds it may take to load its data and its rewards, which may load models."""
GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for one that was found stopped."""


class WorkerProcess:
    """Keeps the rollout worker of a run alive.

    A worker that was killed (a signal, out of memory) is started again at the same address; the learner connects anew,
    hands it its state and asks again. One that left an error of its own, such as a broken reward function, ends the run,
    and so does one that dies before it has listened for the first time.

    Args:
        start: starts the process.
        folder: where it leaves errors, and where restarts are noted.
        socket: the path at which it listens, in a folder of its own; what a dead one left there is removed.
        max_restarts: restarts within half an hour; the next death ends the run.
        frozen_after: seconds for which it may be stopped (SIGSTOP) before it counts as dead.
    """

    def __init__(
        self,
        start: Callable[[], ChildProcess],
        folder: RunFolder,
        socket: Path,
        *,
        max_restarts: int = 3,
        frozen_after: float = 60.0,
    ) -> None:
        self.folder, self.socket = folder, socket
        self.frozen_after = frozen_after
        self.process = start()
        self._start = start
        self._ready = False
        self._budget = RestartBudget(max_restarts)
        self._stopped_since: float | None = None
        self._one_look = threading.Lock()
        self._ending = threading.Event()
        self._error: PostrlError | None = None

    def wait_until_ready(self) -> None:
        """Until it listens: what is wrong with data or rewards shows here, and not as a trainer that cannot connect.

        Raises:
            PostrlError: it died; with its cause.
            WaitTimeout: it does not listen after START_TIMEOUT seconds.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while not self.socket.is_socket():
            self.check()
            if time.monotonic() > deadline:
                raise WaitTimeout(
                    f"the rollout worker has not loaded its data and rewards within {START_TIMEOUT:.0f} s",
                    hint=f"see {self.process.log_path}",
                )
            time.sleep(POLL)
        self._ready = True

    def watch_in_background(self, interval: float = 0.5) -> None:
        """Calls `check` every `interval` seconds in a thread, until `end`; whoever calls `check` hears what it raised."""

        def loop() -> None:
            with suppress(PostrlError):
                while not self._ending.wait(interval):
                    self.check()

        threading.Thread(target=loop, name="worker watch", daemon=True).start()

    def check(self) -> None:
        """One look, and a new process where the old one died. Several threads may call it.

        Raises:
            PostrlError: what the worker left; else ChildError, with the end of its log.
        """
        with self._one_look:
            if self._error is None and not self._ending.is_set():
                self._look()
            if self._error is not None:
                raise self._error

    def end(self) -> None:
        """From now on nothing is started. The process itself is its holder's to stop."""
        with self._one_look:
            self._ending.set()

    def _look(self) -> None:
        frozen = self._frozen()
        if frozen:
            self.process.stop(GRACE)
        code = self.process.poll()
        if code in (None, 0):  # 0: the learner has closed the connection
            return
        error, its_own = error_of(self.process, self.folder)
        if its_own or not self._ready:
            return self._give_up(error)
        if not self._budget.spend():
            return self._give_up(ChildError(f"{error.message}\n({self._budget})", hint=error.hint))
        how = f"was stopped for {self.frozen_after:g} s" if frozen else f"ended with {describe_exit(code)}"
        self.folder.note(f"the rollout worker {how} and is started again; what it was working on is asked for again")
        self.socket.unlink(missing_ok=True)
        try:
            self.process = self._start()
        except OSError as failed:
            self._give_up(ChildError(f"the rollout worker {how} and cannot be started again: {failed}"))

    def _give_up(self, error: PostrlError) -> None:
        self._error = error
        shutil.rmtree(self.socket.parent, ignore_errors=True)  # a learner that waits for its successor sees that

    def _frozen(self) -> bool:
        """Whether it has been stopped for too long, as by SIGSTOP."""
        stopped = False
        with suppress(psutil.Error):
            stopped = psutil.Process(self.process.main_pid or self.process.pid).status() == psutil.STATUS_STOPPED
        now = time.monotonic()
        self._stopped_since = (self._stopped_since or now) if stopped else None
        return self._stopped_since is not None and now - self._stopped_since >= self.frozen_after
