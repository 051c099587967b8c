"""Runs `accelerate launch` for a run of ours: its store listens on the loopback interface alone, and which rank failed
first is written down.

    python -P -m postrl.launch.agent FAILURES_FILE accelerate.commands.launch --config_file ...

torchrun, which accelerate calls, opens its store on all interfaces, for anybody who can reach the machine to read and
write. Here a rendezvous of our own (`--rdzv_backend postrl`) gives the store a socket that is bound
to 127.0.0.1. The ranks are clients of that store and open none.
"""

from __future__ import annotations

import datetime
import json
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

from postrl.host.files import write_whole
from postrl.host.stopping import stay_blocked
from postrl.launch.ports import LOOPBACK

BACKEND = "postrl"
"""Name of the rendezvous."""
TIMEOUT = datetime.timedelta(minutes=10)


def main() -> None:
    failures, module = Path(sys.argv[1]), sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    stay_blocked()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(BACKEND, loopback_rendezvous)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ChildFailedError as error:
        write_failures(failures, error)
        raise


def loopback_rendezvous(parameters: Any) -> Any:
    """The one machine's rendezvous: torchrun's own static one, over a store that only this machine reaches."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    class LoopbackRendezvous(StaticTCPRendezvous):
        def get_backend(self) -> str:
            return BACKEND

    listening = socket.create_server((LOOPBACK, 0), backlog=1024)
    address = (LOOPBACK, listening.getsockname()[1])
    rendezvous = LoopbackRendezvous(
        *address, rank=0, world_size=1, run_id=parameters.run_id, timeout=int(TIMEOUT.total_seconds())
    )
    rendezvous._store = TCPStore(*address, 1, True, TIMEOUT, multi_tenant=True, master_listen_fd=listening.detach())
    return rendezvous


def write_failures(path: Path, error: Any) -> None:
    """The ranks that failed, in the order in which torchrun noticed it: [{"rank", "exit_code", "time"}]. -9: by signal 9."""
    found = [{"rank": rank, "exit_code": f.exitcode, "time": f.timestamp} for rank, f in error.failures.items()]
    write_whole(path, json.dumps(found))


if __name__ == "__main__":
    main()
