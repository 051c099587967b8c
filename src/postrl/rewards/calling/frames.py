"""Length-prefixed frames over the socket between a process and a child of its.

Requests go down as JSON when JSON gives the same values back, else as a pickle. Replies come up as JSON only: nothing
that a child sends is ever unpickled.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Callable
from typing import Any

HEADER = struct.Struct(">Q")
LARGEST_REPLY = 1 << 28
LOOK = 0.25
"""Seconds between two looks at whether the other side still lives."""

Alive = Callable[[], bool]


def encode(value: Any) -> bytes:
    """A request as bytes. Raises what cloudpickle raises for a value that cannot be pickled."""
    try:
        text = json.dumps(value)
        if json.loads(text) == value:  # not so for tuples and for keys that are not text
            return b"J" + text.encode()
    except (TypeError, ValueError, RecursionError):  # a date, a Decimal, a numpy scalar, bytes, an image
        pass
    import cloudpickle

    pickled: bytes = cloudpickle.dumps(value)
    return b"P" + pickled


def decode(data: bytes) -> Any:
    """The inverse, for the child: its requests come from the process that started it, over an inherited socket."""
    if data[:1] == b"J":
        return json.loads(data[1:])
    import cloudpickle

    return cloudpickle.loads(data[1:])


def send(fd: int, payload: bytes, deadline: float | None = None, alive: Alive = lambda: True) -> None:
    """Write one frame, by `deadline` (time.monotonic; the descriptor must not block).

    Raises:
        TimeoutError: the deadline passed.
        EOFError: the other side is gone.
    """
    view = memoryview(HEADER.pack(len(payload)) + payload)
    while view:
        _wait(fd, select.POLLOUT, deadline, alive)
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            continue
        except ConnectionError:
            raise EOFError from None


def receive(fd: int, deadline: float | None = None, alive: Alive = lambda: True, largest: int | None = None) -> bytes:
    """Read one frame, by `deadline`.

    Raises:
        TimeoutError: the deadline passed.
        EOFError: the other side is gone.
        ValueError: the frame claims more than `largest` bytes.
    """
    (length,) = HEADER.unpack(_read(fd, HEADER.size, deadline, alive))
    if largest is not None and length > largest:
        raise ValueError(f"a frame of {length} bytes, expected at most {largest}")
    return _read(fd, length, deadline, alive)


def _read(fd: int, count: int, deadline: float | None, alive: Alive) -> bytes:
    data = bytearray()
    while len(data) < count:
        _wait(fd, select.POLLIN, deadline, alive)
        try:
            piece = os.read(fd, min(count - len(data), 1 << 20))
        except ConnectionError:
            piece = b""
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _wait(fd: int, event: int, deadline: float | None, alive: Alive) -> None:
    """Until the descriptor is ready. A socket alone does not tell that a process ended: its children may hold it open."""
    if deadline is None:
        return
    poller = select.poll()
    poller.register(fd, event)
    while True:
        lives = alive()
        left = deadline - time.monotonic()
        if poller.poll(1000 * max(0.0, min(left, LOOK if lives else 0.0))):
            return
        if not lives:
            raise EOFError
        if left <= 0:
            raise TimeoutError
