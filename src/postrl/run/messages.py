"""The one message protocol between rollout worker and learner (and, at rest, of saved groups).

A message is a JSON header and raw arrays; nothing is pickled, so a peer can only ever send data:

    b"PRL1" | u32 header bytes | u64 body bytes | header (JSON) | body (arrays, back to back)
    header = {"type": "groups", "data": {...}, "arrays": [["logps", "<f4", [1234]], ...]}

`encode` and `decode` are pure; `Channel` is the learner's blocking end of a socket, `read_message` and
`write_message` are the worker's asyncio end. Addresses are `unix:/path` or `tcp:host:port`.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from postrl.errors import PostrlError, WaitTimeout, error_from_wire
from postrl.types import GREEDY, Group, Rollout, Segment, VersionSpan

PROTOCOL = 5
_PREFIX = struct.Struct("<4sIQ")
_MAGIC = b"PRL1"
MAX_HEADER = 1 << 30
MAX_BODY = 1 << 36
_DTYPES = {"<i8", "<i4", "<f4", "<f8", "|u1", "|b1"}

Message = tuple[str, dict[str, Any], dict[str, np.ndarray]]


class ProtocolError(PostrlError):
    """The other end sent something that is not a message of this protocol."""


def encode(kind: str, data: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None) -> bytes:
    """One message as bytes. NaN is allowed inside arrays, not inside `data`."""
    table, chunks = [], []
    for name, array in (arrays or {}).items():
        array = np.ascontiguousarray(array)
        dtype = array.dtype.newbyteorder("<").str
        table.append([name, dtype, list(array.shape)])
        chunks.append(array.astype(dtype, copy=False).tobytes())
    header = json.dumps({"type": kind, "data": data or {}, "arrays": table}, allow_nan=False).encode()
    body = b"".join(chunks)
    return _PREFIX.pack(_MAGIC, len(header), len(body)) + header + body


def decode(message: bytes) -> Message:
    """The inverse of `encode`. Raises ProtocolError on anything else."""
    header_bytes, body_bytes = _lengths(message[: _PREFIX.size])
    if len(message) != _PREFIX.size + header_bytes + body_bytes:
        raise ProtocolError(f"a message of {len(message)} bytes announces {_PREFIX.size + header_bytes + body_bytes}")
    return _parse(message[_PREFIX.size : _PREFIX.size + header_bytes], message[_PREFIX.size + header_bytes :])


def _lengths(prefix: bytes) -> tuple[int, int]:
    if len(prefix) < _PREFIX.size:
        raise ProtocolError(f"a message ended after {len(prefix)} bytes")
    magic, header_bytes, body_bytes = _PREFIX.unpack(prefix)
    if magic != _MAGIC or header_bytes > MAX_HEADER or body_bytes > MAX_BODY:
        raise ProtocolError(
            f"not a postrl message: it starts with {prefix[:8]!r}", hint="both ends need the same postrl version"
        )
    return header_bytes, body_bytes


def _parse(header: bytes, body: bytes) -> Message:
    try:
        fields = json.loads(header)
        arrays, offset = {}, 0
        for name, dtype, shape in fields["arrays"]:
            array = _array(body, offset, dtype, [int(n) for n in shape])
            offset += array.nbytes
            arrays[str(name)] = array
        if offset != len(body):
            raise ProtocolError(f"a message has {len(body)} bytes of arrays and describes {offset}")
        return str(fields["type"]), dict(fields["data"]), arrays
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a message could not be read: {error!r}") from error


def _array(body: bytes, offset: int, dtype: Any, shape: list[int]) -> np.ndarray:
    if dtype not in _DTYPES or any(n < 0 for n in shape):
        raise ProtocolError(f"a message has an array of type {dtype!r} and shape {shape}")
    count = math.prod(shape)
    flat = np.frombuffer(body, dtype=dtype, count=count, offset=offset) if count else np.zeros(0, dtype)
    return flat.reshape(shape)


# -- groups ------------------------------------------------------------------------------------------------------------

_ARRAYS: dict[str, tuple[str, Callable[[Rollout], list[Any]]]] = {
    "prompt_ids": ("<i4", lambda r: r.prompt_ids),
    "completion_ids": ("<i4", lambda r: r.completion_ids),
    "logps": ("<f4", lambda r: r.logps),
    "loss_mask": ("|u1", lambda r: r.loss_mask),
    "support": ("<i4", lambda r: [token for tokens in r.support or () for token in tokens]),
    "support_sizes": ("<i4", lambda r: [len(tokens) for tokens in r.support or ()]),
}
"""Name -> type, and what a rollout has of it."""


def encode_groups(kind: str, groups: list[Group], data: dict[str, Any] | None = None) -> bytes:
    """Groups as one message: tokens and log-probs as arrays, the rest in the header."""
    rollouts = [rollout for group in groups for rollout in group.completions]
    arrays = {"num_rollouts": np.array([len(group.completions) for group in groups], dtype="<i8")}
    for name, (dtype, get) in _ARRAYS.items():
        values = [get(rollout) for rollout in rollouts]
        arrays[f"{name}_len"] = np.array([len(v) for v in values], dtype="<i8")
        arrays[name] = np.concatenate([np.asarray(v, dtype=dtype) for v in values]) if values else np.zeros(0, dtype)
    header = {
        **(data or {}),
        "groups": [_group_header(g) for g in groups],
        "rollouts": [_rollout_header(r) for r in rollouts],
    }
    return encode(kind, header, arrays)


def decode_groups(data: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Group]:
    """The inverse of `encode_groups`, after `decode`. Raises ProtocolError where the parts do not fit together."""
    try:
        columns = [_split(arrays[name], arrays[f"{name}_len"]) for name in _ARRAYS]
        rollouts = [_rollout(header, *parts) for header, *parts in zip(data["rollouts"], *columns, strict=True)]
        parts = _split(np.arange(len(rollouts)), arrays["num_rollouts"])
        return [_group(header, [rollouts[i] for i in part]) for header, part in zip(data["groups"], parts, strict=True)]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ProtocolError(f"a message of groups could not be read: {error!r}") from error


def _group_header(group: Group) -> dict[str, Any]:
    return {
        "prompt_id": group.prompt_id,
        "group_id": group.group_id,
        "prompt": group.prompt,
        "messages": group.messages,
        "columns": _finite(group.columns),
        "rewards": list(group.rewards),
        "reward_versions": group.reward_versions,
    }


def _group(header: dict[str, Any], completions: list[Rollout]) -> Group:
    rollouts = [rollout for rollout in completions if rollout.sample_index != GREEDY]
    greedy = next((rollout for rollout in completions if rollout.sample_index == GREEDY), None)
    return Group(**{**header, "rewards": tuple(header["rewards"])}, rollouts=rollouts, greedy=greedy)


def _finite(value: Any) -> Any:
    """JSON has no NaN: a dataset's own NaN travels as null."""
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


