"""`postrl grpo --lora-rank` with the real vLLM CPU server: the adapter alone travels, and its name is the version.

The model is the one that another run saved: vLLM loads it. The launcher is killed in the third step, and the run resumed:
both start a server, since that none outlives them is tested too."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from e2e.conftest import SERVED_STEPS
from e2e.runs import SERVER_ENV, Finished, Workplace, wait_for
from postrl.weights.disk import shared_folder

pytest.importorskip("vllm", reason="these tests need vLLM: make env installs its CPU build")
pytestmark = pytest.mark.slow

ADAPTED = ("--model", "served/model", *SERVED_STEPS, "--lora-rank", "4", "--max-steps", "3", "--output-dir", "adapted")
IN_STEP_3 = str(2 * 2)
"""Reward calls before step 3: one a group."""


@pytest.fixture(scope="module")
def killed(served: Finished, place: Workplace) -> tuple[Finished, list[psutil.Process]]:
    """The end of a run whose launcher was killed in step 3, and which of its processes are left."""
    command = place.start("grpo", *ADAPTED, "--save-steps", "1", HOLD_AFTER_CALLS=IN_STEP_3, **SERVER_ENV)
    run = place.run("adapted")
    try:
        wait_for("step 2", lambda: (run.reached(2) and "step_000002" in run.checkpoints()) or command.ended())
        assert not command.ended(), command.said()
        family = command.descendants()
        assert command.only("EngineCore") in family
    finally:
        os.kill(command.process.pid, signal.SIGKILL)
    return command.wait(), psutil.wait_procs(family, timeout=30)[1]


@pytest.fixture(scope="module")
def trained(killed: object, place: Workplace) -> Finished:
    """The same run, resumed for its third step, in the folder `adapted`."""
    return place.start("grpo", *ADAPTED, "--resume", **SERVER_ENV).wait(900)


def server_log(place: Workplace) -> str:
    return (place.run("adapted").path / "logs" / "vllm_0.log").read_text()


def test_nothing_outlives_a_killed_launcher(killed: tuple[Finished, list[psutil.Process]]) -> None:
    finished, left = killed
    assert (finished.code, finished.survivors, left) == (-signal.SIGKILL, [], [])


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
    trained: Finished, place: Workplace
) -> None:
    log = server_log(place)
    loaded = [name for name in ("policy-v0", "policy-v1", "policy-v2", "policy-perturbed") if f"name '{name}'" in log]
    assert loaded == ["policy-v0", "policy-v1", "policy-v2", "policy-perturbed"]
    assert '"POST /v1/load_lora_adapter' in log
    assert not [route for route in ("/update_weights", "/start_weight_update", "/pause") if f'"POST {route}' in log]


def test_the_model_is_the_adapter(trained: Finished, place: Workplace) -> None:
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in (place.run("adapted").path / "model").iterdir()
    }
