"""What crosses between the tests and the candidate: values of exact built-in types as JSON, all else as handles.

Both processes run this file outside of the package, so it imports nothing of postrl. A message is a frame: four bytes
of length, then JSON.

    ["?", operation, operands, containers]      a request; while it waits for the reply a side serves requests, too
    ["=", result, containers]                   the reply
    ["!", error, containers]                    the reply when the operation raised

None, bools, ints, floats and text stand for themselves, every other value is a list that begins with a tag. A mutable
container is ["ref", number]; `containers` holds the contents by number. The containers of a request keep their numbers
in the reply, which says what became of them, null for an unchanged one. So arguments that were changed in place are
changed on the other side, shared and cyclic ones keep their shape, and `f(x) is x` keeps its meaning.

Types are compared with `is`: subclasses and look-alikes are handles, which do on the other side only what its class
for them allows. Nothing that is read here can name code: no pickle, no eval, no import.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque

TYPE_CHECKING = False  # as in typing, whose import takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Packer = Callable[["Pack", Any], list[Any]]
    Unpacker = Callable[["Unpack", list[Any]], Any]

LARGEST_FRAME = 16 << 20
"""Bytes. A longer one breaks the connection."""
PLAIN_INT = 1 << 63
"""Integers beyond it cross as hexadecimal text, which has no limit of digits and takes linear time."""

NAMED = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, slice, type,
                 object, type(None))
}  # fmt: skip
"""Classes that cross by name."""
VIEWS = {"dict_keys", "dict_values", "dict_items"}


class Broken(BaseException):
    """The other side is gone or sent what is no message. No `except Exception` of a test or a candidate stops it."""


class Malformed(Exception):
    """A message that the other side cannot have sent in good faith."""


# -- packing -----------------------------------------------------------------------------------------------------------


class Pack:
    """Values on their way out. `seeds`: containers that came with a request, whose numbers the reply keeps."""

    def __init__(self, peer: Peer, seeds: Iterable[Any] = ()) -> None:
        self.peer = peer
        self.containers = list(seeds)
        self.numbers = {id(container): number for number, container in enumerate(self.containers)}

    def value(self, x: Any) -> Any:
        kind = type(x)
        if x is None or kind is bool or kind is float or kind is str:
            return x
        if kind is int:
            return x if -PLAIN_INT < x < PLAIN_INT else ["int", hex(x)]
        if kind in CONTAINERS:
            return ["ref", self._number(x)]
        packer = PACKERS.get(kind) or _packer_by_name(x, kind)
        return packer(self, x) if packer else self.peer.export(x)

    def values(self, items: Iterable[Any]) -> list[Any]:
        return [self.value(item) for item in items]

    def contents(self) -> list[Any]:
        """What all containers hold, those met on the way included."""
        packed = []
        for container in self.containers:  # it grows meanwhile
            tag, pack, _ = CONTAINERS[type(container)]
            packed.append([tag, *pack(self, container)])
        return packed

    def _number(self, container: Any) -> int:
        number = self.numbers.setdefault(id(container), len(self.containers))
        if number == len(self.containers):
            self.containers.append(container)
        return number


class Unpack:
    """Values on their way in. `seeds`: the containers of our request, which `contents` may say new things about."""

    def __init__(self, peer: Peer, contents: list[Any], seeds: Iterable[Any] = ()) -> None:
        self.peer = peer
        self.containers = list(seeds)
        known = len(self.containers)
        if len(contents) < known:
            raise Malformed("containers are missing")
        for tag, *rest in contents[known:]:
            self.containers.append(BY_TAG[tag][1](*[self.value(r) for r in rest[1:]]))
        filled = []
        for container, packed in zip(self.containers, contents):
            if packed is None:
                continue
            if type(container) is not BY_TAG[packed[0]][0]:
                raise Malformed("a container changed its type")
            filled.append((container, packed[0], self._items(packed[0], packed[1])))
        for container, tag, items in filled:  # only now: a malformed message changes nothing
            BY_TAG[tag][2](container, items)

    def value(self, x: Any) -> Any:
        if type(x) is not list:
            return x
        tag = x[0]
        if tag == "ref":
            return self.containers[_natural(x[1])]
        return UNPACKERS[tag](self, x)

    def values(self, items: list[Any]) -> list[Any]:
        return [self.value(item) for item in items]

    def _items(self, tag: str, packed: Any) -> Any:
        if tag == "bytearray":
            return packed.encode("latin-1")
        if tag in MAPPINGS:
            return [(self.value(key), self.value(item)) for key, item in packed]
        return self.values(packed)


def _natural(x: Any) -> int:
    if type(x) is not int or x < 0:
        raise Malformed("a number that counts nothing")
    return x


def _packer_by_name(x: Any, kind: type) -> Packer | None:
    """For types whose module need not be imported here: a value of one can only exist where it is."""
    module, name = kind.__module__, kind.__name__
    if module == "builtins" and name in VIEWS:
        return _pack_view
    if kind is type and NAMED.get(x.__name__) is x:
        return lambda pack, x: ["type", x.__name__]
    if tuple in kind.__bases__ and hasattr(kind, "_fields"):
        return _pack_namedtuple if _is_plain_namedtuple(kind) else None
    known = sys.modules.get(module)
    if getattr(known, name, None) is not kind:
        return None
    return NAMED_PACKERS.get(f"{module}.{name}") or (_pack_numpy if module == "numpy" else None)


def _is_plain_namedtuple(kind: type) -> bool:
    own = {name for name in vars(kind) if not name.startswith("__")}
    allowed = {"_fields", "_field_defaults", "_make", "_replace", "_asdict", *kind._fields}  # type: ignore[attr-defined]
    return own <= allowed and "__eq__" not in vars(kind)


def _pack_namedtuple(pack: Pack, x: Any) -> list[Any]:
    return ["namedtuple", type(x).__name__, list(type(x)._fields), pack.values(tuple(x))]


def _pack_view(pack: Pack, x: Any) -> list[Any]:
    return [type(x).__name__, pack.values(x)]


def _pack_numpy(pack: Pack, x: Any) -> list[Any]:
    """Numpy scalars as the numbers they are, arrays of numbers as arrays."""
    if type(x).__name__ != "ndarray":
        item = x.item() if hasattr(x, "item") else x
        return ["same", pack.value(item)] if type(item) is not type(x) else pack.peer.export(x)
    if x.dtype.kind not in "biufc":
        return pack.peer.export(x)
    return ["ndarray", x.dtype.str, list(x.shape), pack.values(x.ravel().tolist())]


PACKERS: dict[type, Packer] = {
    tuple: lambda pack, x: ["tuple", pack.values(x)],
    frozenset: lambda pack, x: ["frozenset", pack.values(x)],
    bytes: lambda pack, x: ["bytes", x.decode("latin-1")],
    complex: lambda pack, x: ["complex", x.real, x.imag],
    range: lambda pack, x: ["range", *pack.values((x.start, x.stop, x.step))],
    slice: lambda pack, x: ["slice", *pack.values((x.start, x.stop, x.step))],
    type(...): lambda pack, x: ["..."],
    type(NotImplemented): lambda pack, x: ["NotImplemented"],
}

NAMED_PACKERS: dict[str, Packer] = {
    "decimal.Decimal": lambda pack, x: ["Decimal", str(x)],
    "fractions.Fraction": lambda pack, x: ["Fraction", pack.value(x.numerator), pack.value(x.denominator)],
    "pathlib.PosixPath": lambda pack, x: ["PosixPath", str(x)],
    "datetime.date": lambda pack, x: ["date", x.year, x.month, x.day],
    "datetime.timedelta": lambda pack, x: ["timedelta", x.days, x.seconds, x.microseconds],
    "datetime.timezone": lambda pack, x: ["timezone", pack.value(x.utcoffset(None))],
    "datetime.time": lambda pack, x: [
        "time", x.hour, x.minute, x.second, x.microsecond, pack.value(x.tzinfo), x.fold
    ],
    "datetime.datetime": lambda pack, x: [
        "datetime", x.year, x.month, x.day, x.hour, x.minute, x.second, x.microsecond, pack.value(x.tzinfo), x.fold
    ],
}  # fmt: skip

# -- the inverse -------------------------------------------------------------------------------------------------------


def _from(module: str, name: str, *operands: Any, **named: Any) -> Any:
    """An object of the standard library: the module is fixed by the tag, never by the message."""
    return getattr(__import__(module), name)(*operands, **named)


def _unpack_namedtuple(unpack: Unpack, x: list[Any]) -> Any:
    _, name, fields, values = x
    key = (name, *fields)
    kinds = unpack.peer.namedtuples
    if key not in kinds:
        kinds[key] = _from("collections", "namedtuple", name, fields)
    return kinds[key](*unpack.values(values))


def _unpack_array(unpack: Unpack, x: list[Any]) -> Any:
    _, dtype, shape, values = x
    if len(dtype) > 4 or dtype[1] not in "biufc":
        raise Malformed("an array of what are not numbers")
    return __import__("numpy").array(unpack.values(values), dtype=dtype).reshape(shape)


def _unpack_moment(name: str) -> Unpacker:
    def unpack_moment(unpack: Unpack, x: list[Any]) -> Any:
        *operands, zone, fold = x[1:]
        return _from("datetime", name, *operands, tzinfo=unpack.value(zone), fold=fold)

    return unpack_moment


UNPACKERS: dict[str, Unpacker] = {
    "int": lambda unpack, x: int(x[1], 16),
    "tuple": lambda unpack, x: tuple(unpack.values(x[1])),
    "frozenset": lambda unpack, x: frozenset(unpack.values(x[1])),
    "bytes": lambda unpack, x: x[1].encode("latin-1"),
    "complex": lambda unpack, x: complex(x[1], x[2]),
    "range": lambda unpack, x: range(*unpack.values(x[1:])),
    "slice": lambda unpack, x: slice(*unpack.values(x[1:])),
    "...": lambda unpack, x: ...,
    "NotImplemented": lambda unpack, x: NotImplemented,
    "type": lambda unpack, x: NAMED[x[1]],
    "same": lambda unpack, x: unpack.value(x[1]),
    "namedtuple": _unpack_namedtuple,
    "ndarray": _unpack_array,
    "dict_keys": lambda unpack, x: dict.fromkeys(unpack.values(x[1])).keys(),
    "dict_values": lambda unpack, x: dict(enumerate(unpack.values(x[1]))).values(),
    "dict_items": lambda unpack, x: dict(unpack.values(x[1])).items(),
    "Decimal": lambda unpack, x: _from("decimal", "Decimal", x[1]),
    "Fraction": lambda unpack, x: _from("fractions", "Fraction", unpack.value(x[1]), unpack.value(x[2])),
    "PosixPath": lambda unpack, x: _from("pathlib", "PosixPath", x[1]),
    "date": lambda unpack, x: _from("datetime", "date", *x[1:]),
    "timedelta": lambda unpack, x: _from("datetime", "timedelta", *x[1:]),
    "timezone": lambda unpack, x: _from("datetime", "timezone", unpack.value(x[1])),
    "time": _unpack_moment("time"),
    "datetime": _unpack_moment("datetime"),
    "theirs": lambda unpack, x: unpack.peer.adopt(x),
    "yours": lambda unpack, x: unpack.peer.exported(x[1]),
}

# -- mutable containers: type -> (tag, how to pack it); tag -> (type, how to make an empty one, how to fill it) -----------


def _pairs(pack: Pack, x: Any) -> list[Any]:
    return [[[pack.value(key), pack.value(item)] for key, item in x.items()]]


def _pack_defaultdict(pack: Pack, x: Any) -> list[Any]:
    return [*_pairs(pack, x), pack.value(x.default_factory)]


def _replace(container: Any, items: Any) -> None:
    container[:] = items


def _refill_mapping(container: Any, items: Any) -> None:
    container.clear()
    for key, item in items:
        container[key] = item


def _refill_set(container: Any, items: Any) -> None:
    container.clear()
    container.update(items)


def _refill_deque(container: Any, items: Any) -> None:
    container.clear()
    container.extend(items)


CONTAINERS: dict[type, tuple[str, Packer, tuple[Any, Callable[..., Any]]]] = {
    list: ("list", lambda pack, x: [pack.values(x)], (list, _replace)),
    dict: ("dict", _pairs, (dict, _refill_mapping)),
    set: ("set", lambda pack, x: [pack.values(x)], (set, _refill_set)),
    bytearray: ("bytearray", lambda pack, x: [x.decode("latin-1")], (bytearray, _replace)),
    deque: ("deque", lambda pack, x: [pack.values(x), x.maxlen], (lambda size: deque(maxlen=size), _refill_deque)),
    OrderedDict: ("OrderedDict", _pairs, (OrderedDict, _refill_mapping)),
    Counter: ("Counter", _pairs, (Counter, _refill_mapping)),
    defaultdict: ("defaultdict", _pack_defaultdict, (defaultdict, _refill_mapping)),
}  # fmt: skip
BY_TAG = {tag: (kind, make, fill) for kind, (tag, _, (make, fill)) in CONTAINERS.items()}
MAPPINGS = {"dict", "OrderedDict", "Counter", "defaultdict"}

# -- the connection ----------------------------------------------------------------------------------------------------


class Peer:
    """One end of the connection. The two sides differ in what a handle may do: `perform`, `adopt`, `export`, `raised`
    and `error` are theirs."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self.namedtuples: dict[Any, Any] = {}
        self._lock = threading.RLock()
        """Held for a whole request: threads take turns."""
        self._exports: list[Any] = []
        self._export_ids: dict[int, int] = {}

    # what a side defines

    def perform(self, operation: str, operands: tuple[Any, ...]) -> Any:
        """Do what the other side asks for."""
        raise NotImplementedError

    def export(self, x: Any) -> list[Any]:
        """A value that does not cross, as a handle."""
        raise NotImplementedError

    def adopt(self, x: list[Any]) -> Any:
        """The object that stands here for a value of the other side."""
        raise NotImplementedError

    def raised(self, error: BaseException) -> tuple[Any, ...]:
        """An exception as a value that crosses."""
        raise NotImplementedError

    def error(self, operation: str, unpacked: Any) -> BaseException:
        """The exception to raise here for one of the other side."""
        raise NotImplementedError

    # requests and replies

    def request(self, operation: str, *operands: Any) -> Any:
        """Have the other side do something, serve it meanwhile, and give the result or raise its error."""
        with self._lock:
            pack = Pack(self)
            packed = pack.value(operands)
            self._write(_frame(["?", operation, packed, pack.contents()]))
            while (message := self.receive())[0] == "?":
                self.answer(message)
            result, _ = self._unpacked(message[1], message[2], pack.containers)
        if message[0] == "=":
            return result
        raise self.error(operation, result)

    def answer(self, message: list[Any]) -> None:
        """Serve one request."""
        _, operation, packed, contents = message
        operands, containers = self._unpacked(packed, contents)
        before = Pack(self, containers).contents()
        try:
            reply = self._reply("=", self.perform(operation, operands), containers, before)
        except Broken:
            raise
        except BaseException as error:
            reply = self._refusal(error, containers, before)
        self._write(reply)

    def _reply(self, kind: str, result: Any, containers: list[Any], before: list[Any]) -> bytes:
        pack = Pack(self, containers)
        packed, contents = pack.value(result), pack.contents()
        changed = [None if after == first else after for after, first in zip(contents, before)]
        return _frame([kind, packed, changed + contents[len(before) :]])

    def _refusal(self, error: BaseException, containers: list[Any], before: list[Any]) -> bytes:
        try:
            return self._reply("!", self.raised(error), containers, before)
        except Exception as second:  # what it says is too large, too deep or cannot be said
            kind = MemoryError if isinstance(second, MemoryError) else RuntimeError
            simple = self.raised(kind(f"{type(error).__name__}, which does not cross: {second}"))
            return _frame(["!", Pack(self).value(simple), [None] * len(before)])

    def _unpacked(self, packed: Any, contents: Any, seeds: Iterable[Any] = ()) -> tuple[Any, list[Any]]:
        """A value of a message and all containers in it."""
        try:
            unpack = Unpack(self, contents, seeds)
            return unpack.value(packed), unpack.containers
        except Exception as error:  # whatever a message that makes no sense may raise
            raise Broken(f"a malformed message: {type(error).__name__}: {error}") from None

    # objects that stay here

    def export_id(self, x: Any) -> int:
        """The number under which the other side knows an object, which is kept alive."""
        number = self._export_ids.setdefault(id(x), len(self._exports))
        if number == len(self._exports):
            self._exports.append(x)
        return number

    def exported(self, number: Any) -> Any:
        return self._exports[_natural(number)]

    # frames

    def _write(self, frame: bytes) -> None:
        view = memoryview(frame)
        try:
            while view:
                view = view[os.write(self.outgoing, view) :]
        except OSError as error:
            raise Broken(f"the other side is gone: {error}") from None

    def receive(self) -> list[Any]:
        length = int.from_bytes(self._read(4), "big")
        if length > LARGEST_FRAME:
            raise Broken(f"a frame of {length} bytes")
        try:
            message: list[Any] = json.loads(self._read(length))
            sound = type(message) is list and len(message) == {"?": 4, "=": 3, "!": 3}[message[0]]
        except (ValueError, LookupError, TypeError, RecursionError):
            sound = False
        if not sound:
            raise Broken("a malformed message")
        return message

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = os.read(self.incoming, min(count - len(data), 1 << 20))
            if not piece:
                raise Broken("the other side is gone")
            data += piece
        return bytes(data)


def _frame(message: list[Any]) -> bytes:
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > LARGEST_FRAME:
        raise MemoryError(f"a value of {len(data)} bytes is too large to leave its process")
    return len(data).to_bytes(4, "big") + data
