from __future__ import annotations

import stat
from pathlib import Path

import pytest

from postrl.errors import UsageError
from postrl.launch import placement
from postrl.launch.placement import Placement, cuda_visible_devices, divide_cores, place, running_ranks, visible_gpus


@pytest.mark.parametrize(
    ("num_gpus", "wishes", "servers", "trainer"),
    [
        (8, {}, [[7]], [0, 1, 2, 3, 4, 5, 6]),
        (8, {"num_servers": 2, "tensor_parallel_size": 2}, [[4, 5], [6, 7]], [0, 1, 2, 3]),
        (8, {"num_servers": 4}, [[4], [5], [6], [7]], [0, 1, 2, 3]),
        (8, {"tensor_parallel_size": 4, "num_processes": 2}, [[4, 5, 6, 7]], [0, 1]),
        (8, {"num_servers": 0}, [], [0, 1, 2, 3, 4, 5, 6, 7]),
        (2, {}, [[1]], [0]),
        (1, {}, [[0]], [0]),
        (1, {"num_servers": 0}, [], [0]),
        (8, {"engine": "transformers"}, [], [0]),
        (8, {"engine": "transformers", "num_processes": 4}, [], [0, 1, 2, 3]),
        (8, {"running": 1}, [[7]], [0]),
        (8, {"running": 7}, [[7]], [0, 1, 2, 3, 4, 5, 6]),
        (8, {"running": 2, "num_servers": 2, "tensor_parallel_size": 3}, [[2, 3, 4], [5, 6, 7]], [0, 1]),
        (8, {"running": 8, "num_servers": 0}, [], [0, 1, 2, 3, 4, 5, 6, 7]),
        (8, {"running": 1, "engine": "transformers"}, [], [0]),
        (1, {"running": 1}, [[0]], [0]),
    ],
)
def test_gpus_are_divided_between_servers_and_trainer(
    num_gpus: int, wishes: dict[str, object], servers: list[list[int]], trainer: list[int]
) -> None:
    found = place(num_gpus, **{"engine": "vllm", **wishes})  # type: ignore[arg-type]
    assert found == Placement(servers, trainer, len(trainer), cpu=False)


@pytest.mark.parametrize(
    ("wishes", "servers", "ranks"),
    [
        ({}, [[]], 1),
        ({"num_servers": 2, "num_processes": 2}, [[], []], 2),
        ({"num_servers": 0}, [], 1),
        ({"engine": "transformers"}, [], 1),
        ({"running": 3}, [[]], 3),
    ],
)
def test_on_a_cpu_machine_nobody_has_a_device(wishes: dict[str, object], servers: list[list[int]], ranks: int) -> None:
    found = place(0, **{"engine": "vllm", **wishes})  # type: ignore[arg-type]
    assert found == Placement(servers, [], ranks, cpu=True)


@pytest.mark.parametrize(
    ("num_gpus", "wishes", "named"),
    [
        (
            8,
            {"num_servers": 2, "tensor_parallel_size": 4},
            ["num_servers x tensor_parallel_size = 2 x 4 = 8", "8 visible"],
        ),
        (4, {"num_servers": 8}, ["num_servers", "= 8 GPUs", "4 visible", "--vllm-server-url"]),
        (8, {"num_servers": 2, "num_processes": 7}, ["num_processes = 7", "num_servers", "--num-processes 6 or less"]),
        (1, {"num_processes": 2}, ["num_servers x tensor_parallel_size = 1 x 1 = 1"]),
        (2, {"engine": "transformers", "num_processes": 3}, ["num_processes = 3", "2 are visible"]),
        (
            8,
            {"running": 8},
            ["8 trainer ranks are running", "1 GPUs", "8 are visible", "--num_processes 7", "--vllm-server-url"],
        ),
        (1, {"running": 2, "num_servers": 0}, ["2 trainer ranks are running", "1 are visible", "--num_processes 1"]),
        (
            8,
            {"running": 1, "num_processes": 4},
            ["num_processes = 4", "in 1 process", "accelerate launch --num_processes 4"],
        ),
        (2, {"running": 2, "engine": "transformers"}, ["inside one trainer process", "2 are running", "engine='vllm'"]),
        (0, {"tensor_parallel_size": 2}, ["tensor_parallel_size = 2", "num_gpus = 0", "CUDA_VISIBLE_DEVICES"]),
    ],
)
def test_what_does_not_fit_names_both_settings_and_the_way_out(
    num_gpus: int, wishes: dict[str, object], named: list[str]
) -> None:
    with pytest.raises(UsageError) as error:
        place(num_gpus, **{"engine": "vllm", **wishes})  # type: ignore[arg-type]
    assert error.value.hint
    for words in named:
        assert words in str(error.value)


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize(("servers", "size"), [(1, 1), (1, 4), (2, 2), (0, 1)])
def test_no_server_of_a_script_gets_the_gpu_of_a_rank(ranks: int, servers: int, size: int) -> None:
    try:
        found = place(8, engine="vllm", num_servers=servers, tensor_parallel_size=size, running=ranks)
    except UsageError:
        assert ranks + servers * size > 8
    else:
        taken = [device for devices in found.server_devices for device in devices]
        assert len(taken) == servers * size and not {*taken} & {*range(ranks)}


