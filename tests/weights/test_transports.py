"""Transports are rows: which one a run has follows from where its servers are and what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from postrl.config import GRPOConfig
from postrl.errors import ServerError
from postrl.run.connections import DISK, Connections
from postrl.run.folder import RunFolder
from postrl.servers.client import VLLMServer
from postrl.weights.disk import POINTER, DiskTransport
from postrl.weights.lora import LoraTransport
from postrl.weights.transports import TRANSPORTS, connect, restore, transport_for


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ({"cpu": True}, "disk"),
        ({"cpu": False}, "nccl"),
        ({"cpu": False, "shared": True}, "disk"),
        ({"cpu": False, "adapter_rank": 8}, "lora"),
        ({"cpu": True, "adapter_rank": 8}, "lora"),
    ],
)
def test_nccl_wants_a_gpu_for_each_process_and_adapters_travel_alone(where: dict[str, Any], name: str) -> None:
    assert transport_for(**where).name == name


def test_servers_are_connected_by_the_transport_they_were_started_for(tmp_path: Path) -> None:
    config, folder = GRPOConfig(max_staleness=1, in_flight="wait", request_timeout=30), RunFolder(tmp_path)
    transport, servers = connect(config, Connections(("http://127.0.0.1:9",), transport="disk"), folder)
    assert isinstance(transport, DiskTransport) and transport.pause is not None
    assert (transport.pause.mode, transport.pause.timeout) == ("wait", 90.0)
    assert [server.url for server in servers] == ["http://127.0.0.1:9"]
    adapters, _ = connect(config, Connections(("http://127.0.0.1:9",), transport="lora", adapter_rank=8), folder)
    assert isinstance(adapters, LoraTransport) and adapters.max_staleness == 1


def test_a_server_that_does_not_fit_is_refused_by_what_its_transport_needs(tmp_path: Path) -> None:
    connections = Connections(("http://127.0.0.1:9",), owned=False)
    with pytest.raises(ServerError, match=r"(?s)do not fit this run:\n  http://127.0.0.1:9 does not answer"):
        connect(GRPOConfig(), connections, RunFolder(tmp_path))


def test_a_pointer_says_which_transport_left_it(tmp_path: Path) -> None:
    import torch

    DiskTransport([], tmp_path, "float32").push([("a", torch.zeros(1))], 3)
    latest = json.loads((tmp_path / POINTER).read_text())
    assert (latest["transport"], latest["version"]) == ("disk", 3)
    assert TRANSPORTS[latest["transport"]].restore is not None


def test_a_pointer_of_an_older_version_restores_nothing(tmp_path: Path) -> None:
    (tmp_path / POINTER).write_text('{"version": 3, "path": "/dev/shm/gone.safetensors"}')
    assert restore(VLLMServer("http://127.0.0.1:9"), tmp_path) is None


def test_connections_travel_through_the_environment_with_their_transport() -> None:
    found = Connections.from_env(Connections(("http://a",), transport="lora", adapter_rank=4).to_env())
    assert TRANSPORTS[found.transport].adapters and TRANSPORTS[found.transport].backend is None
    assert TRANSPORTS[Connections().transport].backend == DISK
