"""The one message protocol between rollout worker and learner (and, at rest, of saved groups).

A message is a safetensors file behind its length; nothing is pickled, so a peer can only ever send data:

    b"PRL2" | u64 bytes | safetensors: the arrays, and as the bytes of one more, JSON = {"type": "groups", "data": {...}}

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
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from postrl.errors import PostrlError, WaitTimeout, error_from_wire
from postrl.types import GREEDY, Group, Mean, Metrics, Rollout

PROTOCOL = 6
_PREFIX = struct.Struct("<4sQ")
_MAGIC = b"PRL2"
_JSON = "\0"
"""The array that is the bytes of the JSON. Names of others that begin so have one more in front."""
MAX_BYTES = 1 << 36

Message = tuple[str, dict[str, Any], dict[str, np.ndarray]]


class ProtocolError(PostrlError):
    """The other end sent something that is not a message of this protocol."""


def encode(kind: str, data: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None) -> bytes:
    """One message as bytes. NaN is allowed inside arrays, not inside `data`."""
    text = json.dumps({"type": kind, "data": data or {}}, allow_nan=False).encode()
    given = {_JSON + name if name.startswith(_JSON) else name: array for name, array in (arrays or {}).items()}
    tensors = {name: np.ascontiguousarray(array) for name, array in given.items()}
    body = save({**tensors, _JSON: np.frombuffer(text, np.uint8)})
    return _PREFIX.pack(_MAGIC, len(body)) + body


def decode(message: bytes) -> Message:
    """The inverse of `encode`. Raises ProtocolError on anything else."""
    announced = _length(message[: _PREFIX.size])
    if len(message) != _PREFIX.size + announced:
        raise ProtocolError(f"a message of {len(message)} bytes announces {_PREFIX.size + announced}")
    return _parse(message[_PREFIX.size :])


def _length(prefix: bytes) -> int:
    if len(prefix) < _PREFIX.size:
        raise ProtocolError(f"a message ended after {len(prefix)} bytes")
    magic, length = _PREFIX.unpack(prefix)
    if magic != _MAGIC or length > MAX_BYTES:
        raise ProtocolError(
            f"not a message of this version of postrl: it starts with {prefix[:8]!r}",
            hint="both ends, and the checkpoint that a run resumes from, need the same version",
        )
    return int(length)


def _parse(body: bytes) -> Message:
    try:
        arrays = load(body)
        fields = json.loads(arrays.pop(_JSON).tobytes())
        named = {name.removeprefix(_JSON): array for name, array in arrays.items()}
        return str(fields["type"]), dict(fields["data"]), named
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a message could not be read: {error!r}") from error


# -- groups ------------------------------------------------------------------------------------------------------------

_DTYPES = {"tokens": np.int32, "logps": np.float32, "mask": np.uint8, "support": np.int32}
"""Of the kinds of fields that travel as arrays: the items of all rollouts, one behind the other, and how many each has.
The others are JSON."""
_FIELDS = {f.name: f.metadata for f in fields(Rollout)}
_ARRAYS = {name: _DTYPES[kinds["kind"]] for name, kinds in _FIELDS.items() if kinds["kind"] in _DTYPES}
_OF_GROUPS = [f.name for f in fields(Group) if f.name not in ("rollouts", "greedy")]
"""Fields that travel as JSON; their rollouts stand beside them."""
_SIZES = "support/sizes"
"""`support` is a list of lists: beside their items stands how many each has."""


def encode_groups(kind: str, groups: list[Group], data: dict[str, Any] | None = None) -> bytes:
    """Groups as one message: tokens and log-probs as arrays, the rest as JSON."""
    rollouts = [rollout for group in groups for rollout in group.completions]
    arrays = {"num_rollouts": np.array([len(group.completions) for group in groups], np.int64)}
    for name, dtype in _ARRAYS.items():
        values = [getattr(rollout, name) for rollout in rollouts]
        if _FIELDS[name]["kind"] == "support":
            arrays |= _joined(_SIZES, [[len(tokens) for tokens in value or ()] for value in values], np.int32)
            values = [[token for tokens in value or () for token in tokens] for value in values]
        arrays |= _joined(name, values, dtype)
    header = {
        **(data or {}),
        "groups": [_group_header(g) for g in groups],
        "rollouts": [_rollout_header(r) for r in rollouts],
    }
    return encode(kind, header, arrays)


def decode_metrics(metrics: dict[str, Any]) -> Metrics:
    """Metrics as they were sent: JSON has a `Mean` as a list."""
    return {name: Mean(*metric) if isinstance(metric, list) else metric for name, metric in metrics.items()}


def _joined(name: str, values: list[list[Any]], dtype: Any) -> dict[str, np.ndarray]:
    """Lists as one array, and their lengths."""
    joined = np.concatenate([np.asarray(v, dtype=dtype) for v in values]) if values else np.zeros(0, dtype)
    return {name: joined, f"{name}/len": np.array([len(v) for v in values], np.int64)}


def decode_groups(data: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Group]:
    """The inverse of `encode_groups`, after `decode`. Raises ProtocolError where the parts do not fit together."""
    try:
        columns = {name: _split(arrays[name], arrays[f"{name}/len"]) for name in (*_ARRAYS, _SIZES)}
        values = [dict(zip(columns, parts)) for parts in zip(*columns.values(), strict=True)]
        rollouts = [_rollout(header, parts) for header, parts in zip(data["rollouts"], values, strict=True)]
        parts = _split(np.arange(len(rollouts)), arrays["num_rollouts"])
        return [_group(header, [rollouts[i] for i in part]) for header, part in zip(data["groups"], parts, strict=True)]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ProtocolError(f"a message of groups could not be read: {error!r}") from error


def _group_header(group: Group) -> dict[str, Any]:
    return {**{name: getattr(group, name) for name in _OF_GROUPS}, "columns": _finite(group.columns)}


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


def _rollout_header(rollout: Rollout) -> dict[str, Any]:
    header = {name: getattr(rollout, name) for name in _FIELDS if name not in _ARRAYS}
    return {name: [astuple(s) for s in value] if _FIELDS[name]["item"] else value for name, value in header.items()}


def _rollout(header: dict[str, Any], parts: dict[str, Any]) -> Rollout:
    """From what JSON said of a rollout and its part of each array."""
    sizes = parts.pop(_SIZES)
    lengths = {name: len(parts[name]) for name in ("completion_ids", "logps", "loss_mask")}
    if len(set(lengths.values())) > 1 or (sizes and len(sizes) != len(parts["completion_ids"])):
        raise ValueError(f"a rollout of {lengths} and {len(sizes)} supports")
    support = _split(np.array(parts.pop("support"), np.int32), np.array(sizes, np.int64))
    spans = {name: [_FIELDS[name]["item"](*span) for span in header[name]] for name in _FIELDS if _FIELDS[name]["item"]}
    return Rollout(**{**header, **spans}, **parts, support=support if sizes else None)


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
            body = self._read(_length(self._read(_PREFIX.size, deadline)), deadline)
        except TimeoutError as error:
            self.close()  # a late answer must not be taken for that of the next request
            raise WaitTimeout(f"waited {timeout:.0f} s for {waiting_for} at {self._address}") from error
        except OSError as error:
            raise ProtocolError(
                f"lost the connection to {self._address} while waiting for {waiting_for}: {error}"
            ) from error
        kind, data, arrays = _parse(body)
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
        return _parse(await reader.readexactly(_length(await reader.readexactly(_PREFIX.size))))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def write_message(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(message)
    await writer.drain()
