"""`postrl grpo --replay RUN`: the whole path from stored rollouts to metrics, the same however the work is cut."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from helpers import tiny_model_dir
from learning.batches import make_groups
from postrl import GRPOConfig, GRPOTrainer, PostrlError
from postrl.learning.checkpoint import checkpoints
from postrl.rollout.store import read_rollouts, write_rollouts
from postrl.run.metrics import meaning
from postrl.types import Group

STEPS = 5
DEADLINE = 900.0
SETTINGS: dict[str, Any] = {
    "max_completion_length": 16,
    "learning_rate": 1e-3,
    "prompts_per_step": 4,
    "num_generations": 4,
}


def step_groups(step: int) -> list[Group]:
    """One group is all alike, one rollout could not be scored, one was dropped."""
    groups = make_groups(seed=step)
    for rollout in groups[1].rollouts:
        rollout.reward = 1.0
    groups[2].rollouts[0].reward = None
    groups[3].rollouts[1].dropped = "stale"
    return groups


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a model and a stored run of five steps."""
    folder = tmp_path_factory.mktemp("replay")
    tiny_model_dir(folder / "tiny", tie=False)
    for step in range(1, STEPS + 1):
        write_rollouts(folder / "stored" / "rollouts", step, "train", step_groups(step))
    return folder


def trainer(place: Path, name: str, *, stored: str = "stored", callbacks: Any = None, **options: Any) -> GRPOTrainer:
    settings = {**SETTINGS, "output_dir": str(place / name), "replay": str(place / stored), **options}
    return GRPOTrainer(model=str(place / "tiny"), args=GRPOConfig(**settings), callbacks=callbacks)


def metrics(place: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / name / "metrics.jsonl").read_text().splitlines()]


def losses(place: Path, name: str) -> list[float]:
    found = [row["policy/loss"] for row in metrics(place, name)]
    assert len(found) == STEPS
    return found


