"""Two real ranks on CPUs (gloo, fully_shard) against one: the same update, checkpoints that go both ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers import tiny_model
from learning.batches import ALONE, assert_same_step, critic_weights, update, update_critic, weights
from learning.rank_program import ADAM, PAIRS, STEPS, groups, learner, lonely_groups, model, pair
from postrl.launch.accelerate import trainer_command
from postrl.launch.placement import place
from postrl.launch.process import Supervisor
from postrl.learning.batch import make_batch
from postrl.learning.checkpoint import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]
DEADLINE = 900.0


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """The folder that the two ranks have filled."""
    folder = tmp_path_factory.mktemp("two")
    trained = learner(ALONE, **ADAM)
    update(trained, groups())
    save_checkpoint(folder / "of_one", 1, trained, {"version": 1}, keep=None)
    both = pair(ALONE)
    for _ in range(2):
        update_critic(both, groups())
    save_checkpoint(folder / "pair_of_one", 1, both, {"version": 1}, keep=None)
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


# -- the critic --------------------------------------------------------------------------------------------------------


def test_the_critic_of_two_ranks_is_that_of_one(two):
    alone = pair(ALONE)
    before = critic_weights(alone)
    norms = [norm for _ in range(2) for norm in update_critic(alone, groups()).grad_norms]
    assert_same_step(before, critic_weights(alone), load_file(two / "critic.safetensors"), rtol=1e-4)
    for found in left(two, "critic"):
        assert found == pytest.approx(norms, rel=1e-4)


def test_every_rank_has_all_values(two):
    alone = pair(ALONE)
    for _ in range(2):
        update_critic(alone, groups())
    expected = alone.critic.values(make_batch(groups(), 0, ALONE.device))
    assert expected.abs().max() > 0.01
    for found in left(two, "critic_values"):
        torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-5)


def test_checkpoints_of_a_critic_go_both_ways(two):
    for saved, after in (("pair_of_two", "after_pair_of_two"), ("pair_of_one", "after_pair_of_one")):
        alone = pair(ALONE)
        load_checkpoint(two / saved / "step_000001", alone)
        assert (alone.updates, alone.critic.updates) == (0, 4)
        before = critic_weights(alone)
        update_critic(alone, groups())
        assert_same_step(before, critic_weights(alone), load_file(two / f"{after}.safetensors"), rtol=1e-3)


def test_two_ranks_save_a_whole_critic(two):
    saved = load_file(two / "critic" / "model.safetensors")
    trained = load_file(two / "critic.safetensors")
    assert torch.equal(saved["score.weight"], trained["head.weight"])
    assert all(torch.equal(saved[name], tensor) for name, tensor in trained.items() if name != "head.weight")


def test_the_head_computes_in_float32_where_the_body_computes_in_bfloat16(two):
    for found in left(two, "critic_bfloat16"):
        values = torch.tensor(found)
        assert not torch.equal(values, values.bfloat16().float())


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
