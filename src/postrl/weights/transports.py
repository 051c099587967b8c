"""How weights reach vLLM servers: transports as rows of a table, each with what it needs and how it is built. No torch.

    transport_for(cpu=False, shared=False).build(ends)      NcclTransport

A new transport is its module in this folder and a row here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from postrl.config import GRPOConfig
from postrl.errors import ServerError
from postrl.run.connections import DISK, Connections
from postrl.run.folder import RunFolder
from postrl.servers.attach import attach_problems
from postrl.servers.client import VLLMServer
from postrl.servers.lost import run_servers
from postrl.weights import disk, lora, nccl
from postrl.weights.transport import Pause, WeightTransport


class Ends(NamedTuple):
    """What a transport is built between."""

    servers: list[VLLMServer]
    config: GRPOConfig
    folder: Path
    """RUN/weights."""
    dtype: str
    """In which the servers compute."""
    deadline: float
    """Seconds for which a server that is down is waited for."""
    peft_config: Any
    """Of the learner's adapter, if it has one."""

    @property
    def pause(self) -> Pause:
        return Pause.of(self.config.in_flight, self.config.request_timeout)


@dataclass(frozen=True, kw_only=True)
class Transport:
    """A way to bring weights to servers."""

    name: str
    fits: Callable[[bool, bool, int], bool]
    """(cpu, shared, adapter_rank) -> whether it is the one for such a run, see `transport_for`; the first that fits is."""
    build: Callable[[Ends], WeightTransport]
    backend: str | None = None
    """vLLM's name of the weight transfer that servers must be started with; None: any."""
    adapters: bool = False
    """The LoRA adapter travels alone, by a name for each version; False: all weights do."""
    resumes: bool = False
    """Its first push replaces all that a server holds, also of one that was left paused in the middle of another."""
    restore: Callable[[VLLMServer, dict[str, Any], float], None] | None = None
    """Bring a restarted server to what the pointer in RUN/weights names, within so many seconds; None: it gets weights
    with the next push alone."""


TRANSPORTS = {
    row.name: row
    for row in (
        Transport(
            name=lora.NAME,
            fits=lambda cpu, shared, rank: rank > 0,
            build=lambda e: lora.LoraTransport(
                e.servers, e.folder, e.dtype, peft_config=e.peft_config, max_staleness=e.config.max_staleness,
                server_deadline=e.deadline,
            ),
            adapters=True,
            restore=lora.restore,
        ),
        Transport(
            name="nccl",
            fits=lambda cpu, shared, rank: not (cpu or shared),  # it wants a GPU for each process
            build=lambda e: nccl.NcclTransport(e.servers, e.dtype, pause=e.pause),
            backend=nccl.BACKEND,
        ),
        Transport(
            name=disk.NAME,
            fits=lambda cpu, shared, rank: True,
            build=lambda e: disk.DiskTransport(e.servers, e.folder, e.dtype, server_deadline=e.deadline, pause=e.pause),
            backend=DISK,
            resumes=True,
            restore=disk.restore,
        ),
    )
}  # fmt: skip


def transport_for(*, cpu: bool, shared: bool = False, adapter_rank: int = 0) -> Transport:
    """The row of a run.

    Args:
        cpu: its servers run on CPUs.
        shared: a server has the GPU of a trainer's rank.
        adapter_rank: of the LoRA adapters that the servers hold by name; 0: none.
    """
    return next(row for row in TRANSPORTS.values() if row.fits(cpu, shared, adapter_rank))


def restore(server: VLLMServer, folder: str | Path, *, timeout: float = 600.0) -> int | None:
    """Bring a restarted server to the weights, or to all the adapters, that the pointer in `folder` names.

    Args:
        folder: RUN/weights.
        timeout: seconds to wait for the server's lock, and for it to load.

    Returns:
        The version that was published last; None if nothing was yet, and the server holds what it was started with.

    Raises:
        ServerError: the update failed, or the published file is gone.
    """
    pointer = Path(folder) / disk.POINTER
    if not pointer.exists():
        return None
    with disk.server_lock(pointer.parent, server, timeout):
        latest = json.loads(pointer.read_text(encoding="utf-8"))
        row = TRANSPORTS.get(latest.get("transport"))
        if row is None or row.restore is None:  # left in the folder by an older version
            return None
        row.restore(server, latest, timeout)
    return int(latest["version"])


def connect(
    config: GRPOConfig, connections: Connections, folder: RunFolder, peft_config: Any = None
) -> tuple[WeightTransport, list[VLLMServer]]:
    """The transport that the servers were started for, and the servers.

    Args:
        peft_config: of the learner's adapter, if it has one.

    Raises:
        ServerError: a foreign server that does not fit; all mismatches of all servers at once.
    """
    row, servers = TRANSPORTS[connections.transport], run_servers(connections, folder.weights)
    needs: dict[str, Any] = {
        "backend": row.backend,
        "adapters": (connections.adapter_rank, config.max_loras) if row.adapters else None,
        "resumes": row.resumes,
        "dtype": connections.server_dtype,
        "max_model_len": config.max_prompt_length + config.max_completion_length,
    }
    foreign = [] if connections.owned else servers
    if problems := [problem for server in foreign for problem in attach_problems(server, **needs)]:
        raise ServerError(
            "the vLLM servers that run already do not fit this run:\n  " + "\n  ".join(problems),
            hint="start them with `postrl serve` and the settings of this run (--print shows the command)",
        )
    deadline = config.server_start_timeout if connections.owned else 60.0
    ends = Ends(servers, config, folder.weights, connections.server_dtype, deadline, peft_config)
    return row.build(ends), servers
