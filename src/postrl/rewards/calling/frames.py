"""Length-prefixed frames over the socket between a process and a child of its.

Requests go down as JSON when JSON gives the same values back, else as a pickle. Replies come up as JSON only: nothing
that a child sends is ever unpickled.
"""

from __future__ import annotations

import json
import socket
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


def send(channel: socket.socket, payload: bytes, deadline: float | None = None) -> None:
    """Write one frame, by `deadline` (time.monotonic).

    Raises:
        TimeoutError: the deadline passed.
        EOFError: the other side is gone.
    """
    channel.settimeout(_left(deadline))
    try:
        channel.sendall(HEADER.pack(len(payload)) + payload)
    except ConnectionError:
        raise EOFError from None


def receive(
    channel: socket.socket, deadline: float | None = None, alive: Alive = lambda: True, largest: int | None = None
) -> bytes:
    """Read one frame, by `deadline`.

    Args:
        alive: whether the other side lives; a socket alone does not tell, because its children may hold it open.

    Raises:
        TimeoutError: the deadline passed.
        EOFError: the other side is gone.
        ValueError: the frame claims more than `largest` bytes.
    """
    (length,) = HEADER.unpack(_read(channel, HEADER.size, deadline, alive))
    if largest is not None and length > largest:
        raise ValueError(f"a frame of {length} bytes, expected at most {largest}")
    return _read(channel, length, deadline, alive)


def _read(channel: socket.socket, count: int, deadline: float | None, alive: Alive) -> bytes:
    data = bytearray()
    while len(data) < count:
        left = _left(deadline)
        channel.settimeout(None if left is None else min(left, LOOK))
        lived = alive()
        try:
            piece = channel.recv(min(count - len(data), 1 << 20))
        except TimeoutError:
            if lived:
                continue
            piece = b""
        except ConnectionError:
            piece = b""
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _left(deadline: float | None) -> float | None:
    """Seconds until a deadline. Raises TimeoutError when it has passed."""
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise TimeoutError
    return left