_ROLLOUT_SCALARS = (
    "prompt_id", "sample_index", "finish_reason", "completion", "rewards", "statuses", "reward", "correct", "extra", "advantage", "staleness",
    "dropped",
)  # fmt: skip


def _rollout_header(rollout: Rollout) -> dict[str, Any]:
    header = {name: getattr(rollout, name) for name in _ROLLOUT_SCALARS}
    header["version_spans"] = [[s.version, s.start, s.end] for s in rollout.version_spans]
    header["segments"] = [asdict(s) for s in rollout.segments]
    return header


def _rollout(
    header: dict[str, Any],
    prompt: list[int],
    completion: list[int],
    logps: list[float],
    mask: list[int],
    support: list[int],
    sizes: list[int],
) -> Rollout:
    """From the scalars of a rollout and its part of each of _ARRAYS."""
    if not len(completion) == len(logps) == len(mask) or (sizes and len(sizes) != len(completion)):
        raise ValueError(
            f"{len(completion)} tokens, {len(logps)} log-probs, a mask of {len(mask)}, {len(sizes)} supports"
        )
    supports = _split(np.array(support, dtype="<i4"), np.array(sizes, dtype="<i8"))
    if support and not sizes:
        raise ValueError(f"{len(support)} tokens of supports without sizes")
    return Rollout(
        **{
            **header,
            "version_spans": [VersionSpan(*span) for span in header["version_spans"]],
            "segments": [Segment(**segment) for segment in header["segments"]],
        },
        prompt_ids=prompt,
        completion_ids=completion,
        logps=logps,
        loss_mask=mask,
        support=supports if sizes else None,
    )


