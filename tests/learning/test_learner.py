"""The update on replayed rollouts, one rank: independent of how it is cut, safe against bad numbers and full memory."""

from __future__ import annotations

import math

import pytest
import torch

from helpers import tiny_model, tiny_tokenizer
from learning.batches import assert_same_step, make_groups, make_learner, prepared, settings, update, weights
from postrl.config import GRPOConfig
from postrl.errors import PostrlError
from postrl.learning.loading import with_lora
from postrl.learning.optimizing import MAX_NONFINITE

# -- the promise: the update does not depend on how it is cut ----------------------------------------------------------


def step_of(max_tokens: int, **options):
    learner = make_learner(tiny_model(tie=False), settings(max_tokens_per_microbatch=max_tokens, **options))
    report = update(learner, make_groups())
    return weights(learner), report


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"])
def test_gradients_are_the_same_for_any_micro_batch_size(aggregation):
    before = weights(make_learner(tiny_model(tie=False), settings()))
    whole, whole_report = step_of(4096, loss_aggregation=aggregation)
    for max_tokens in (16, 60):
        cut, report = step_of(max_tokens, loss_aggregation=aggregation)
        assert_same_step(before, whole, cut)
        assert report.grad_norms == pytest.approx(whole_report.grad_norms, rel=1e-5)
        assert report.tokens == whole_report.tokens
        for name, (value, count) in whole_report.metrics.items():
            assert float(report.metrics[name][0]) == pytest.approx(float(value), rel=1e-4, abs=1e-5), name
            assert float(report.metrics[name][1]) == float(count), name


def test_minibatches_and_iterations_are_cut_alike():
    """Two passes of two optimizer steps with the KL to the reference: every later step depends on all before it."""
    found = []
    for max_tokens in (4096, 30):
        config = settings(
            max_tokens_per_microbatch=max_tokens, minibatches=2, num_iterations=2, beta=0.1, learning_rate=0.05
        )
        learner = make_learner(tiny_model(tie=False), config, reference=tiny_model(tie=False))
        report = update(learner, make_groups())
        assert (report.optimizer_steps, len(report.grad_norms), learner.updates) == (4, 4, 4)
        found.append(weights(learner))
    assert_same_step(weights(make_learner(tiny_model(tie=False), settings())), *found, rtol=1e-4)


def test_the_first_pass_has_ratio_one_and_no_kl():
    learner = make_learner(tiny_model(), settings(beta=0.1, minibatches=2), reference=tiny_model())
    batch, _ = prepared(learner, make_groups())
    torch.testing.assert_close(batch.prox_BT, batch.ref_BT)
    assert torch.equal(batch.prox_BT != 0, batch.mask_BT)


def test_a_batch_without_anything_trainable_changes_nothing():
    groups = make_groups()
    for rollout in (r for group in groups for r in group.rollouts):
        rollout.reward = None
    learner = make_learner(tiny_model(), settings())
    before = weights(learner)
    report = update(learner, groups)
    assert report.optimizer_steps == report.skipped == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())


def test_dropped_rollouts_are_not_trained_on():
    groups, fewer = make_groups(), make_groups()
    for kept, group in zip(fewer, groups, strict=True):
        group.rollouts[1].dropped = "stale"
        del kept.rollouts[1]
    one, other = (make_learner(tiny_model(tie=False), settings()) for _ in range(2))
    before = weights(one)
    update(one, groups)
    update(other, fewer)
    assert_same_step(before, weights(one), weights(other), rtol=0)


def test_the_step_is_the_gradient_scaled_down_to_the_norm():
    learner, clipped = (make_learner(tiny_model(), settings(max_grad_norm=norm)) for norm in (0.0, 0.01))
    before = weights(learner)
    norm = update(learner, make_groups()).grad_norms[0]
    assert update(clipped, make_groups()).grad_norms[0] == pytest.approx(norm)
    assert norm > 0.01
    moved = math.sqrt(sum(float((t - before[name]).double().square().sum()) for name, t in weights(clipped).items()))
    assert moved == pytest.approx(0.01, rel=1e-4)


def test_the_learning_rate_of_a_step_follows_the_schedule():
    learner = make_learner(tiny_model(), settings(lr_scheduler_type="linear", warmup_steps=1), total_updates=3)
    assert [update(learner, make_groups()).lr for _ in range(3)] == [0.0, 1.0, 0.5]


# -- numbers that are none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_skipped_and_counted(bad):
    learner = make_learner(tiny_model(), settings())
    before = weights(learner)
    report = update(
        learner, make_groups(), spoil=lambda loss, metrics: (loss, {**metrics, "policy/loss": (torch.tensor(bad), 1)})
    )
    assert (report.skipped, report.optimizer_steps, report.grad_norms) == (1, 1, [])
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())
    assert all(p.grad is None for p in learner.policy.parameters())


