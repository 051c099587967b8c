"""Servers that the launcher has given up, as the learner and the worker see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from postrl.errors import ServerError
from postrl.run.connections import Connections
from postrl.servers.lost import forget_lost, give_up, in_use, run_servers

A, B = "http://127.0.0.1:8001", "http://127.0.0.1:8002"


def test_a_server_that_was_given_up_is_seen_by_everyone_at_once_with_the_reason(tmp_path: Path) -> None:
    servers = run_servers(Connections(server_urls=(A, B)), tmp_path / "weights")
    assert in_use(servers) == servers
    give_up(tmp_path / "weights", B, "vLLM server 1 ended with exit code 137 (SIGKILL)")
    assert [server.url for server in in_use(servers)] == [A]
    assert servers[1].lost == "vLLM server 1 ended with exit code 137 (SIGKILL)"
    with pytest.raises(ServerError, match=r"8002 was given up: vLLM server 1 ended"):
        servers[1].wait_until_healthy(60)


def test_when_none_is_left_the_reasons_are_told(tmp_path: Path) -> None:
    servers = run_servers(Connections(server_urls=(A, B)), tmp_path)
    give_up(tmp_path, A, "it froze")
    give_up(tmp_path, B, "it burned")
    with pytest.raises(ServerError, match=r"no vLLM server is left:\n  it froze\n  it burned"):
        in_use(servers)


def test_the_next_run_in_the_same_folder_starts_with_all(tmp_path: Path) -> None:
    servers = run_servers(Connections(server_urls=(A,)), tmp_path)
    give_up(tmp_path, A, "it froze")
    forget_lost(tmp_path)
    assert in_use(servers) == servers


def test_a_run_without_servers_has_lost_none() -> None:
    assert in_use([]) == []
