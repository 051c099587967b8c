"""The message protocol: what goes in comes out, and nothing else gets in. Real sockets."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postrl.errors import DataError, RewardError, WaitTimeout, error_to_wire
from postrl.run.messages import (
    MAX_BYTES,
    Channel,
    ProtocolError,
    connect,
    decode,
    decode_groups,
    decode_metrics,
    encode,
    encode_groups,
    read_message,
    write_message,
)
from postrl.types import GREEDY, Group, Mean, Rollout, Segment, VersionSpan

# -- messages ----------------------------------------------------------------------------------------------------------

numbers = st.one_of(
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5).map(lambda x: np.array(x, "<i4")),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(lambda x: np.array(x, "<i8")),
    st.lists(st.floats(width=32), max_size=5).map(lambda x: np.array(x, "<f4")),
    st.lists(st.floats(), max_size=6).map(lambda x: np.array(x, "<f8").reshape(-1, 1)),
    st.lists(st.booleans(), max_size=5).map(lambda x: np.array(x, bool)),
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@example("", {}, {"\0": np.zeros(1), "\0\0": np.ones(2)})
@given(
    st.text(max_size=10),
    st.dictionaries(st.text(), json_values, max_size=4),
    st.dictionaries(st.text(), numbers, max_size=4),
)
def test_what_is_encoded_is_decoded_to_the_bit(kind, data, arrays):
    found_kind, found_data, found = decode(encode(kind, data, arrays))
    assert (found_kind, found_data, found.keys()) == (kind, data, arrays.keys())
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_big_endian_and_strided_arrays_arrive_as_values():
    array = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    assert decode(encode("x", arrays={"a": array}))[2]["a"].tolist() == [[0, 2], [4, 6], [8, 10]]


def test_a_number_that_json_has_not_is_refused_when_it_is_sent():
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode("x", {"loss": float("nan")})


def test_a_message_is_never_unpickled():
    """The bytes of a pickle that would run code are data like any others."""

    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    payload = np.frombuffer(pickle.dumps(Evil()), dtype="|u1")
    assert decode(encode("x", arrays={"a": payload}))[2]["a"].tobytes() == payload.tobytes()
    with pytest.raises(ProtocolError):
        decode(pickle.dumps(Evil()))


def raw(body: bytes, *, announced: int | None = None) -> bytes:
    return struct.pack("<4sQ", b"PRL2", len(body) if announced is None else announced) + body


def tensors(header: object, data: bytes = b"") -> bytes:
    """A safetensors file with this header, right or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def saying(text: bytes) -> bytes:
    """A message whose JSON is this text."""
    return raw(tensors({"\0": {"dtype": "U8", "shape": [len(text)], "data_offsets": [0, len(text)]}}, text))


def array(dtype: object, shape: object, end: int, data: bytes) -> bytes:
    return raw(tensors({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}, data))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"PRL2",
        b"PRL1" + bytes(12),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        raw(b"", announced=MAX_BYTES + 1),
        raw(tensors({}), announced=100),
        raw(tensors({}) + b"left over"),
        raw(tensors({})),
        raw(b""),
        raw(b"\xff" * 8),
        raw(struct.pack("<Q", 2**63) + b"{}"),
        raw(tensors(b"not json")),
        raw(tensors(b"[" * 100_000)),
        raw(tensors([])),
        saying(b"not json"),
        saying(b"\xff\xfe"),
        saying(b"[" * 100_000),
        saying(b"[]"),
        saying(b'{"data": {}}'),
        saying(b'{"type": "x", "data": 3}'),
        array("F32", [2], 8, b"\0" * 4),
        array("F32", [2], 4, b"\0" * 4),
        array("F32", [-1], 4, b"\0" * 4),
        array("F32", [2**62, 2**62], 4, b"\0" * 4),
        array("F32", ["many"], 4, b"\0" * 4),
        array("O", [1], 8, b"\0" * 8),
        array(["F32"], [1], 4, b"\0" * 4),
    ],
)
def test_what_is_no_message_is_refused(message):
    with pytest.raises(ProtocolError):
        decode(message)