def test_a_gradient_that_is_not_finite_is_skipped_and_a_good_step_ends_the_count():
    learner = make_learner(tiny_model(), settings())
    before = weights(learner)
    for _ in range(MAX_NONFINITE - 1):
        assert update(learner, make_groups(), spoil=lambda loss, metrics: (loss * math.inf, metrics)).skipped == 1
    assert learner.nonfinite_in_a_row == MAX_NONFINITE - 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())
    assert update(learner, make_groups()).skipped == 0
    assert learner.nonfinite_in_a_row == 0


# -- full memory -------------------------------------------------------------------------------------------------------


def raise_out_of_memory(learner, *, at: set[int], backward: bool = False) -> None:
    """Forward (or backward) passes number `at` (from 0) run out of memory in the last layer."""
    passes = iter(range(1000))

    def hook(*_):
        if next(passes) in at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    layer = learner.policy.causal_lm.model.layers[-1]
    (layer.register_full_backward_hook if backward else layer.register_forward_hook)(hook)


def test_out_of_memory_halves_the_budget_and_makes_the_same_update():
    config = settings(max_tokens_per_microbatch=60)
    calm, hit = (make_learner(tiny_model(tie=False), config) for _ in range(2))
    before = weights(calm)
    raise_out_of_memory(hit, at={2})  # two micro-batches have left their gradients by then
    calm_report, report = update(calm, make_groups()), update(hit, make_groups())
    assert hit.max_tokens == 30
    assert_same_step(before, weights(calm), weights(hit))
    assert report.tokens == calm_report.tokens
    assert float(report.metrics["policy/loss"][0]) == pytest.approx(
        float(calm_report.metrics["policy/loss"][0]), rel=1e-4
    )


@pytest.fixture
def group_of_one():
    """A sharded learner makes a process group for itself; it is ended after the test."""
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("passes", ["forward", "backward"])
@pytest.mark.usefixtures("group_of_one")
def test_out_of_memory_in_a_sharded_learner_leaves_no_gradient_of_the_first_try(passes):
    """fully_shard keeps gradients of micro-batches back until the last, where zero_grad does not find them."""
    calm = make_learner(tiny_model(tie=False), settings(max_tokens_per_microbatch=30), dtype="bfloat16")
    hit = make_learner(tiny_model(tie=False), settings(max_tokens_per_microbatch=60), dtype="bfloat16")
    assert hit.sharded
    before = weights(calm)
    raise_out_of_memory(hit, at={2}, backward=passes == "backward")
    for seed in (0, 1):
        update(calm, make_groups(seed=seed))
        update(hit, make_groups(seed=seed))
        assert_same_step(before, weights(calm), weights(hit))


def test_out_of_memory_twice_names_the_setting_and_the_peak():
    learner = make_learner(tiny_model(), settings(max_tokens_per_microbatch=60))
    raise_out_of_memory(learner, at=set(range(100)))
    with pytest.raises(PostrlError, match=r"max_tokens_per_microbatch 60 and again with 30, peak \d+\.\d GB") as caught:
        update(learner, make_groups())
    assert "--max-tokens-per-microbatch" in caught.value.hint


def test_no_room_for_the_optimizers_state_is_one_error(monkeypatch):
    def no_room():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    learner = make_learner(tiny_model(), settings())
    monkeypatch.setattr(learner.optimizer, "step", no_room)
    with pytest.raises(PostrlError, match="out of memory for the optimizer's state") as caught:
        update(learner, make_groups())
    assert "--lora-rank" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
    ],
)
def test_full_memory_has_several_names(text):
    learner, passes = make_learner(tiny_model(), settings(max_tokens_per_microbatch=60)), iter(range(100))

    def hook(*_):
        if next(passes) == 0:
            raise RuntimeError(text)

    learner.policy.causal_lm.model.layers[-1].register_forward_hook(hook)
    update(learner, make_groups())
    assert learner.max_tokens == 30


def test_other_errors_are_not_taken_for_full_memory():
    learner = make_learner(tiny_model(), settings())

    def hook(*_):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    learner.policy.causal_lm.model.layers[-1].register_forward_hook(hook)
    with pytest.raises(RuntimeError, match="shapes"):
        update(learner, make_groups())
    assert learner.max_tokens == learner.config.microbatch_tokens("cpu")


