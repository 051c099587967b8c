"""The one fork server of this process, started when first needed and again when it has died."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from postrl.rewards.code import places

BOOT = f"import sys; sys.path.append({os.path.dirname(__file__)!r}); from confine import forkserver; forkserver.main()"
COMMAND = (sys.executable, "-s", "-S", "-P", "-c", BOOT)
"""Not -I, which would ignore the PYTHON* variables of the environment that we made. Without `site` (-S), which takes a
while with many packages; programs get their folders by name."""
START_TIMEOUT = 60.0
END_TIMEOUT = 5.0


class ForkServer:
    """See `confine.forkserver`."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.control, theirs = socket.socketpair()
        self.control.settimeout(START_TIMEOUT)
        with theirs:
            self.process = subprocess.Popen(
                [*COMMAND, str(theirs.fileno()), str(self.owner)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/", env=places.environment("/"),
                start_new_session=True, pass_fds=(theirs.fileno(),),
            )  # fmt: skip

    def usable(self) -> bool:
        """Alive, and not that of a process which this one was forked from."""
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        self.control.close()
        if self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_TIMEOUT)


_server: ForkServer | None = None
_lock = threading.Lock()


def fork(fds: Sequence[int]) -> None:
    """Have a keeper forked that gets these descriptors. Raises OSError when there can be no fork server."""
    global _server
    with _lock:
        for _ in range(2):
            if _server is None or not _server.usable():
                _server = ForkServer()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has just died
                socket.send_fds(_server.control, [b"x"], fds)
                return
        raise OSError("the fork server of the sandbox dies at its start")


@atexit.register
def _end() -> None:
    with _lock:
        if _server is not None:
            _server.close()


def _forget() -> None:
    """In a process forked from this one, whose other threads are not there to release the lock."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
