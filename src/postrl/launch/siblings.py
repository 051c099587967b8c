"""The processes beside the trainer: vLLM servers and the rollout worker. Used by the launcher and by a script's train().

Both are watched by threads of their own, so that a script whose main thread trains keeps them up as the launcher does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from postrl.config import GRPOConfig
from postrl.config.engines import decided, engine_of
from postrl.console import note
from postrl.errors import ServerError, UsageError
from postrl.given import Given
from postrl.host.python import python
from postrl.host.stopping import STOP_SIGNALS
from postrl.launch.adapters import AdapterPlan, adapter_plan, for_running, without_lora
from postrl.launch.placement import Placement, divide_cores, place, usable_cores, visible_gpus
from postrl.launch.pool import Fall, ServerPool
from postrl.launch.process import ChildProcess, Supervisor
from postrl.launch.vllm import INSTALL_VLLM, server_dtype, vllm_distribution, vllm_pool
from postrl.launch.worker import WorkerProcess
from postrl.run.connections import TOKEN, Connections
from postrl.run.folder import RunFolder
from postrl.servers.client import VLLMServer
from postrl.servers.lost import forget_lost, give_up
from postrl.weights.disk import remove_weights
from postrl.weights.transports import TRANSPORTS, restore, transport_for

POLL = 0.1
"""Seconds between two looks at the children."""

SOCKET = "worker.sock"


def with_engine(config: GRPOConfig) -> GRPOConfig:
    """The config with `auto` decided: vllm where it is installed or a server is named, else transformers.

    Raises:
        UsageError: vllm is asked for and not installed, or nothing is to be trained.
    """
    if not engine_of(config).trains:
        raise UsageError(
            f"engine = {config.engine} trains no model, so a script's trainer cannot run it",
            hint="use `postrl grpo --engine simulated` or `postrl plan --simulate`, or another engine",
        )
    installed = vllm_distribution() is not None
    config = replace(config, engine=decided(config, installed=installed))
    if engine_of(config).servers and not installed and not config.vllm_server_url:
        raise UsageError(f"engine = {config.engine}, and vLLM is not installed", hint=INSTALL_VLLM)
    return config


def placement_of(config: GRPOConfig, *, running: int | None = None) -> Placement:
    """Where the processes of the run go on this machine; `running`: trainer ranks that run already, a script's."""
    placement = place(
        visible_gpus(),
        engine=engine_of(config).name,
        num_servers=0 if config.vllm_server_url else config.num_servers,
        tensor_parallel_size=config.tensor_parallel_size,
        num_processes=config.num_processes,
        running=running,
    )
    return divide_cores(placement, usable_cores()) if config.max_staleness else placement


@dataclass
class Siblings:
    """What runs beside the trainer."""

    connections: Connections
    worker: WorkerProcess | None = None
    pool: ServerPool | None = None

    def check(self) -> None:
        """Raises what a sibling that is lost left behind: its own error, else the end of its log."""
        if self.pool is not None:
            self.pool.check()
        if self.worker is not None:
            self.worker.check()


@contextlib.contextmanager
def siblings(
    config: GRPOConfig,
    folder: RunFolder,
    placement: Placement,
    *,
    model_path: str,
    given: Given | None = None,
    peft_config: Any = None,
) -> Iterator[Siblings]:
    """Start them, wait until they are ready, watch them, and end them with the block.

    Args:
        given: what a script brings, for the worker.
        peft_config: a script's peft.LoraConfig, in place of the --lora settings.

    Raises:
        PostrlError: a server or the worker cannot start; with its cause.
    """
    if not engine_of(config).servers:
        yield Siblings(Connections(model_path=model_path))
        return
    connections = Connections(
        server_urls=tuple(config.vllm_server_url),
        token=os.environ.get(TOKEN),
        owned=not config.vllm_server_url,
        server_dtype=server_dtype(config, placement.cpu),
        model_path=model_path,
    )
    adapters = adapter_plan(config, model_path, cpu=placement.cpu, peft_config=peft_config)
    adapters = for_running(adapters, config, [VLLMServer(u, token=connections.token) for u in connections.server_urls])
    with contextlib.ExitStack() as stack:
        try:
            around = _start(stack, config, folder, placement, connections, adapters, given)
        except ServerError as error:
            merged = without_lora(adapters, config, error)
            if merged is None:
                raise
            stack.close()  # what has started
            around = _start(stack, config, folder, placement, connections, merged, given)
        yield around


