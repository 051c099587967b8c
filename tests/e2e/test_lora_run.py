"""`postrl grpo --lora-rank` beside a real vLLM CPU server that runs already: the adapter alone travels, and its name is the
version. The launcher is killed in the third step, and the run resumed."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from e2e.runs import Command, Finished, Workplace, wait_for
from live_servers import Live
from postrl.weights.disk import shared_folder

pytestmark = pytest.mark.slow

ADAPTED = ("--model", "tiny", "--dataset", "arithmetic", "--reward", "rewards.py:letters", "--learning-rate", "1e-2")
ADAPTED += ("--prompts-per-step", "2", "--num-generations", "4", "--max-prompt-length", "200")
ADAPTED += ("--max-completion-length", "8", "--lora-rank", "4", "--max-steps", "3", "--output-dir", "adapted")
IN_STEP_3 = str(2 * 2)
"""Reward calls before step 3: one a group."""


def started(place: Workplace, live: Live, *flags: str, **env: str) -> Command:
    return place.start("grpo", *ADAPTED, "--vllm-server-url", live.server.url, *flags, **live.attaching(), **env)


@pytest.fixture(scope="module")
def log_before(adapter_server: Live) -> int:
    """Length of the server's log before the first of the two was started."""
    return len(adapter_server.log.read_text())


@pytest.fixture(scope="module")
def killed(place: Workplace, adapter_server: Live, log_before: int) -> tuple[Finished, list[psutil.Process]]:
    """The end of a run whose launcher was killed in step 3, and which of its processes are left."""
    command = started(place, adapter_server, "--save-steps", "1", HOLD_AFTER_CALLS=IN_STEP_3)
    run = place.run("adapted")
    try:
        wait_for("step 2", lambda: (run.reached(2) and "step_000002" in run.checkpoints()) or command.ended())
        assert not command.ended(), command.said()
        family = command.descendants()
    finally:
        os.kill(command.process.pid, signal.SIGKILL)
    return command.wait(), psutil.wait_procs(family, timeout=30)[1]


@pytest.fixture(scope="module")
def trained(killed: object, place: Workplace, adapter_server: Live) -> Finished:
    """The same run, resumed for its third step, in the folder `adapted`."""
    return started(place, adapter_server, "--resume").wait(900)


def test_nothing_but_the_server_outlives_a_killed_launcher(
    killed: tuple[Finished, list[psutil.Process]], adapter_server: Live
) -> None:
    finished, left = killed
    assert (finished.code, finished.survivors, left) == (-signal.SIGKILL, [], [])
    assert adapter_server.server.health(), "a server that is not the run's goes on"


def test_the_resumed_run_ends_well_and_leaves_nothing(trained: Finished, place: Workplace) -> None:
    assert (trained.code, trained.survivors) == (0, []), trained.err
    assert "step 3 of 3" in trained.err
    assert not shared_folder(place.run("adapted").path / "weights").exists()


def test_every_completion_has_the_version_of_its_steps_adapter(trained: Finished, place: Workplace) -> None:
    rows = place.run("adapted").rollouts()
    assert [row["step"] for row in rows] == [step for step in (1, 2, 3) for _ in range(8)]
    for row in rows:
        assert row["version_spans"] == [{"version": row["step"] - 1, "start": 0, "end": len(row["completion_ids"])}]


def test_server_and_learner_agree_on_the_log_probs_of_every_version(trained: Finished, place: Workplace) -> None:
    rows = place.run("adapted").metrics()
    assert [row["weights/version"] for row in rows] == [0.0, 1.0, 2.0]
    assert all(row["mismatch/max_abs"] < 1e-3 and row["policy/grad_norm"] > 0 for row in rows)


def test_adapters_are_loaded_the_first_and_the_resumed_included_and_no_full_push_is_made(
    trained: Finished, adapter_server: Live, log_before: int
) -> None:
    log = adapter_server.log.read_text()[log_before:]
    loaded = [name for name in ("policy-v0", "policy-v1", "policy-v2", "policy-perturbed") if f"name '{name}'" in log]
    assert loaded == ["policy-v0", "policy-v1", "policy-v2", "policy-perturbed"]
    assert '"POST /v1/load_lora_adapter' in log
    assert not [route for route in ("/update_weights", "/start_weight_update", "/pause") if f'"POST {route}' in log]


def test_the_model_is_the_adapter(trained: Finished, place: Workplace) -> None:
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in (place.run("adapted").path / "model").iterdir()
    }
