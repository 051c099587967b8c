"""Servers that a run has given up: the launcher writes the reason into a file, and all who use servers look for it.

    RUN/weights/127.0.0.1-8000.lost         beside the lock of the same server

    servers = run_servers(connections, folder.weights)
    for server in in_use(servers): ...      # ServerError when none is left
    server.lost                             # why it was given up; "" while it is in use

A server that was given up does not come back within the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from postrl.errors import ServerError
from postrl.host.files import write_whole
from postrl.run.connections import Connections
from postrl.servers.client import VLLMServer


def server_file(folder: str | Path, url: str, kind: str) -> Path:
    """The file of one server in RUN/weights, such as `127.0.0.1-8000.lock`."""
    address = urlsplit(url)
    return Path(folder) / f"{address.hostname}-{address.port}.{kind}"


def run_servers(connections: Connections, folder: str | Path) -> list[VLLMServer]:
    """The servers of a run whose weights folder this is, in the order of their URLs; those given up among them."""
    return [
        VLLMServer(
            url, token=connections.token, lost_file=server_file(folder, url, "lost"), prioritises=connections.owned
        )
        for url in connections.server_urls
    ]


def in_use(servers: Sequence[VLLMServer]) -> list[VLLMServer]:
    """Those that were not given up.

    Raises:
        ServerError: there were some, and all are given up; the message has the reasons.
    """
    left = [server for server in servers if not server.lost]
    if servers and not left:
        raise ServerError("no vLLM server is left:\n  " + "\n  ".join(server.lost for server in servers))
    return left


def give_up(folder: str | Path, url: str, reason: str) -> None:
    """Tell everyone that a server is not waited for any more, and why."""
    path = server_file(folder, url, "lost")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, reason or "given up")


def forget_lost(folder: str | Path) -> None:
    """At the start of a run: what an earlier one gave up means nothing."""
    for path in Path(folder).glob("*.lost"):
        path.unlink(missing_ok=True)