@given(st.binary(max_size=60), st.integers(0, 300))
def test_noise_is_refused_and_does_nothing_else(noise, place):
    good = bytearray(encode("x", {"a": [1, 2]}, {"b": np.arange(5)}))
    spoilt = bytes(good[:place] + noise + good[place + len(noise) :])
    for message in (noise, spoilt):
        try:
            decode(message)
        except ProtocolError:
            continue
        assert message[:4] == b"PRL2"


# -- groups ------------------------------------------------------------------------------------------------------------


def groups() -> list[Group]:
    first = Rollout(
        prompt_id="gsm8k:17",
        sample_index=0,
        prompt_ids=[1, 2, 3],
        completion_ids=[4, 5, 6, 7],
        logps=[-0.5, float("nan"), -1e-30, float("-inf")],
        version_spans=[VersionSpan(3, 0, 1), VersionSpan(4, 1, 4)],
        finish_reason="length",
        loss_mask=[1, 0, 1, 1],
        segments=[Segment("policy", 0, 1), Segment("tool", 1, 2), Segment("policy", 2, 4)],
        completion="é ☃ \x00 </s>",
        rewards={"math": 1.0, "length": None},
        statuses={"math": "correct", "length": "timeout"},
        reward=1.0,
        extra={"parsed": "7", "why": {"a": [1, None]}},
        advantage=0.25,
        staleness=1,
        support=[[4, 400], [5], [6], [7, 8, 9]],
    )
    second = replace(first, sample_index=1, completion_ids=[], logps=[], loss_mask=[], segments=[Segment("policy", 0, 0)],
                     support=None, version_spans=[], finish_reason="abort", reward=None, rewards={}, statuses={}, dropped="aborted")  # fmt: skip
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    return [
        Group(
            "gsm8k:17",
            5,
            "What",
            messages,
            {"answer": "7", "nested": {"a": [1, None]}},
            [first, second],
            ("math",),
            {"math": "math 1, postrl 0.1.0"},
            replace(
                first,
                sample_index=GREEDY,
                completion_ids=[8],
                support=None,
                logps=[-0.25],
                loss_mask=[1],
                segments=[],
                version_spans=[VersionSpan(4, 0, 1)],
                dropped="greedy",
            ),
        ),
        Group("plain:0", 6, "Once", None, {}, []),
        Group("plain:1", 7, "upon", None, {}, [replace(first, prompt_id="plain:1", prompt_ids=[9])]),
    ]


def test_groups_arrive_as_they_were_sent():
    kind, data, arrays = decode(encode_groups("groups", groups(), {"metrics": {"epoch": 0.5}}))
    found = decode_groups(data, arrays)
    assert (kind, data["metrics"]) == ("groups", {"epoch": 0.5})
    assert repr(found) == repr([_with_float32_logps(group) for group in groups()])  # repr: NaN is not equal to itself


def test_metrics_arrive_as_they_were_sent():
    sent = {"reward/math/mean": Mean(3.0, 4.0), "epoch": 0.5}
    _, data, _ = decode(encode("groups", {"metrics": sent}))
    found = decode_metrics(data["metrics"])
    assert found == sent and isinstance(found["reward/math/mean"], Mean)


def test_every_field_of_a_rollout_travels():
    """One that is added to the dataclass travels by what its metadata says of it, or this fails."""
    (sent, *_), *_ = [group.rollouts for group in groups()]
    sent = replace(sent, correct=True, dropped="stale", logps=[-0.5] * 4)
    assert [f.name for f in fields(Rollout) if getattr(sent, f.name) == f.default] == []
    _, data, arrays = decode(encode_groups("groups", [replace(groups()[0], rollouts=[sent], greedy=None)]))
    assert decode_groups(data, arrays)[0].rollouts == [sent]


def _with_float32_logps(group: Group) -> Group:
    rollouts = [replace(r, logps=np.array(r.logps, "<f4").tolist()) for r in group.rollouts]
    return replace(group, rollouts=rollouts)  # that of the greedy one is a float32 already


