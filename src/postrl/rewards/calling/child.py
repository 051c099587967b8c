"""A process that answers one request after the other: how it is held, and how it serves the one who holds it.

    child = Child("postrl.some.module", first=..., load_timeout=60.0)       caller = Caller()   in the module's main
    child.start()                                                           caller.next(), caller.reply(...)
    child.ask({"x": 1}, 5.0, "a question", read)                            caller.next(), caller.reply(...)

A child is started when it is first needed and again after its end, whatever ended it. A reply that does not come in time, or is
none, costs it its life: it is killed with everything that it has started. It ends with its holder, however that ends (`guard`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from postrl.host.lifetime import guard, kill_group
from postrl.host.python import child_environment, python
from postrl.host.stopping import bystander
from postrl.rewards.calling import frames

REAP_TIMEOUT = 10.0
T = TypeVar("T")


class Failed(Exception):
    """Why a request has no usable answer; the text is shown to the user."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


class Killed(Exception):
    """`kill` was called, in the middle of a request or before it."""


class Child:
    """The holder's end. It blocks, and one thread uses it at a time; `kill` comes from any.

    Args:
        module: runs in it, as `python -m MODULE FD PARENT`; see `Caller`.
        first: the request that it gets when it has started.
        loaded: takes the reply to that; as `read` of `ask`.
        load_timeout: seconds until that reply.
        log_path: file for what it prints; None: standard error.
        environment: variables beside those of this process.
    """

    def __init__(
        self,
        module: str,
        *,
        first: Any,
        loaded: Callable[[dict[str, Any]], Any],
        load_timeout: float,
        log_path: Path | None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.module, self.environment, self.log_path = module, environment, log_path
        self.first, self.loaded, self.load_timeout = first, loaded, load_timeout
        self._lock = threading.Lock()
        """Guards `_process` and `_killed`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs, if one does."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start it, unless it runs, and wait until it has loaded. Raises Failed and Killed."""
        if self.pid is not None:
            return
        self.end()  # it died between two requests
        with self._lock:
            if self._killed:
                raise Killed
            try:
                self._spawn()
            except OSError as error:
                raise Failed(f"its process cannot be started: {error}") from error
        try:
            self._exchange(frames.encode(self.first), self.load_timeout, "loading", self.loaded)
        except Failed:
            self.end()
            raise

    def ask(self, request: Any, seconds: float, what: str, read: Callable[[dict[str, Any]], T]) -> T:
        """Send a request and read its reply, in `seconds` from when the child has loaded.

        Args:
            what: names the request in messages, such as "a call".
            read: takes the reply. A ValueError, TypeError, KeyError or AttributeError says that it is malformed, a Failed
                that the child did not succeed, and lives on.

        Raises:
            Failed: there is no reply that can be used, or the request cannot be sent.
            Killed: `kill` was called.
        """
        self.start()
        try:
            encoded = frames.encode(request)
        except Exception as error:
            raise Failed(f"{what} cannot be sent to its process: {error}") from error
        return self._exchange(encoded, seconds, what, read)

    def kill(self) -> None:
        """Kill it, even in the middle of a request, and start none again."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                kill_group(self._process.pid)

    def end(self) -> None:
        """Kill and reap it. The next request starts it anew."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            kill_group(process.pid)
            self._channel.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: subprocess reaps it later
                process.wait(REAP_TIMEOUT)

    def _spawn(self) -> None:
        command = [*python(), "-u", "-m", self.module]
        self._channel, theirs = socket.socketpair()
        try:
            with theirs, _output(self.log_path) as output:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=child_environment(self.environment),
                )
        except OSError:
            self._channel.close()
            raise

    def _exchange(self, request: bytes, seconds: float, what: str, read: Callable[[dict[str, Any]], T]) -> T:
        process, channel, deadline = self._process, self._channel, time.monotonic() + seconds
        assert process is not None
        try:
            frames.send(channel, request, deadline)
            reply = frames.receive(channel, deadline, lambda: process.poll() is None, frames.LARGEST_REPLY)
            return read(json.loads(reply))
        except TimeoutError:
            problem = f"{what} took longer than {seconds:g} s, so its process was killed"
        except EOFError:
            self.end()
            problem = f"its process ended during {what}: {_ending(process.returncode)}"
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problem = f"its process sent a malformed reply to {what}: {error}"
        self.end()
        raise Killed if self._killed else Failed(problem)


class Caller:
    """The child's end: the process that has started this one, with which this one ends; signals do nothing here."""

    def __init__(self) -> None:
        bystander()
        fd, parent = map(int, sys.argv[1:3])
        guard(parent, fd)
        os.set_inheritable(fd, False)
        self._channel = socket.socket(fileno=fd)
        self._process = os.getpid()

    def next(self) -> bytes:
        """The next request, for `frames.decode`. The end of the caller is the end of this process."""
        try:
            return frames.receive(self._channel)
        except EOFError:
            kill_group(0)
            raise

    def reply(self, answer: dict[str, Any]) -> None:
        """Answer it. A copy of this process, which user code has forked, ends here."""
        if os.getpid() != self._process:
            os._exit(0)
        frames.send(self._channel, json.dumps(answer, allow_nan=False).encode())


@contextlib.contextmanager
def _output(log_path: Path | None) -> Iterator[IO[bytes] | int]:
    """Where a child's prints go: the end of the log, or standard error."""
    if log_path is None:
        yield 2
        return
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        yield log


def _ending(code: int | None) -> str:
    if code is None:
        return "still ending"
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}" + ("; out of memory?" if code == -signal.SIGKILL else "")
