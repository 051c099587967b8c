"""Which GPU does what. Pure but for `visible_gpus`, which looks at the machine.

Devices are counted among those this process may see: 0 is the first entry of CUDA_VISIBLE_DEVICES where that is set.
The trainer gets the first GPUs and the servers the last ones, each server a contiguous block.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field, replace
from importlib import metadata

from postrl.config.engines import ENGINES
from postrl.errors import UsageError
from postrl.host.ranks import world_size

SHARED_GPU_MEMORY = 0.4
"""Share of a GPU for a vLLM server that has to share it with the trainer."""


@dataclass(frozen=True)
class Placement:
    """Where the processes of a run go.

    On a machine with one GPU, server and trainer share it (`shared`): the server's memory is fixed at its start, so
    it must leave the trainer enough (`server_memory`).
    """

    server_devices: list[list[int]]
    """One list of GPUs per vLLM server to start; empty lists on a CPU machine."""
    trainer_devices: list[int]
    """GPUs of the trainer, rank r on the r-th; empty on a CPU machine."""
    num_processes: int
    """Trainer ranks."""
    cpu: bool
    """No GPU is used."""
    server_cores: list[list[int]] = field(default_factory=list)
    """CPU cores of each server, where they are divided (see `divide_cores`); empty: all use all, in turns."""
    trainer_cores: int | None = None
    """How many are the trainer's then."""

    @property
    def shared(self) -> bool:
        """A server and the trainer use the same GPU."""
        return any(set(devices) & set(self.trainer_devices) for devices in self.server_devices)

    def server_memory(self, asked: float, default: float) -> float:
        """The `gpu_memory_utilization` to start servers with.

        What the user asked for; where they asked for nothing (`asked == default`) and a server shares the trainer's
        GPU, SHARED_GPU_MEMORY, since the default would leave the trainer nothing.
        """
        return min(asked, SHARED_GPU_MEMORY) if self.shared and asked == default else asked


def place(
    num_gpus: int,
    *,
    engine: str,
    num_servers: int = 1,
    tensor_parallel_size: int = 1,
    num_processes: int | None = None,
    running: int | None = None,
) -> Placement:
    """Divides the GPUs between vLLM servers and trainer ranks.

    Args:
        num_gpus: visible GPUs; 0 is a CPU machine.
        engine: of `ENGINES`: those with servers get GPUs for them, those inside the trainer have one rank.
        num_servers: vLLM servers to start; 0 when they run already.
        tensor_parallel_size: GPUs per server.
        num_processes: trainer ranks; None: every GPU the servers leave free, 1 on a CPU machine and for transformers.
        running: trainer ranks that run already, rank r on the r-th GPU: those of a script. None: they are to be started.

    Raises:
        UsageError: they do not fit, or other ranks run than the settings ask for.
    """
    servers = num_servers if ENGINES[engine].servers else 0
    if running is not None:
        _check_running(running, engine, num_processes)
        num_processes = running
    if num_gpus == 0:
        return _on_cpu(servers, tensor_parallel_size, num_processes)
    if num_gpus == 1 and servers == 1 and tensor_parallel_size == 1 and (num_processes or 1) == 1:
        return Placement([[0]], [0], 1, cpu=False)
    taken = servers * tensor_parallel_size
    ranks = num_processes or (1 if ENGINES[engine].embedded else num_gpus - taken)
    _check_gpus(num_gpus, taken, ranks, servers, tensor_parallel_size, running is not None)
    starts = range(num_gpus - taken, num_gpus, tensor_parallel_size) if taken else []
    server_devices = [list(range(start, start + tensor_parallel_size)) for start in starts]
    return Placement(server_devices, list(range(ranks)), ranks, cpu=False)


def _on_cpu(servers: int, tensor_parallel_size: int, num_processes: int | None) -> Placement:
    if servers and tensor_parallel_size > 1:
        raise UsageError(
            f"tensor_parallel_size = {tensor_parallel_size} needs as many GPUs for each vLLM server, and num_gpus = 0: "
            "none is visible",
            hint="set --tensor-parallel-size 1, or check nvidia-smi and CUDA_VISIBLE_DEVICES",
        )
    return Placement([[] for _ in range(servers)], [], num_processes or 1, cpu=True)


