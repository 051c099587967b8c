"""`postrl grpo --lora-rank` with the real vLLM CPU server: the adapter alone travels, and its name is the version."""

from __future__ import annotations

import pytest

from e2e.runs import SERVER_ENV, SMALL_SERVER, Finished, Workplace
from postrl.weights.disk import shared_folder

pytest.importorskip("vllm", reason="these tests need vLLM: make env installs its CPU build")
pytestmark = pytest.mark.slow

ADAPTED = ("--model", "tiny", "--dataset", "arithmetic", "--prompts-per-step", "2", "--num-generations", "4")
ADAPTED += ("--max-completion-length", "8", "--reward", "rewards.py:letters", "--learning-rate", "1e-2")
ADAPTED += ("--lora-rank", "4", *SMALL_SERVER, "--output-dir", "adapted")


@pytest.fixture(scope="module")
def trained(place: Workplace) -> list[Finished]:
    """Two steps, and one more after a resume, in the folder `adapted`."""
    return [
        place.start("grpo", *ADAPTED, *more, **SERVER_ENV).wait(900)
        for more in (("--max-steps", "2"), ("--max-steps", "3", "--resume"))
    ]


def server_log(place: Workplace) -> str:
    return (place.run("adapted").path / "logs" / "vllm_0.log").read_text()


def test_both_runs_end_well_and_leave_nothing(trained: list[Finished], place: Workplace) -> None:
    for finished in trained:
        assert (finished.code, finished.survivors) == (0, []), finished.err
    assert not shared_folder(place.run("adapted").path / "weights").exists()


def test_every_completion_has_the_version_of_its_steps_adapter(trained: list[Finished], place: Workplace) -> None:
    rows = place.run("adapted").rollouts()
    assert [row["step"] for row in rows] == [step for step in (1, 2, 3) for _ in range(8)]
    for row in rows:
        assert row["version_spans"] == [{"version": row["step"] - 1, "start": 0, "end": len(row["completion_ids"])}]


def test_server_and_learner_agree_on_the_log_probs_of_every_version(trained: list[Finished], place: Workplace) -> None:
    rows = place.run("adapted").metrics()
    assert [row["weights/version"] for row in rows] == [0.0, 1.0, 2.0]
    assert all(row["mismatch/max_abs"] < 1e-3 and row["policy/grad_norm"] > 0 for row in rows)


def test_adapters_are_loaded_the_first_and_the_resumed_included_and_no_full_push_is_made(
    trained: list[Finished], place: Workplace
) -> None:
    log = server_log(place)
    loaded = [name for name in ("policy-v0", "policy-v1", "policy-v2", "policy-perturbed") if f"name '{name}'" in log]
    assert loaded == ["policy-v0", "policy-v1", "policy-v2", "policy-perturbed"]
    assert '"POST /v1/load_lora_adapter' in log
    assert not [route for route in ("/update_weights", "/start_weight_update", "/pause") if f'"POST {route}' in log]


def test_the_model_is_the_adapter(trained: list[Finished], place: Workplace) -> None:
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in (place.run("adapted").path / "model").iterdir()
    }
