"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import errno
import socket
import sys

from postrl.errors import UsageError

LOOPBACK = "127.0.0.1"


class HeldPort:
    """A loopback port kept for a server that we start, and start again after a crash.

    The port is bound but not listened on: connecting to it is refused, the kernel gives it to nobody else, and the
    server may bind it because both sides set SO_REUSEADDR (Linux; elsewhere the port is only chosen, not held).
    So an answer from the port is an answer from our server.

    Args:
        port: the port the user named; None chooses a free one.
        named_by: the setting that named it, for the error.

    Raises:
        UsageError: somebody listens on the named port, or it may not be used.
    """

    def __init__(self, port: int | None = None, *, named_by: str = "") -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((LOOPBACK, port or 0))
        except (OSError, OverflowError) as error:
            self._socket.close()
            in_use = getattr(error, "errno", None) == errno.EADDRINUSE
            raise UsageError(
                f"port {port} ({named_by}) {'is in use by another program' if in_use else f'cannot be used: {error}'}",
                hint=f"name another port, or remove {named_by} and a free one is chosen",
            ) from error
        self.number = int(self._socket.getsockname()[1])
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        self._socket.close()