def divide_cores(placement: Placement, cores: list[int]) -> Placement:
    """On a CPU machine whose servers generate while the trainer trains: cores for each server, the rest for the trainer.

    Half of them go to the servers, at least one to each. With too few for that, all share all.
    """
    servers = len(placement.server_devices)
    each = max(1, len(cores) // (2 * servers)) if servers else 0
    if not placement.cpu or not servers or servers * each >= len(cores):
        return placement
    mine = [cores[len(cores) - (i + 1) * each : len(cores) - i * each] for i in range(servers)]
    return replace(placement, server_cores=mine, trainer_cores=len(cores) - servers * each)


def _check_gpus(num_gpus: int, taken: int, ranks: int, servers: int, tensor_parallel_size: int, running: bool) -> None:
    wanted = f"num_servers x tensor_parallel_size = {servers} x {tensor_parallel_size} = {taken} GPUs"
    if taken and taken >= num_gpus:
        raise UsageError(
            f"{wanted} leave none of the {num_gpus} visible for the trainer",
            hint="lower --num-servers or --tensor-parallel-size, or attach servers that run elsewhere with "
            "--vllm-server-url",
        )
    if taken + ranks > num_gpus:
        beside, left = f" beside {wanted}" if taken else "", num_gpus - taken
        asked = f"{ranks} trainer ranks are running, which need" if running else f"num_processes = {ranks} needs"
        start = f"start {left} of them (accelerate launch --num_processes {left})" if running else ""
        raise UsageError(
            f"{asked} as many GPUs{beside}, and {num_gpus} are visible",
            hint=(start or f"set --num-processes {left} or less")
            + (", or lower --num-servers" if servers > 1 else "")
            + (", or attach servers that run elsewhere with --vllm-server-url" if running and taken else ""),
        )


def _check_running(running: int, engine: str, num_processes: int | None) -> None:
    """Of a script the ranks are there when its settings are read."""
    if num_processes not in (None, running):
        raise UsageError(
            f"num_processes = {num_processes}, and the script runs in {running} process{'es' if running > 1 else ''}",
            hint=f"start it with `accelerate launch --num_processes {num_processes} SCRIPT`, or leave num_processes out",
        )
    if ENGINES[engine].embedded and running > 1:
        raise UsageError(
            f"engine = {engine} generates inside one trainer process, and {running} are running",
            hint="set engine='vllm', or start the script in one process",
        )


def running_ranks() -> int:
    """Trainer ranks of this script on this machine, as accelerate launch and torchrun say; 1 without them."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or world_size())


def visible_gpus(*, timeout: float = 10.0) -> int:
    """How many NVIDIA GPUs this process may use, without importing torch; 0 on a CPU machine.

    CUDA_VISIBLE_DEVICES counts where it is set, else `nvidia-smi -L`; one that does not answer within `timeout`
    seconds counts as none. A CPU build of torch can use none.
    """
    if _torch_is_a_cpu_build():
        return 0
    if (named := _named_devices()) is not None:
        return len(named)
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, encoding="utf-8", errors="replace", timeout=timeout, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def usable_cores() -> list[int]:
    """The CPU cores this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cuda_visible_devices(devices: list[int]) -> str:
    """The value of CUDA_VISIBLE_DEVICES with which a child sees only these devices of ours; "" hides all."""
    named = _named_devices()
    return ",".join(str(device) if named is None else named[device] for device in devices)


def _named_devices() -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES (indices or UUIDs) up to the first invalid one, as CUDA reads it."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    names: list[str] = []
    for name in (part.strip() for part in value.split(",")):
        if not name or name.startswith("-"):
            break
        names.append(name)
    return names


def _torch_is_a_cpu_build() -> bool:
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False