def _split(array: np.ndarray, lengths: np.ndarray) -> list[list[Any]]:
    """The array cut into pieces of these lengths."""
    if (lengths < 0).any() or int(lengths.sum()) != len(array):
        raise ValueError(f"an array of {len(array)} does not divide into pieces of {lengths.tolist()[:5]}")
    return [part.tolist() for part in np.split(array, np.cumsum(lengths)[:-1])] if len(lengths) else []


# -- the learner's end -------------------------------------------------------------------------------------------------


def connect(address: str, *, timeout: float) -> Channel:
    """Open a channel, waiting up to `timeout` seconds for the other end to listen.

    Raises:
        WaitTimeout: nothing listens there, or nothing ever will: the folder of the socket is gone.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return Channel(_connected(address), address)
        except OSError as error:
            if address.startswith("unix:") and not Path(address.removeprefix("unix:")).parent.is_dir():
                raise WaitTimeout(f"nothing will answer at {address} any more: its folder is gone") from error
            if time.monotonic() > deadline:
                raise WaitTimeout(f"nothing answered at {address} within {timeout:.0f} s: {error}") from error
            time.sleep(0.05)


def _connected(address: str) -> socket.socket:
    if not address.startswith("unix:"):
        host, _, port = address.removeprefix("tcp:").rpartition(":")
        return socket.create_connection((host, int(port)), timeout=5)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(address.removeprefix("unix:"))
    except OSError:
        sock.close()
        raise
    return sock


class Channel:
    """A blocking connection: `request` sends one message and waits for its answer."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self._sock = sock
        self._address = address

    def request(self, message: bytes, *, timeout: float, waiting_for: str) -> Message:
        """Send and wait.

        Raises:
            WaitTimeout: no answer within `timeout` seconds; the text names `waiting_for`.
            ProtocolError: the other end closed the connection or sent something else.
            PostrlError: the other end answered with an error of its own.
        """
        deadline = time.monotonic() + timeout
        try:
            self._sock.settimeout(timeout)
            self._sock.sendall(message)
            header_bytes, body_bytes = _lengths(self._read(_PREFIX.size, deadline))
            header, body = self._read(header_bytes, deadline), self._read(body_bytes, deadline)
        except TimeoutError as error:
            self.close()  # a late answer must not be taken for that of the next request
            raise WaitTimeout(f"waited {timeout:.0f} s for {waiting_for} at {self._address}") from error
        except OSError as error:
            raise ProtocolError(
                f"lost the connection to {self._address} while waiting for {waiting_for}: {error}"
            ) from error
        kind, data, arrays = _parse(header, body)
        if kind == "error":
            raise error_from_wire(data)
        return kind, data, arrays

    def _read(self, n: int, deadline: float) -> bytes:
        buffer = bytearray()  # grows with what arrives, not with what is announced
        while len(buffer) < n:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
            chunk = self._sock.recv(min(n - len(buffer), 1 << 20))
            if not chunk:
                raise ProtocolError(f"{self._address} closed the connection", hint="see the log of the rollout worker")
            buffer += chunk
        return bytes(buffer)

    def close(self) -> None:
        self._sock.close()


# -- the worker's end --------------------------------------------------------------------------------------------------


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """The next message, or None when the other end has closed."""
    try:
        header_bytes, body_bytes = _lengths(await reader.readexactly(_PREFIX.size))
        return _parse(await reader.readexactly(header_bytes), await reader.readexactly(body_bytes))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def write_message(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(message)
    await writer.drain()
