from __future__ import annotations

import errno
import socket

import pytest

from postrl.errors import UsageError
from postrl.launch.ports import LOOPBACK, HeldPort


def test_a_held_port_refuses_connections_and_others_but_not_our_server() -> None:
    port = HeldPort()
    with socket.socket() as client:
        assert client.connect_ex((LOOPBACK, port.number)) == errno.ECONNREFUSED
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind((LOOPBACK, port.number))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM does
        server.bind((LOOPBACK, port.number))
        server.listen()
    port.release()


def test_held_ports_differ() -> None:
    ports = [HeldPort() for _ in range(20)]
    assert len({port.number for port in ports}) == 20
    for port in ports:
        port.release()


def test_a_named_port_that_is_in_use_is_said_with_the_setting_that_named_it() -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        number = other.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {number} \(--vllm-arg port\) is in use by another program"):
            HeldPort(number, named_by="--vllm-arg port")