# -- weights and models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tie", [True, False])
def test_weights_have_the_names_and_values_of_the_transformers_model(tie):
    model = tiny_model(tie=tie)
    found = weights(make_learner(model, settings()))
    assert ("lm_head.weight" in found) is not tie
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(tensor, model.get_parameter(name)) for name, tensor in found.items())


@pytest.mark.parametrize("targets", [["all-linear"], ["lm_head"]], ids=["body", "head"])
def test_merged_adapters_are_those_of_peft(targets):
    config = GRPOConfig(lora_rank=4, lora_alpha=12, lora_target_modules=targets)
    learner = make_learner(with_lora(tiny_model(tie=False), config), settings())
    update(learner, make_groups())
    found = weights(learner)
    merged = learner.policy.model.merge_and_unload()
    assert found.keys() == dict(merged.named_parameters()).keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, merged.get_parameter(name), rtol=1e-6, atol=1e-7)
    assert any(not torch.equal(tensor, tiny_model(tie=False).get_parameter(name)) for name, tensor in found.items())


def test_an_adapter_of_a_head_that_is_the_embedding_is_not_lost_in_silence():
    config = GRPOConfig(lora_rank=4, lora_target_modules=["q_proj", "lm_head"])
    with pytest.raises(PostrlError, match=r"adapter on lm_head.* cannot be merged"):
        weights(make_learner(with_lora(tiny_model(), config), settings()))
    assert "lm_head.weight" in weights(make_learner(with_lora(tiny_model(tie=False), config), settings()))


def test_an_adapter_is_pushed_under_the_names_and_values_that_peft_saves(tmp_path):
    from safetensors.torch import load_file

    learner = make_learner(with_lora(tiny_model(), GRPOConfig(lora_rank=4)), settings())
    update(learner, make_groups())
    learner.policy.model.save_pretrained(tmp_path)
    saved, pushed = load_file(tmp_path / "adapter_model.safetensors"), dict(learner.adapter())
    assert saved.keys() == pushed.keys() and all(torch.equal(saved[name], pushed[name]) for name in saved)


def test_only_adapters_are_trained():
    model = with_lora(tiny_model(), GRPOConfig(lora_rank=4))
    learner = make_learner(model, settings())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    update(learner, make_groups())
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)


def test_score_gives_log_probs_at_temperature_one_and_leaves_training_mode_alone():
    model = tiny_model()
    learner = make_learner(model, settings(temperature=0.5))
    (first, second) = learner.score([([5, 6, 7, 8, 9], 2), ([1, 2, 3], 1)])
    with torch.no_grad():
        expected = model(torch.tensor([[5, 6, 7, 8, 9]])).logits[0].log_softmax(-1)
    assert first == pytest.approx([expected[1, 7].item(), expected[2, 8].item(), expected[3, 9].item()], abs=1e-5)
    assert len(second) == 2
    assert learner.policy.training


def test_the_saved_model_is_one_that_transformers_loads(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    learner = make_learner(tiny_model(), settings())
    update(learner, make_groups())
    learner.save_model(str(tmp_path), tiny_tokenizer())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert all(torch.equal(tensor, loaded.get_parameter(name)) for name, tensor in weights(learner).items())
    assert AutoTokenizer.from_pretrained(tmp_path).decode([3, 4, 5])


def test_the_saved_adapter_is_one_that_peft_loads(tmp_path):
    from peft import PeftModel

    learner = make_learner(with_lora(tiny_model(), GRPOConfig(lora_rank=4)), settings())
    update(learner, make_groups())
    learner.save_model(str(tmp_path), tiny_tokenizer())
    loaded = PeftModel.from_pretrained(tiny_model(), str(tmp_path)).merge_and_unload()
    for name, tensor in weights(learner).items():
        torch.testing.assert_close(tensor, loaded.get_parameter(name))


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PostrlError, match="the model could not be written to") as caught:
        make_learner(tiny_model(), settings()).save_model(str(tmp_path / "file" / "model"), tiny_tokenizer())
    assert "--resume" in caught.value.hint


def test_completions_without_a_token_change_nothing_for_the_others():
    """An aborted request may come back empty."""
    groups, fewer = make_groups(), make_groups()
    for group, kept in zip(groups, fewer, strict=True):
        last = group.rollouts[-1]
        last.completion_ids, last.logps, last.loss_mask, last.finish_reason = [], [], [], "abort"
        kept.rollouts[-1].reward = last.reward = None
    one, other = (make_learner(tiny_model(tie=False), settings(max_tokens_per_microbatch=16)) for _ in range(2))
    before = weights(one)
    update(one, groups)
    update(other, fewer)
    assert_same_step(before, weights(one), weights(other))
