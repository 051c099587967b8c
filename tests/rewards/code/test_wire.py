from __future__ import annotations

import math
import os
import tempfile
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postrl.rewards.code import wire


class Echo(wire.Peer):
    """Gives back what it is asked with. Closes its descriptors when it is forgotten."""

    def __del__(self) -> None:
        for fd in {self.incoming, self.outgoing} - {-1}:
            os.close(fd)

    def perform(self, operation: str, operands: tuple[Any, ...]) -> Any:
        return operands[0]

    def export(self, x: Any) -> list[Any]:
        return ["theirs", self.export_id(x)]

    def adopt(self, x: list[Any]) -> Any:
        return ("handle", x[1])

    def raised(self, error: BaseException) -> tuple[Any, ...]:
        return (str(error),)

    def error(self, operation: str, unpacked: Any) -> BaseException:
        return RuntimeError(*unpacked)


@pytest.fixture
def pair():
    """Two ends of a connection; the second serves."""
    down, up = os.pipe(), os.pipe()
    here, there = Echo(up[0], down[1]), Echo(down[0], up[1])

    def serve() -> None:
        try:
            while True:
                there.answer(there.receive())
        except wire.Broken:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield here
    os.close(here.outgoing)
    here.outgoing = -1
    thread.join(10)


ATOMS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False) | st.fractions() | st.datetimes() | st.dates() | st.timedeltas() | st.sampled_from([..., int, list])
    | st.integers(min_value=2**60).map(lambda n: n**20)
)  # fmt: skip
HASHABLE = st.recursive(ATOMS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
        | st.tuples(inner, inner)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(st.text(), inner, max_size=3).map(lambda d: defaultdict(list, d))
        | st.dictionaries(HASHABLE, st.integers(), max_size=3).map(Counter)
        | st.dictionaries(HASHABLE, inner, max_size=3).map(OrderedDict)
        | st.binary(max_size=4).map(bytearray)
    ),
    max_leaves=15,
)


def crossed(value: Any) -> Any:
    """The value after it crossed once, without processes."""
    peer = Echo(-1, -1)
    pack = wire.Pack(peer)
    packed = pack.value(value)
    frame = wire._frame(["=", packed, pack.contents()])
    message = wire.json.loads(frame[4:])
    return wire.Unpack(peer, message[2]).value(message[1])


@given(VALUES)
def test_values_of_built_in_types_cross_unchanged(value):
    assert crossed(value) == value and type(crossed(value)) is type(value)


def test_the_sign_of_zero_and_nan_cross():
    assert math.copysign(1, crossed(-0.0)) == -1 and math.isnan(crossed([math.nan])[0])
    assert math.isnan(crossed(complex(math.nan, 1)).real) and crossed(Decimal("NaN")).is_nan()


@pytest.mark.parametrize(
    "value", [type("I", (int,), {})(3), type("L", (list,), {})(), type("S", (str,), {})("x"), object(), len, open]
)
def test_everything_else_is_a_handle(value):
    assert crossed(value)[0] == "handle"


def test_containers_of_a_request_are_those_of_the_reply(pair):
    shared = [1]
    value = {"a": shared, "b": [shared, shared]}
    value["self"] = value
    assert pair.request("echo", value) is value
    assert value["b"][0] is shared


NONSENSE = [
    b"", b"{}", b"[]", b"3", b"null", b"[[]]", b'["="]', b'["=", 1]', b'["=", 1, [], 2]', b'["no", 1, []]', b"\xff\xfe",
    b'["=", ["ref", 0], []]', b'["=", ["ref", -1], [["list", []]]]', b'["=", ["ref", "x"], [["list", []]]]',
    b'["=", ["eval", "1"], []]', b'["=", ["int", "zz"], []]', b'["=", ["type", "Popen"], []]', b'["=", [], []]',
    b'["=", 1, [["list"]]]', b'["=", 1, [["os", []]]]', b'["=", 1, 7]', b'["=", 1, [null]]', b'["=", ["namedtuple", "a b", ["x y"], []], []]',
    b'["=", ["yours", 99], []]', b'["=", ["yours", -1], []]', b'["=", ["tuple", 5], []]', b'["=", ["bytes", 5], []]',
    b'["=", ["frozenset", [["ref", 0]]], [["list", []]]]', b'["=", ["ndarray", "<U9999999", [1], ["x"]], []]',
    b"[" * 100_000, b'["=", ["Decimal", "x"], []]', b'["=", ["datetime", 1], []]', b'["=", ["range", 1, 2, 0], []]',
]  # fmt: skip


@pytest.mark.parametrize("message", NONSENSE)
def test_nonsense_breaks_the_connection(message):
    with pytest.raises(wire.Broken):
        listening_to(len(message).to_bytes(4, "big") + message).request("echo")


def listening_to(data: bytes) -> Echo:
    """A peer whose other side has sent these bytes and hung up."""
    with tempfile.TemporaryFile() as said:
        said.write(data)
        said.seek(0)
        return Echo(os.dup(said.fileno()), os.open(os.devnull, os.O_WRONLY))


def test_a_malformed_reply_changes_no_argument():
    peer, mine = Echo(-1, -1), [1, 2]
    for contents in ([["dict", []]], [["list", [["ref", 9]]]], []):
        with pytest.raises((wire.Malformed, LookupError)):
            wire.Unpack(peer, contents, [mine])
    assert mine == [1, 2]


@given(st.binary(max_size=200))
def test_random_bytes_break_the_connection(data):
    peer = listening_to(data)
    with pytest.raises(wire.Broken):
        while True:
            peer.receive()
