"""The processes beside the trainer, watched while the main thread does something else, as in a script's train()."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from helpers import tiny_model_dir
from postrl.config import GRPOConfig
from postrl.errors import ChildError, UsageError, WaitTimeout
from postrl.launch.placement import place
from postrl.launch.pool import Fall
from postrl.launch.siblings import _tell, placement_of, siblings, with_engine
from postrl.launch.worker import WorkerProcess
from postrl.run.connections import Connections
from postrl.run.folder import RunFolder
from postrl.servers.lost import in_use, run_servers
from postrl.worker.source import RemoteSource


def kill(worker: WorkerProcess | None) -> None:
    assert worker is not None and worker.process.main_pid is not None
    os.kill(worker.process.main_pid, signal.SIGKILL)


def test_a_killed_worker_is_back_when_it_is_asked_until_its_last_restart(tmp_path: Path) -> None:
    model, folder = tiny_model_dir(tmp_path / "model"), RunFolder(tmp_path / "run")
    config = GRPOConfig(
        model=str(model), dataset=["arithmetic"], engine="vllm", vllm_server_url=["http://127.0.0.1:9"],
        output_dir=str(folder.path), worker_restarts=1,
    )  # fmt: skip
    folder.prepare(config)
    placement = place(0, engine="vllm", num_servers=0, tensor_parallel_size=1, num_processes=1)
    with siblings(config, folder, placement, model_path=str(model)) as around:
        source = RemoteSource(around.connections.worker or "", config)
        position, _ = source.state()
        kill(around.worker)
        source.load_state(position, [])
        assert source.restarts == 1
        assert source.state() == (position, [])
        kill(around.worker)
        with pytest.raises(WaitTimeout, match="nothing will answer"):
            source.load_state(position, [])
        with pytest.raises(ChildError, match=r"(?s)worker ended with exit code 137 .*\(restarted 1 times"):
            around.check()


def test_a_server_that_is_given_up_is_noted_and_the_others_are_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    servers = run_servers(Connections(server_urls=("http://127.0.0.1:8001", "http://127.0.0.1:8002")), folder.weights)
    _tell(Fall("http://127.0.0.1:8002", "vLLM server 1 froze", given_up=False), folder)
    assert in_use(servers) == servers
    _tell(Fall("http://127.0.0.1:8002", "vLLM server 1 froze", given_up=True), folder)
    assert in_use(servers) == servers[:1]
    assert (folder.logs / "notes.log").read_text().splitlines() == [
        "vLLM server 1 froze; it is started again",
        "vLLM server 1 froze; it is given up (--server-restarts)",
    ]


@pytest.mark.parametrize("engine", ["auto", "vllm"])
def test_stored_rollouts_need_no_vllm(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postrl.launch.siblings.vllm_distribution", lambda: None)
    monkeypatch.setattr("postrl.launch.siblings.visible_gpus", lambda: 2)
    placement = placement_of(with_engine(GRPOConfig(engine=engine, replay="runs/old")))
    assert (placement.server_devices, placement.trainer_devices) == ([], [0, 1])
    with pytest.raises(UsageError, match="vLLM is not installed"):
        with_engine(GRPOConfig(engine="vllm"))
