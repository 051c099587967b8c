"""`postrl grpo --engine vllm` with the real vLLM CPU server: versions, the saved model, and what is left after a death."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.runs import Command, Finished, Run, Workplace, wait_for

pytest.importorskip("vllm", reason="these tests need vLLM: make env installs its CPU build")

STEPS = ("--dataset", "arithmetic", "--engine", "vllm", "--prompts-per-step", "2", "--num-generations", "4")
STEPS += ("--max-completion-length", "8", "--reward", "rewards.py:letters", "--learning-rate", "1e-2")
SMALL_SERVER = ("--vllm-arg", "enforce-eager=true", "--max-model-len", "256", "--max-prompt-length", "200")
SMALL_SERVER += ("--vllm-arg", "max-num-batched-tokens=256")
"""The prompts of a step do not fit into one pass of the server: they must not be read in part (it would die of it)."""
SERVER_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture(scope="module")
def trained(place: Workplace) -> Finished:
    """Three steps on a real server, in the folder `served`."""
    return place.start(
        "grpo", "--model", "tiny", *STEPS, *SMALL_SERVER, "--max-steps", "3", "--output-dir", "served", **SERVER_ENV
    ).wait(900)


def rollouts(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return [row for path in sorted(folder.glob("rollouts/step_*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_a_run_on_a_real_server_ends_well_and_leaves_no_process(trained: Finished) -> None:
    assert (trained.code, trained.survivors) == (0, []), trained.err


def test_every_token_was_sampled_from_the_weights_of_its_step(trained: Finished, place: Workplace) -> None:
    rows = rollouts(place.run("served").path)
    assert [row["step"] for row in rows] == [step for step in (1, 2, 3) for _ in range(8)]
    for row in rows:
        spans = row["version_spans"]
        assert spans == [{"version": row["step"] - 1, "start": 0, "end": len(row["completion_ids"])}]


def test_server_and_learner_agree_on_the_log_probs_of_every_version(trained: Finished, place: Workplace) -> None:
    rows = place.run("served").metrics()
    assert [row["weights/version"] for row in rows] == [0.0, 1.0, 2.0]
    assert all(row["mismatch/max_abs"] < 1e-3 for row in rows)
    assert all(row["policy/grad_norm"] > 0 for row in rows)


def test_the_weights_leave_nothing_in_shared_memory(trained: Finished) -> None:
    assert not list(Path("/dev/shm").glob("postrl-served-*"))


def test_a_server_that_is_frozen_and_killed_comes_back_and_the_run_goes_on_until_the_launcher_dies(
    trained: Finished, place: Workplace
) -> None:
    # The model is the one that the first run saved: vLLM loads it.
    command = place.start(
        "grpo", "--model", "served/model", *STEPS, *SMALL_SERVER, "--max-steps", "100000", "--output-dir", "hunted",
        **SERVER_ENV,
    )  # fmt: skip
    try:
        watch_it_recover(command, place.run("hunted"))
        family = descendants(command)
    finally:
        os.kill(command.process.pid, signal.SIGKILL)
    assert command.wait().survivors == []
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive


def watch_it_recover(command: Command, run: Run) -> None:
    wait_for("the first step", lambda: run.reached(1) or ended(command), 900)
    assert not ended(command), command.said()
    api_server, engine = only(command, "vllm.entrypoints"), only(command, "EngineCore")
    api_server.send_signal(signal.SIGSTOP)
    api_server.kill()
    _, alive = psutil.wait_procs([api_server, engine], timeout=60)
    assert not alive, "the engine of a killed server must not outlive it"

    at_restart = max(run.steps())
    wait_for("steps on the restarted server", lambda: run.reached(at_restart + 3) or ended(command), 900)
    assert not ended(command), command.said()
    assert "was restarted" in command.said()
    for row in rollouts(run.path)[-8:]:
        assert {span["version"] for span in row["version_spans"]} == {row["step"] - 1}


def ended(command: Command) -> bool:
    return command.process.poll() is not None


def descendants(command: Command) -> list[psutil.Process]:
    """By parent, not by environment as `Command.family`: vLLM's engine writes its title over its environment. Nor by
    psutil's `children`, which leaves out processes that seem older than their parent: clocks of virtual machines jump."""
    parents = {process.pid: process.ppid() for process in psutil.process_iter()}
    found = {command.process.pid}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [psutil.Process(pid) for pid in found - {command.process.pid} if psutil.pid_exists(pid)]


def only(command: Command, name: str) -> psutil.Process:
    """The one process of the command that is called so."""
    found = {p: " ".join(p.cmdline()) for p in descendants(command)}
    named = [p for p, line in found.items() if name in line and "reaper" not in line]
    assert len(named) == 1, f"{sorted(found.values())}; the command said:\n{command.said()}"
    return named[0]