def test_the_ranks_of_a_script_are_those_that_were_started_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert running_ranks() == 1
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert running_ranks() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert running_ranks() == 8


def test_a_server_that_shares_the_only_gpu_takes_less_memory_unless_told_how_much() -> None:
    shared, apart = place(1, engine="vllm"), place(2, engine="vllm")
    assert (shared.shared, apart.shared) == (True, False)
    assert shared.server_memory(0.9, default=0.9) == 0.4
    assert shared.server_memory(0.7, default=0.9) == 0.7
    assert apart.server_memory(0.9, default=0.9) == 0.9


@pytest.fixture
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_torch_is_a_cpu_build", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def fake_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.usefixtures("gpu_build")
@pytest.mark.parametrize(
    ("value", "count"), [("0,1,5", 3), ("GPU-1f2e, GPU-77aa", 2), ("", 0), ("-1", 0), ("0,-1,2", 1)]
)
def test_cuda_visible_devices_counts_as_cuda_reads_it(value: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == count


@pytest.mark.usefixtures("gpu_build")
def test_else_nvidia_smi_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = "echo 'GPU 0: H100 (UUID: GPU-1)'; echo '  MIG 1g.10gb Device 0: (UUID: MIG-2)'; echo 'GPU 1: H100 (UUID: GPU-3)'"
    fake_nvidia_smi(tmp_path, monkeypatch, listing)
    assert visible_gpus() == 2


@pytest.mark.usefixtures("gpu_build")
@pytest.mark.parametrize("script", ["exit 9", "exec sleep 60"])
def test_a_driver_that_fails_or_hangs_counts_as_no_gpu(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, script)
    assert visible_gpus(timeout=0.5) == 0


@pytest.mark.usefixtures("gpu_build")
def test_a_machine_without_nvidia_smi_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == 0


def test_a_cpu_build_of_torch_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement.metadata, "version", lambda name: "2.13.0+cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible_gpus() == 0


def test_a_childs_devices_are_named_as_ours_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-1f2e,7")
    assert cuda_visible_devices([1, 2]) == "GPU-1f2e,7"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert cuda_visible_devices([1, 2]) == "1,2"
    assert cuda_visible_devices([]) == ""


def test_servers_that_generate_while_the_trainer_trains_get_cores_of_their_own():
    def divided(servers: int, cores: int) -> tuple[list[list[int]], int | None]:
        placement = divide_cores(place(0, engine="vllm", num_servers=servers), list(range(cores)))
        return placement.server_cores, placement.trainer_cores

    assert divided(1, 2) == ([[1]], 1)
    assert divided(1, 8) == ([[4, 5, 6, 7]], 4)
    assert divided(2, 8) == ([[6, 7], [4, 5]], 4)
    assert divided(2, 4) == ([[3], [2]], 2)
    assert divided(2, 2) == ([], None), "too few: all share all"
    assert divided(0, 4) == ([], None)
    assert divide_cores(place(2, engine="vllm"), [0, 1, 2, 3]).server_cores == [], "GPUs need no cores"
