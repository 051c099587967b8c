"""`postrl grpo --engine vllm` with the real vLLM CPU server: versions, the saved model, and what is left after a death."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from e2e.runs import SERVER_ENV, SMALL_SERVER, Finished, Workplace, wait_for
from helpers import TURN_END, tiny_tokenizer
from postrl.rollout.store import read_rollouts
from postrl.weights.disk import shared_folder

pytest.importorskip("vllm", reason="these tests need vLLM: make env installs its CPU build")
pytestmark = pytest.mark.slow

STEPS = ("--dataset", "arithmetic", "--prompts-per-step", "2", "--num-generations", "4")
STEPS += ("--max-completion-length", "8", "--reward", "rewards.py:letters", "--learning-rate", "1e-2")


@pytest.fixture(scope="module")
def trained(place: Workplace) -> Finished:
    """Three steps of a base model with a chat template on a real server, in the folder `served`."""
    return place.start(
        "grpo", "--model", "base", *STEPS, *SMALL_SERVER, "--max-steps", "3", "--output-dir", "served",
        "--eval-dataset", "arithmetic:eval", "--eval-prompts", "8", **SERVER_ENV,
    ).wait(900)  # fmt: skip


def test_a_run_on_a_real_server_ends_well_and_leaves_no_process(trained: Finished) -> None:
    assert (trained.code, trained.survivors) == (0, []), trained.err


def test_every_token_was_sampled_from_the_weights_of_its_step(trained: Finished, place: Workplace) -> None:
    rows = place.run("served").rollouts()
    assert [row["step"] for row in rows] == [step for step in (1, 2, 3) for _ in range(8)]
    for row in rows:
        spans = row["version_spans"]
        assert spans == [{"version": row["step"] - 1, "start": 0, "end": len(row["completion_ids"])}]


def test_no_completion_goes_on_after_its_turn(trained: Finished, place: Workplace) -> None:
    folder = place.run("served").path / "rollouts"
    end = tiny_tokenizer().convert_tokens_to_ids(TURN_END)
    found = [
        r for file in folder.glob("*.parquet") for group in read_rollouts(file) for r in group.rollouts
        if end in r.completion_ids
    ]  # fmt: skip
    assert {rollout.finish_reason for rollout in found} == {"stop"}
    assert all(rollout.completion_ids.index(end) == len(rollout.completion_ids) - 1 for rollout in found)
    assert trained.err.count("completions of conversations end at <|im_end|>: the chat template") == 1


def test_server_and_learner_agree_on_the_log_probs_of_every_version(trained: Finished, place: Workplace) -> None:
    rows = [row for row in place.run("served").metrics() if row["step"] > 0]
    assert [row["weights/version"] for row in rows] == [0.0, 1.0, 2.0]
    assert all(row["mismatch/max_abs"] < 1e-3 for row in rows)
    assert all(row["policy/grad_norm"] > 0 for row in rows)


def test_the_weights_leave_nothing_in_shared_memory(trained: Finished, place: Workplace) -> None:
    assert not shared_folder(place.run("served").path / "weights").exists()


def test_nothing_outlives_a_killed_launcher(trained: Finished, place: Workplace) -> None:
    # The model is the one that the first run saved: vLLM loads it.
    command = place.start(
        "grpo", "--model", "served/model", *STEPS, *SMALL_SERVER, "--max-steps", "100000", "--output-dir", "hunted",
        **SERVER_ENV,
    )  # fmt: skip
    try:
        wait_for("the first step", lambda: place.run("hunted").reached(1) or command.ended(), 900)
        assert not command.ended(), command.said()
        family = command.descendants()
        assert command.only("EngineCore") in family
    finally:
        os.kill(command.process.pid, signal.SIGKILL)
    assert command.wait().survivors == []
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
