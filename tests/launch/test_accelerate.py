"""`accelerate launch` really starts ranks here, on CPUs, with hostile files and variables around."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from postrl.launch.accelerate import trainer_command
from postrl.launch.placement import Placement, place, usable_cores
from postrl.launch.process import Supervisor

from .support import SLOW

RANK = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
# In one write: the ranks share the log, unbuffered.
sys.stdout.write(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: sum {total.item():g}, threads "
    f"{os.environ['OMP_NUM_THREADS']}, cpu {os.environ['ACCELERATE_USE_CPU']}, args {sys.argv[1:]}\\n")
dist.destroy_process_group()
"""
SEVEN_RANKS, BROKEN = "distributed_type: DEEPSPEED\nnum_processes: 7\nmixed_precision: fp8\n", "{{{ not yaml"


@pytest.fixture
def hostile_home(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path / "hf", tmp_path / "home" / ".cache" / "huggingface"):
        (folder / "accelerate").mkdir(parents=True)
        (folder / "accelerate" / "default_config.yaml").write_text(request.param)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name, value in {"RANK": "5", "WORLD_SIZE": "9", "ACCELERATE_USE_DEEPSPEED": "true", "PET_NNODES": "4"}.items():
        monkeypatch.setenv(name, value)


def start(children: Supervisor, folder: Path, num_processes: int, *args: str) -> Any:
    (folder / "rank_program.py").write_text(RANK)
    command, env = trainer_command(
        folder, place(0, engine="vllm", num_processes=num_processes), ["rank_program", *args], num_threads=3
    )
    return children.start(
        "trainer", command, env={**env, "PYTHONPATH": str(folder)}, log_path=folder / "log", may_finish=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("hostile_home", [SEVEN_RANKS], indirect=True, ids=["deepspeed"])
@pytest.mark.usefixtures("hostile_home")
def test_one_rank_starts_whatever_config_the_user_has(tmp_path: Path) -> None:
    with Supervisor() as children:
        trainer = start(children, tmp_path, 1, "a b")
        assert trainer.wait(SLOW) == 0
        assert trainer.log_tail() == ["rank 0 of 1: sum 1, threads 3, cpu true, args ['a b']"]


@pytest.mark.slow
@pytest.mark.parametrize("hostile_home", [BROKEN], indirect=True, ids=["broken"])
@pytest.mark.usefixtures("hostile_home")
def test_two_ranks_start_and_reach_each_other(tmp_path: Path) -> None:
    with Supervisor() as children:
        trainer = start(children, tmp_path, 2, "--x")
        assert trainer.wait(SLOW) == 0
        assert sorted(trainer.log_tail()) == [
            f"rank {r} of 2: sum 3, threads 3, cpu true, args ['--x']" for r in (0, 1)
        ]


def test_the_config_is_the_runs_own_and_the_command_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    command, env = trainer_command(tmp_path, Placement([[3]], [0, 1], 2, cpu=False), ["postrl", "learner", "RUN"])
    config = yaml.safe_load((tmp_path / "accelerate.yaml").read_text())
    assert command[command.index("--config_file") + 1] == str(tmp_path / "accelerate.yaml")
    assert command[-4:] == ["--module", "postrl", "learner", "RUN"]
    assert command[command.index("--num_cpu_threads_per_process") + 1] == str(max(1, len(usable_cores()) // 2))
    assert (config["num_processes"], config["use_cpu"], config["main_process_ip"]) == (2, False, "127.0.0.1")
    assert env["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert "ACCELERATE_USE_CPU" not in env


def test_variables_of_an_outer_launcher_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "environ", {"ACCELERATE_USE_FSDP": "true", "LOCAL_RANK": "3", "PET_NNODES": "2", "PATH": "/bin"}
    )
    _, env = trainer_command(tmp_path, place(0, engine="vllm"), ["postrl"])
    assert env == {
        "ACCELERATE_USE_FSDP": None,
        "LOCAL_RANK": None,
        "PET_NNODES": None,
        "CUDA_VISIBLE_DEVICES": "",
        "ACCELERATE_USE_CPU": "true",
        "OMP_WAIT_POLICY": "PASSIVE",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "PET_SIGNALS_TO_HANDLE": "SIGQUIT",
        "PET_RDZV_ENDPOINT": "127.0.0.1:0",
        "PYTHONFAULTHANDLER": "1",
    }
