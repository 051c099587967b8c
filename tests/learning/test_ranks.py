"""Two real ranks on CPUs (gloo, fully_shard) against one: the same update, checkpoints that go both ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers import tiny_model
from learning.batches import ALONE, assert_same_step, update, weights
from learning.rank_program import ADAM, PAIRS, STEPS, groups, learner, lonely_groups, model
from postrl.launch.accelerate import trainer_command
from postrl.launch.placement import place
from postrl.launch.process import Supervisor
from postrl.learning.checkpoint import load_checkpoint, save_checkpoint

TESTS = Path(__file__).parents[1]
DEADLINE = 240.0


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """The folder that the two ranks have filled."""
    folder = tmp_path_factory.mktemp("two")
    trained = learner(ALONE, **ADAM)
    update(trained, groups())
    save_checkpoint(folder / "of_one", 1, trained, {"version": 1}, keep=None)
    command, env = trainer_command(
        folder, place(0, engine="vllm", num_processes=2), ["learning.rank_program", str(folder)], num_threads=1
    )
    with Supervisor() as children:
        child = children.start(
            "ranks", command, env={**env, "PYTHONPATH": str(TESTS)}, log_path=folder / "log", may_finish=True
        )
        code = child.wait(DEADLINE)
    assert code == 0, (folder / "log").read_text()[-4000:]
    return folder


def left(folder: Path, name: str) -> list:
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def initial() -> dict[str, torch.Tensor]:
    return weights(learner(ALONE))


@pytest.mark.parametrize("name", STEPS)
def test_the_update_of_two_ranks_is_that_of_one(two, initial, name):
    alone = learner(ALONE, **STEPS[name])
    report = update(alone, groups())
    # Later optimizer steps of a phase start from weights that differ by the rounding of the first.
    rtol = 1e-5 if report.optimizer_steps == 1 else 1e-4
    assert_same_step(initial, weights(alone), load_file(two / f"{name}.safetensors"), rtol=rtol)
    for norms in left(two, name):
        assert norms == pytest.approx(report.grad_norms, rel=rtol)


def test_a_rank_without_a_trainable_token_takes_part(two, initial):
    alone = learner(ALONE)
    update(alone, lonely_groups())
    assert_same_step(initial, weights(alone), load_file(two / "lonely.safetensors"))


def test_what_is_not_finite_on_one_rank_is_skipped_on_both(two, initial):
    assert left(two, "one_rank_breaks") == [[1, 1, 1], [1, 1, 1]]
    found = load_file(two / "one_rank_breaks.safetensors")
    assert all(torch.equal(tensor, initial[name]) for name, tensor in found.items())


def test_one_rank_continues_the_checkpoint_of_two(two):
    alone = learner(ALONE, **ADAM)
    load_checkpoint(two / "of_two" / "step_000001", alone)
    saved = weights(alone)
    update(alone, groups())
    # Adam divides by gradients that are near 0 for some weights, so steps are compared as a whole, not to the bit
    assert_same_step(saved, weights(alone), load_file(two / "after_of_two.safetensors"), rtol=1e-3)


def test_two_ranks_continue_the_checkpoint_of_one(two):
    alone = learner(ALONE, **ADAM)
    load_checkpoint(two / "of_one" / "step_000001", alone)
    saved = weights(alone)
    update(alone, groups())
    assert_same_step(saved, weights(alone), load_file(two / "after_of_one.safetensors"), rtol=1e-3)


def test_two_ranks_save_a_whole_model(two):
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(two / "model", dtype="auto")
    expected = load_file(two / "after_of_one.safetensors")
    assert {name: torch.equal(p, expected[name]) for name, p in loaded.named_parameters()} == dict.fromkeys(
        expected, True
    )


def test_a_forward_pass_in_bfloat16_leaves_the_weights_in_float32(two, initial):
    found = load_file(two / "bfloat16_scored.safetensors")
    assert {name: torch.equal(tensor, initial[name]) for name, tensor in found.items()} == dict.fromkeys(initial, True)
    updated = load_file(two / "bfloat16_updated.safetensors")
    assert {tensor.dtype for tensor in updated.values()} == {torch.float32}
    assert all(0 < (updated[name] - initial[name]).abs().max() < 2e-3 for name in initial)  # Adam's rate is 1e-3


def test_sharded_adapters_are_merged_and_saved(two):
    from peft import PeftModel

    merged = PeftModel.from_pretrained(model(), str(two / "adapter")).merge_and_unload()
    for name, tensor in load_file(two / "bfloat16_adapter.safetensors").items():
        torch.testing.assert_close(tensor, merged.get_parameter(name))
    assert not torch.equal(
        merged.model.layers[0].mlp.up_proj.weight, tiny_model(tie=False).model.layers[0].mlp.up_proj.weight
    )


def test_messages_and_counts_reach_both(two):
    assert left(two, "messages") == [[0, b"\0tokens\xff".hex(), 70_000]] * 2
    assert left(two, "sums") == [[[2.0, 2.0**54], [1.0, -1.0], []]] * 2


def test_one_rank_scores_what_two_score():
    """`score` is compared with the plain model in test_learner.py; here only that it needs no other rank."""
    assert [len(row) for row in learner(ALONE).score(PAIRS)] == [3, 2]
