"""Starts the trainer ranks with `accelerate launch`, from a config file of the run's own.

Accelerate starts N ranks on CPUs only through its multi-GPU launcher (torchrun underneath); its `--cpu` starts one.
So the config always asks for that launcher, and `ACCELERATE_USE_CPU` tells the ranks that they are on CPUs. One rank
goes the same way: RANK, WORLD_SIZE and MASTER_PORT are always set. Sharding is ours (torch's fully_shard), so
accelerate's own FSDP stays off.
"""

from __future__ import annotations

import os
from pathlib import Path

from postrl.host.python import python
from postrl.launch.placement import Placement, cuda_visible_devices, usable_cores
from postrl.launch.ports import LOOPBACK

# What a torchrun, accelerate or scheduler around us may have left in the environment, and accelerate or torchrun
# would read.
_FOREIGN = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "PET_", "TORCHELASTIC_", "OMPI_", "PMI_")
_FOREIGN_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")

RENDEZVOUS = "postrl"
"""See `postrl.launch.agent`."""
FAILURES = "trainer.failures.json"
"""What that leaves in RUN/logs when ranks fail."""
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""The processes of a run are on one machine, and what they listen on has no authentication."""


def trainer_command(
    run_dir: str | Path, placement: Placement, module: list[str], *, num_threads: int | None = None
) -> tuple[list[str], dict[str, str | None]]:
    """Writes `RUN/accelerate.yaml` and returns argv and environment changes (for ChildProcess) of the trainer.

    The user's own accelerate config is never read, and accelerate's variables in the environment are removed.

    Args:
        run_dir: the run's folder.
        placement: ranks and devices.
        module: what every rank runs, as after `python -m`: ["postrl", "learner", "RUN"].
        num_threads: OMP threads per rank; default: the trainer's cores, shared by the ranks.
    """
    config_path = Path(run_dir) / "accelerate.yaml"
    config_path.write_text(_config(placement), encoding="utf-8")
    cores = placement.trainer_cores or len(usable_cores())
    threads = num_threads or max(1, cores // placement.num_processes)
    failures = Path(run_dir) / "logs" / FAILURES
    command = [*python(), "-m", "postrl.launch.agent", str(failures)]
    command += ["accelerate.commands.launch", "--config_file", str(config_path)]
    command += ["--num_processes", str(placement.num_processes), "--num_machines", "1", "--rdzv_backend", RENDEZVOUS]
    command += ["--main_process_port", "0", "--num_cpu_threads_per_process", str(threads), "--module", *module]
    return command, _environment(placement)


def _config(placement: Placement) -> str:
    import yaml

    settings = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "num_machines": 1,
        "num_processes": placement.num_processes,
        "machine_rank": 0,
        "main_process_ip": LOOPBACK,
        "main_process_port": 0,  # the rendezvous takes a free one
        "rdzv_backend": RENDEZVOUS,
        "same_network": True,
        "gpu_ids": "all",
        "mixed_precision": "no",
        "use_cpu": placement.cpu,
        "debug": False,
        "enable_cpu_affinity": False,
    }
    note = "# Written by postrl for this run. MULTI_GPU names the launcher that starts several ranks, on CPUs too.\n"
    return note + yaml.safe_dump(settings, sort_keys=False)


def _environment(placement: Placement) -> dict[str, str | None]:
    foreign = [name for name in os.environ if name.startswith(_FOREIGN) or name in _FOREIGN_NAMES]
    changes: dict[str, str | None] = dict.fromkeys(foreign)
    changes |= ON_LOOPBACK
    # The launcher alone decides about signals; with handlers for them torchrun would end the ranks, and ranks under nohup
    # would not know of it.
    changes["PET_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    changes["PET_RDZV_ENDPOINT"] = f"{LOOPBACK}:0"  # not used by our rendezvous, but torchrun warns without it
    changes["PYTHONFAULTHANDLER"] = "1"  # a crash in native code leaves the line of Python it came from in the log
    changes["CUDA_VISIBLE_DEVICES"] = cuda_visible_devices(placement.trainer_devices)
    if placement.cpu:
        changes["ACCELERATE_USE_CPU"] = "true"
        if "OMP_WAIT_POLICY" not in os.environ:
            # Threads that spin while they wait take the core from a server, a worker or a browser that has work to do:
            # beside a busy process, matrix products were three times slower.
            changes["OMP_WAIT_POLICY"] = "PASSIVE"
    return changes