# -- the same losses however it is cut ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_ranks(place) -> Path:
    """`postrl grpo` with one rank and with two, side by side."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    running = {
        n: subprocess.Popen(
            [sys.executable, "-m", "postrl", "grpo", "--model", "tiny", "--replay", "stored", "--engine", "transformers",
             *flags, "--num-processes", str(n), "--output-dir", f"ranks{n}"],
            cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for n in (1, 2)
    }  # fmt: skip
    try:
        for n, process in running.items():
            out, _ = process.communicate(timeout=DEADLINE)
            assert process.returncode == 0, f"{n} rank(s): {out}"
    finally:
        for process in running.values():
            process.kill()
    return place


@pytest.fixture(scope="module")
def alone(place) -> Path:
    trainer(place, "alone").train()
    return place


@pytest.mark.slow
def test_one_rank_and_two_have_the_same_losses(by_ranks, alone):
    expected = losses(alone, "alone")
    assert len(set(expected)) == STEPS
    for name in ("ranks1", "ranks2"):
        assert losses(by_ranks, name) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_two_ranks_report_what_one_reports(by_ranks, alone):
    for one, two in zip(metrics(alone, "alone"), metrics(by_ranks, "ranks2"), strict=True):
        assert one.keys() == two.keys()
        for name in one:
            if not name.startswith(("time/", "throughput/", "memory/")):
                assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-4), name


@pytest.mark.slow
def test_two_ranks_end_with_the_same_model_and_checkpoint(by_ranks, alone):
    before, one, two = (
        load_file(alone / name / "model.safetensors") for name in ("tiny", "alone/model", "ranks2/model")
    )
    for name in one:
        step = (one[name] - before[name]).norm()
        assert (two[name] - one[name]).norm() < 0.02 * step, name  # Adam's steps where gradients are near 0
    assert [path.name for path in checkpoints(by_ranks / "ranks2" / "checkpoints")] == [f"step_{STEPS:06d}"]


@pytest.mark.parametrize("max_tokens", [16, 50])
def test_the_size_of_a_micro_batch_does_not_show_in_the_losses(alone, max_tokens):
    trainer(alone, f"micro{max_tokens}", max_tokens_per_microbatch=max_tokens).train()
    assert losses(alone, f"micro{max_tokens}") == pytest.approx(losses(alone, "alone"), rel=1e-4, abs=1e-4)


# -- what a run leaves -------------------------------------------------------------------------------------------------


def test_every_metric_has_a_meaning(alone):
    assert [name for row in metrics(alone, "alone") for name in row if meaning(name) is None] == []


def test_a_step_is_counted_by_hand(alone):
    groups, row = step_groups(1), metrics(alone, "alone")[0]
    kept = [r for g in groups for r in g.rollouts if r.dropped is None]
    scored = [r.reward for r in kept if r.reward is not None]
    assert row["step"] == 1
    assert row["reward/mean"] == pytest.approx(sum(scored) / len(scored))
    assert row["tokens/completion"] == sum(len(r.completion_ids) for r in kept)
    assert row["completion/length_max"] == max(len(r.completion_ids) for r in kept)
    assert row["completion/truncated_frac"] == pytest.approx(sum(r.finish_reason == "length" for r in kept) / len(kept))
    assert row["group/zero_std_frac"] == 0.25
    assert (row["policy/nonfinite"], row["policy/lr"], row["weights/version"]) == (0.0, 1e-3, 0.0)
    assert [r["weights/version"] for r in metrics(alone, "alone")] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_rollouts_are_stored_with_advantages_the_dropped_ones_too(alone):
    found = read_rollouts(alone / "alone" / "rollouts" / "step_000002.parquet")
    assert [len(group.rollouts) for group in found] == [4, 4, 4, 4]
    assert found[3].rollouts[1].dropped == "stale"
    assert [rollout.staleness for rollout in found[0].rollouts] == [1, 1, 1, 1]  # version 1 trains tokens of version 0
    first = [rollout.advantage for rollout in found[0].rollouts]
    assert first == pytest.approx([-0.866, 0.866, -0.866, 0.866], abs=1e-3)  # rewards 0, 1, 0, 1: mean 1/2, std 0.577
    assert {rollout.advantage for rollout in found[1].rollouts} == {0.0}


def test_a_replayed_run_can_be_replayed(alone):
    trainer(alone, "again", stored="alone").train()
    assert losses(alone, "again") == losses(alone, "alone")


def test_a_run_continues_from_its_checkpoint_to_the_bit(alone):
    trainer(alone, "resumed", max_steps=3).train()
    trainer(alone, "resumed").train(resume_from_checkpoint=True)
    assert losses(alone, "resumed") == losses(alone, "alone")
    whole, resumed = (load_file(alone / name / "model" / "model.safetensors") for name in ("alone", "resumed"))
    assert {name: torch.equal(tensor, whole[name]) for name, tensor in resumed.items()} == dict.fromkeys(whole, True)


def test_an_older_checkpoint_can_be_continued_and_the_later_ones_are_put_aside(alone):
    trainer(alone, "older", save_steps=1, save_total_limit=None).train()
    folder = alone / "older" / "checkpoints"
    assert len(checkpoints(folder)) == STEPS
    trainer(alone, "older", max_steps=3, save_total_limit=None).train(resume_from_checkpoint=folder / "step_000002")
    assert [path.name for path in checkpoints(folder)] == ["step_000001", "step_000002", "step_000003"]
    assert [row["step"] for row in metrics(alone, "older")] == [1, 2, 3]
    assert len(list((alone / "older" / "abandoned").glob("*/step_*.parquet"))) == 3


# -- callbacks ---------------------------------------------------------------------------------------------------------


def test_a_callback_that_asks_for_an_end_gets_it_after_the_step_saved(place):
    class Stop(TrainerCallback):
        seen: list[str]

        def on_train_begin(self, args, state, control, **kwargs):
            self.seen = [f"begin {state.max_steps}"]

        def on_step_end(self, args, state, control, **kwargs):
            self.seen.append(f"step {state.global_step}")
            control.should_training_stop = state.global_step == 2

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.seen.append(f"log {logs['step']}")

        def on_save(self, args, state, control, **kwargs):
            self.seen.append("save")

        def on_train_end(self, args, state, control, **kwargs):
            self.seen.append("end")

    stop = Stop()
    last = trainer(place, "stopped", callbacks=[stop]).train()
    assert stop.seen == ["begin 5", "step 1", "log 1", "step 2", "log 2", "save", "log 2", "end"]
    assert last["step"] == 2
    assert [path.name for path in checkpoints(place / "stopped" / "checkpoints")] == ["step_000002"]
    assert (place / "stopped" / "model" / "model.safetensors").exists()


def test_a_callback_that_asks_for_a_checkpoint_gets_one(place):
    class Save(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = state.global_step == 1

    trainer(place, "saved", callbacks=[Save], max_steps=2, save_steps=0).train()
    assert [path.name for path in checkpoints(place / "saved" / "checkpoints")] == ["step_000001", "step_000002"]


# -- numbers that are none ---------------------------------------------------------------------------------------------


def test_updates_that_are_not_finite_are_skipped_kept_and_end_the_run(place):
    for step in range(1, STEPS + 1):
        groups = make_groups(seed=step)
        if step >= 2:
            groups[0].rollouts[0].reward = math.inf
        write_rollouts(place / "infinite" / "rollouts", step, "train", groups)
    with pytest.raises(PostrlError, match="not finite in 3 updates in a row, at step 4") as caught:
        trainer(place, "broken", stored="infinite", save_steps=1).train()
    assert str(place / "broken" / "rollouts") in caught.value.hint
    rows = metrics(place, "broken")
    assert [row["policy/nonfinite"] for row in rows] == [0.0, 1.0, 1.0, 1.0]
    assert rows[3]["policy/loss"] is None
    assert [len(read_rollouts(place / "broken" / "rollouts" / f"step_00000{n}.parquet")) for n in (2, 3, 4)] == [
        4,
        4,
        4,
    ]
    assert [path.name for path in checkpoints(place / "broken" / "checkpoints")] == ["step_000002", "step_000003"]