def test_missing_log_probs_keep_their_bits():
    (sent,) = (g for g in groups() if g.group_id == 7)
    sent.rollouts[0].logps = np.frombuffer(
        struct.pack("<4I", 0x7FC00000, 0x7F800001, 0xFFC00001, 0x80000000), "<f4"
    ).tolist()
    _, _, arrays = decode(encode_groups("groups", [sent]))
    assert [np.isnan(x) for x in arrays["logps"]] == [True, True, True, False]
    assert np.signbit(arrays["logps"][3])


def test_no_groups_are_a_message_too():
    _, data, arrays = decode(encode_groups("groups", []))
    assert decode_groups(data, arrays) == []


def test_a_data_sets_own_nan_becomes_null_and_what_is_no_json_is_refused():
    group = groups()[1]
    group.columns = {"score": float("nan"), "list": [float("inf"), 1.5], 3: "key"}
    _, data, arrays = decode(encode_groups("groups", [group]))
    assert decode_groups(data, arrays)[0].columns == {
        "score": None,
        "list": [None, 1.5],
        "3": "key",
    }
    group.columns = {"picture": b"..."}
    with pytest.raises(TypeError):
        encode_groups("groups", [group])


def spoil(name: str, change: Callable[[np.ndarray], np.ndarray]) -> tuple[dict, dict]:
    _, data, arrays = decode(encode_groups("groups", groups()))
    return data, {**arrays, name: change(arrays[name])}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("completion_ids/len", lambda a: a + 1),
        ("completion_ids/len", lambda a: a - 5),
        ("completion_ids/len", lambda a: np.roll(a, 1)),
        ("completion_ids/len", lambda a: a.astype("<f8")),
        ("logps", lambda a: a[:-1]),
        ("logps/len", lambda a: a[:-1]),
        ("loss_mask/len", lambda a: np.roll(a, 1)),
        ("support/sizes", lambda a: a - 1),
        ("support/sizes/len", lambda a: np.roll(a, 1)),
        ("num_rollouts", lambda a: a + 1),
        ("num_rollouts", lambda a: a[:-1]),
        ("num_rollouts", lambda a: -a),
        ("prompt_ids", lambda a: a.reshape(-1, 1)[:0]),
    ],
)
def test_groups_whose_parts_do_not_fit_are_refused(name, change):
    with pytest.raises(ProtocolError, match="groups could not be read"):
        decode_groups(*spoil(name, change))


@pytest.mark.parametrize(
    "change",
    [
        {"rollouts": 3},
        {"groups": [{}] * 3},
        {"rollouts": [{"version_spans": [], "segments": [], "surprise": 1}] * 4},
        {"rollouts": [{"prompt_ids": [1], "version_spans": [], "segments": []}] * 4},
    ],
)
def test_headers_that_are_no_groups_are_refused(change):
    _, data, arrays = decode(encode_groups("groups", groups()))
    with pytest.raises(ProtocolError, match="groups could not be read"):
        decode_groups({**data, **change}, arrays)