def _start(
    stack: contextlib.ExitStack,
    config: GRPOConfig,
    folder: RunFolder,
    placement: Placement,
    connections: Connections,
    adapters: AdapterPlan,
    given: Given | None,
) -> Siblings:
    """Servers, if none run already, and the worker; `stack` ends them."""
    if adapters.reason:
        folder.note(adapters.note())
    children = stack.enter_context(Supervisor())
    socket_dir = Path(tempfile.mkdtemp(prefix="postrl-"))  # in a TMPDIR that is short enough: host.limits.settle
    stack.callback(shutil.rmtree, socket_dir, True)
    transport = transport_for(cpu=placement.cpu, shared=placement.shared, adapter_rank=adapters.rank)
    connections = replace(
        connections,
        worker=f"unix:{socket_dir / SOCKET}",
        transport=transport.name,
        adapter_rank=adapters.rank,
    )
    forget_lost(folder.weights)
    pool, starting = None, None
    if connections.owned:
        note(f"starting vLLM: {len(placement.server_devices)} server(s); logs in {folder.logs}")
        pool = vllm_pool(
            config,
            placement,
            model=connections.model_path,
            log_dir=folder.logs,
            weights_dir=folder.weights,
            adapters=adapters,
        )
        stack.callback(remove_weights, folder.weights)  # a learner that was killed could not
        stack.callback(pool.stop)
        starting = ThreadPoolExecutor(1).submit(pool.start)
        while len(pool.urls) < pool.num_servers and not starting.done():
            time.sleep(POLL)
        connections = replace(connections, token=pool.token, server_urls=tuple(pool.urls))
    # The worker loads its data while the servers start: what is wrong with the data shows first.
    worker = WorkerProcess(
        lambda: _start_worker(children, folder, connections, given),
        folder,
        socket_dir / SOCKET,
        max_restarts=config.worker_restarts,
        frozen_after=config.server_frozen_timeout,
    )
    stack.callback(worker.end)  # before the children are stopped: it would start one of them again
    while starting is not None and not starting.done():
        worker.check()
        time.sleep(POLL)
    if pool is not None and starting is not None:
        starting.result()
        pool.expects_falls = folder.stop_requested
        pool.watch_in_background(lambda url: _resync(url, connections, folder), lambda fall: _tell(fall, folder))
    worker.wait_until_ready()
    worker.watch_in_background()
    return Siblings(connections, worker, pool)


def _start_worker(
    children: Supervisor, folder: RunFolder, connections: Connections, given: Given | None
) -> ChildProcess:
    env: dict[str, str | None] = {
        **connections.to_env(),
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }
    return children.start(
        "worker",
        [*python(), "-m", "postrl", "worker", str(folder.path)],
        env=env,
        log_path=folder.logs / "worker.log",
        stdin=given.dumps() if given else None,
        may_finish=True,
        block=STOP_SIGNALS,
    )


def _resync(url: str, connections: Connections, folder: RunFolder) -> None:
    """A restarted server gets the last published weights back, before anyone takes its tokens for current ones."""
    if TRANSPORTS[connections.transport].restore is None:
        folder.note(f"vLLM server {url} was restarted; it gets work again with the next push of weights")
        return
    version = restore(VLLMServer(url, token=connections.token), folder.weights)
    holds = "" if version is None else f" and holds weight version {version} again"
    folder.note(f"vLLM server {url} was restarted{holds}")


def _tell(fall: Fall, folder: RunFolder) -> None:
    """The person at the terminal hears of a fall; who waits for a server hears that it is given up."""
    if fall.given_up:
        give_up(folder.weights, fall.url, fall.why)
    why_up = "the run is stopping" if folder.stop_requested() else "--server-restarts"
    what_next = f"given up ({why_up})" if fall.given_up else "started again"
    folder.note(f"{fall.why}; it is {what_next}")
