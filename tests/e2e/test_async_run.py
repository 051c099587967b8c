"""`postrl grpo --max-staleness 2` beside a real vLLM CPU server that runs already: the bound holds, and weights change under
what runs. With servers of its own, such a run is in test_faults.py."""

from __future__ import annotations

from collections import Counter

import pytest

from e2e.runs import Finished, Run, Workplace
from live_servers import Live

pytestmark = pytest.mark.slow

STEPS, PROMPTS, GROUP = 20, 4, 4
"""80 completions' prompts: one epoch of `arithmetic`."""


@pytest.fixture(scope="module")
def overlapping(place: Workplace, float32_server: Live) -> Finished:
    """An epoch on a real server: a tiny model trains faster than a server generates."""
    return place.start(
        "grpo", "--model", "tiny", "--dataset", "arithmetic", "--reward", "rewards.py:letters", "--learning-rate", "1e-3",
        "--vllm-server-url", float32_server.server.url, "--max-staleness", "2",
        "--prompts-per-step", str(PROMPTS), "--num-generations", str(GROUP), "--max-prompt-length", "100",
        "--max-completion-length", "150", "--output-dir", f"{float32_server.runs}/overlapping", **float32_server.attaching(),
    ).wait(900)  # fmt: skip


@pytest.fixture
def run(overlapping: Finished, float32_server: Live) -> Run:
    return Run(float32_server.runs / "overlapping")


def test_a_run_that_overlaps_ends_well(overlapping: Finished, run: Run) -> None:
    assert (overlapping.code, overlapping.survivors) == (0, []), overlapping.err
    assert run.steps() == list(range(1, STEPS + 1))
    assert "bottleneck: generation" in overlapping.err or "balanced" in overlapping.err


def test_every_prompt_of_the_epoch_is_trained_once(overlapping: Finished, run: Run) -> None:
    rows = run.rollouts()
    trained = Counter(row["prompt_id"] for row in rows if row["dropped"] is None)
    assert set(trained.values()) == {GROUP} and len(trained) == STEPS * PROMPTS


def test_no_trained_token_is_older_than_the_bound_and_weights_changed_under_some(
    overlapping: Finished, run: Run
) -> None:
    rows = run.rollouts()
    for row in rows:
        versions = [span["version"] for span in row["version_spans"]]
        assert row["step"] - 1 - min(versions) == row["staleness"] <= 2
        assert versions == sorted(set(versions)) and versions[-1] <= row["step"] - 1
        assert row["version_spans"][-1]["end"] == len(row["completion_ids"])
    assert max(row["staleness"] for row in rows) > 0
    assert any(len(row["version_spans"]) > 1 for row in rows), "no completion ran across a push"


def test_metrics_say_how_old_the_rollouts_are_and_who_waits(overlapping: Finished, run: Run) -> None:
    rows = run.metrics()
    for row in rows:
        assert row["rollout/staleness_max"] <= 2
        assert row["mismatch/missing_logps"] == 0
        assert row["throughput/rollout_tokens_per_s"] >= 0  # the last ones were generated before
        assert {"time/wait_for_rollouts", "time/samplers_idle", "rollout/queue_groups", "rollout/kv_cache_usage",
                "rollout/dropped_stale", "weights/push_s", "mismatch/ess"} <= row.keys()  # fmt: skip
    assert max(row["mismatch/max_abs"] for row in rows) > 1e-3, "stale rollouts differ from the learner"