# -- channels ----------------------------------------------------------------------------------------------------------


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[Channel]:
    """A channel whose other end does what `answer` does, in a thread."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=answer, args=(theirs,), daemon=True)
    thread.start()
    channel = Channel(ours, "unix:/test")
    try:
        yield channel
    finally:
        channel.close()
        thread.join(10)
        theirs.close()


def read_all(sock: socket.socket, n: int) -> bytes:
    got = b""
    while len(got) < n:
        got += sock.recv(n - len(got))
    return got


def test_a_request_gets_its_answer_whatever_the_size():
    question = encode("question", arrays={"big": np.zeros(500_000, "<f8")})

    def answer(sock):
        kind, _, arrays = decode(read_all(sock, len(question)))
        sock.sendall(encode("answer", {"to": kind}, {"back": arrays["big"] + 1}))

    with answering(answer) as channel:
        kind, data, arrays = channel.request(question, timeout=30, waiting_for="an answer")
    assert (kind, data) == ("answer", {"to": "question"})
    assert arrays["back"].sum() == 500_000


@pytest.mark.parametrize(
    "sent", [b"", encode("answer")[:5], encode("answer", {"long": "x" * 100})[:-1]], ids=["nothing", "prefix", "most"]
)
def test_a_wait_that_passes_its_deadline_names_what_it_waited_for(sent):
    done = threading.Event()

    def answer(sock):
        sock.sendall(sent)
        done.wait(30)

    with answering(answer) as channel:
        with pytest.raises(WaitTimeout, match="waited 0 s for groups from the rollout worker at unix:/test"):
            channel.request(encode("groups"), timeout=0.2, waiting_for="groups from the rollout worker")
        with pytest.raises(ProtocolError, match="lost the connection"):  # a late answer is not taken for this one's
            channel.request(encode("state"), timeout=0.2, waiting_for="state")
        done.set()


def test_an_answer_that_trickles_does_not_move_the_deadline():
    stop = threading.Event()

    def answer(sock):
        for byte in encode("x", arrays={"a": np.zeros(10_000)}):
            if stop.wait(0.01):
                return
            sock.sendall(bytes([byte]))

    with answering(answer) as channel:
        with pytest.raises(WaitTimeout, match="for an answer"):
            channel.request(encode("x"), timeout=0.3, waiting_for="an answer")
        stop.set()


def test_a_peer_that_goes_away_is_not_waited_for():
    def answer(sock):
        sock.recv(1 << 16)
        sock.close()

    with answering(answer) as channel, pytest.raises(ProtocolError, match="unix:/test closed the connection") as caught:
        channel.request(encode("groups"), timeout=30, waiting_for="groups")
    assert caught.value.hint == "see the log of the rollout worker"


def test_an_announced_size_is_not_believed_before_the_bytes_are_there():
    def answer(sock):
        sock.recv(1 << 16)
        sock.sendall(raw(b"", announced=MAX_BYTES))
        sock.close()

    with answering(answer) as channel, pytest.raises(ProtocolError, match="closed the connection"):
        channel.request(encode("groups"), timeout=30, waiting_for="groups")


@pytest.mark.parametrize("error", [RewardError("reward f failed", hint="fix it"), DataError("no rows"), KeyError("x")])
def test_an_error_of_the_other_end_is_raised_here_as_what_it_was(error):
    def answer(sock):
        sock.sendall(encode("error", error_to_wire(error)))

    with answering(answer) as channel, pytest.raises(Exception) as caught:
        channel.request(encode("groups"), timeout=30, waiting_for="groups")
    if isinstance(error, KeyError):
        assert "KeyError: 'x'" in str(caught.value)
    else:
        assert (type(caught.value), caught.value.message, caught.value.hint) == (type(error), error.message, error.hint)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_connect_waits_until_the_other_end_listens(tmp_path, kind):
    path = str(tmp_path / "s.sock")
    server = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
    if kind == "tcp":
        server.bind(("127.0.0.1", 0))

    def listen():
        time.sleep(0.2)
        if kind == "unix":
            server.bind(path)
        server.listen()

    address = f"unix:{path}" if kind == "unix" else f"tcp:127.0.0.1:{server.getsockname()[1]}"
    threading.Thread(target=listen, daemon=True).start()
    connect(address, timeout=30).close()
    server.close()


def test_connect_gives_up_and_says_where(tmp_path):
    with pytest.raises(WaitTimeout, match=f"nothing answered at unix:{tmp_path}/none"):
        connect(f"unix:{tmp_path}/none", timeout=0.1)


def test_the_asyncio_end_reads_and_writes_the_same(tmp_path):
    async def talk():
        async def serve(reader, writer):
            while (message := await read_message(reader)) is not None:
                await write_message(writer, encode("echo", message[1], message[2]))
            writer.close()

        server = await asyncio.start_unix_server(serve, tmp_path / "s")
        async with server:
            return await asyncio.to_thread(ask)

    def ask():
        channel = connect(f"unix:{tmp_path / 's'}", timeout=10)
        answers = [
            channel.request(encode("x", {"n": n}, {"a": np.arange(n)}), timeout=10, waiting_for="an echo")
            for n in (0, 1, 200_000)
        ]
        channel.close()
        return answers

    for (kind, data, arrays), n in zip(asyncio.run(talk()), (0, 1, 200_000), strict=True):
        assert (kind, data["n"], len(arrays["a"])) == ("echo", n, n)
