"""The critic: values before each token, its update beside a plain reference, its folder."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from helpers import tiny_model, tiny_model_dir, tiny_tokenizer
from learning.batches import (
    assert_same_step,
    critic_weights,
    make_groups,
    make_pair,
    prepared,
    settings,
    update,
    update_critic,
    weights,
)
from postrl.errors import PostrlError, UsageError
from postrl.learning.batch import make_batch
from postrl.learning.critic import critic_body
from postrl.learning.learner import Learner
from postrl.learning.loading import load_model, with_lora
from postrl.types import Batch

LORA = {"lora_rank": 4}


def pair(*, awake: bool = False, **options) -> Learner:
    """`awake`: with a head that is not zero any more, so that gradients reach the body."""
    config = settings(**{"algorithm": "ppo", "minibatches": 1, "critic_learning_rate": 1.0, **options})
    torch.manual_seed(0)  # LoRA's first factor is random
    learner = make_pair(with_lora(tiny_model(), config), config)
    if awake:
        with torch.no_grad():
            learner.critic.module.head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    return learner


def plain_values(learner: Learner, batch: Batch) -> list[torch.Tensor]:
    """Row by row: the head on the hidden state of the position before each token."""
    model = learner.critic.module
    found = []
    for rollout in batch.rollouts:
        hidden = model.transformer(torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])).last_hidden_state[0]
        start, n = len(rollout.prompt_ids), len(rollout.completion_ids)
        found.append((hidden[start - 1 : start + n - 1] @ model.head.weight.T).squeeze(-1))
    return found


# -- values ------------------------------------------------------------------------------------------------------------


def test_a_new_critic_expects_nothing():
    learner = pair()
    batch, _ = prepared(learner, make_groups())
    assert torch.equal(batch.values_BT, torch.zeros(batch.mask_BT.shape))
    assert batch.values_BT.dtype == torch.float32


@pytest.mark.parametrize("max_tokens", [4096, 24])
def test_values_are_those_of_the_state_before_each_token(max_tokens):
    learner = pair(awake=True, max_tokens_per_microbatch=max_tokens)
    batch = make_batch(make_groups(), 0, learner.ranks.device)
    found = learner.critic.values(batch)
    with torch.no_grad():
        for row, expected in zip(found, plain_values(learner, batch), strict=True):
            torch.testing.assert_close(row[: len(expected)], expected, rtol=1e-4, atol=1e-5)
            assert not row[len(expected) :].any()


def test_a_batch_is_assessed_with_values_where_the_algorithm_needs_them():
    learner = pair(awake=True)
    batch = make_batch(make_groups(), 0, learner.ranks.device)
    assert learner.assess(batch, frozenset()).values_BT is None
    assert torch.equal(learner.assess(batch, frozenset({"values"})).values_BT, learner.critic.values(batch))


def test_the_value_after_the_last_token_is_known_where_a_completion_was_cut():
    learner = pair(awake=True)
    groups = make_groups()
    for rollout in groups[0].rollouts[:2]:
        rollout.finish_reason = "length"
    batch = make_batch(groups, 0, learner.ranks.device)
    found = learner.assess(batch, frozenset({"values", "end"}))
    torch.testing.assert_close(found.values_BT, learner.critic.values(batch), rtol=1e-4, atol=1e-5)
    model = learner.critic.module
    for rollout, end in zip(batch.rollouts, found.end_B, strict=True):
        with torch.no_grad():
            ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
            after = (model.transformer(ids).last_hidden_state[0, -1] @ model.head.weight.T).squeeze()
        expected = after if rollout.finish_reason == "length" else torch.tensor(0.0)
        torch.testing.assert_close(end, expected, rtol=1e-4, atol=1e-5)
    assert found.end_B[:2].abs().min() > 1e-3


def test_the_value_after_the_last_token_needs_no_position_more_than_the_model_has():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tiny_tokenizer()), n_positions=8, n_embd=32, n_layer=1, n_head=2))
    config = settings(algorithm="ppo", minibatches=1, gradient_checkpointing=True)
    learner = make_pair(model, config)
    groups = make_groups(1, 2)
    for rollout in groups[0].rollouts:
        rollout.prompt_ids, rollout.completion_ids, rollout.finish_reason = [1, 2, 3, 4], [5, 6, 7, 8], "length"
        rollout.loss_mask, rollout.logps = [1] * 4, [-1.0] * 4
    batch = make_batch(groups, 0, learner.ranks.device)
    assert learner.assess(batch, frozenset({"values", "end"})).end_B.shape == (2,)


# -- the update --------------------------------------------------------------------------------------------------------


def test_the_step_is_the_gradient_of_one_plain_pass():
    learner = pair(awake=True, max_tokens_per_microbatch=24)
    before = critic_weights(learner)
    batch, _ = prepared(learner, make_groups())
    twin = pair(awake=True)
    losses = [
        0.5 * (values - returns[: len(values)]) ** 2
        for values, returns in zip(plain_values(twin, batch), batch.returns_BT, strict=True)
    ]
    torch.cat(losses).mean().backward()
    report = update_critic(learner, make_groups())
    moved = critic_weights(learner)
    for name, parameter in twin.critic.module.named_parameters():
        step = before[name] - moved[name]
        assert (step - parameter.grad).norm() <= 1e-4 * parameter.grad.norm(), name
    total, count = report.metrics["critic/loss"]
    assert float(total) / float(count) == pytest.approx(torch.cat(losses).mean().item(), rel=1e-4)


@pytest.mark.parametrize("lora", [{}, LORA], ids=["full", "lora"])
def test_gradients_are_the_same_for_any_micro_batch_size(lora):
    found = []
    for max_tokens in (4096, 60, 16):
        learner = pair(
            awake=True, max_tokens_per_microbatch=max_tokens, minibatches=2, critic_learning_rate=0.1, **lora
        )
        before = critic_weights(learner)
        report = update_critic(learner, make_groups())
        assert (report.optimizer_steps, learner.critic.updates, learner.updates) == (2, 2, 0)
        found.append({name: t for name, t in critic_weights(learner).items() if not torch.equal(t, before[name])})
    before = {name: before[name] for name in found[0]}
    for cut in found[1:]:
        assert_same_step(before, found[0], cut, rtol=1e-4)


def test_the_critic_learns_its_own_way():
    """What it predicts comes nearer to the returns, and the policy stays as it is."""
    learner = pair(optim="adamw", critic_learning_rate=1e-2, max_grad_norm=1.0)
    policy = weights(learner)
    losses = [update_critic(learner, make_groups()).metrics["critic/loss"][0] for _ in range(10)]
    assert losses[-1] < 0.5 * losses[0]
    assert all(torch.equal(tensor, policy[name]) for name, tensor in weights(learner).items())


def test_the_policy_learns_beside_it_and_does_not_touch_it():
    learner = pair(awake=True)
    before, policy = critic_weights(learner), weights(learner)
    update(learner, make_groups())
    assert all(torch.equal(tensor, before[name]) for name, tensor in critic_weights(learner).items())
    assert not all(torch.equal(tensor, policy[name]) for name, tensor in weights(learner).items())


def test_the_critic_has_a_learning_rate_of_its_own():
    learner = pair(learning_rate=0.5, critic_learning_rate=0.25, warmup_steps=2)
    assert [update_critic(learner, make_groups()).lr for _ in range(3)] == [0.0, 0.125, 0.25]
    assert [update(learner, make_groups()).lr for _ in range(3)] == [0.0, 0.25, 0.5]


def test_with_lora_the_adapters_and_the_head_of_the_critic_are_trained_alone():
    learner = pair(awake=True, **LORA)
    before = critic_weights(learner)
    update_critic(learner, make_groups())
    moved = {name for name, tensor in critic_weights(learner).items() if not torch.equal(tensor, before[name])}
    assert "head.weight" in moved and len(moved) > 1
    assert all("lora_" in name for name in moved - {"head.weight"})


def test_out_of_memory_halves_the_budget_of_the_critic_alone():
    calm, hit = (pair(awake=True, max_tokens_per_microbatch=60) for _ in range(2))
    before, passes = critic_weights(calm), iter(range(1000))

    def hook(layer, *_):
        if layer.training and next(passes) == 2:  # two micro-batches have left their gradients by then
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    hit.critic.module.transformer.layers[-1].register_forward_hook(hook)
    for learner in (calm, hit):
        update_critic(learner, make_groups())
    assert (hit.critic.max_tokens, hit.max_tokens) == (30, 60)
    assert_same_step(before, critic_weights(calm), critic_weights(hit))


# -- what it starts from -----------------------------------------------------------------------------------------------


def test_the_critic_starts_as_a_copy_of_the_policy_and_shares_nothing_with_it():
    model = tiny_model()
    body = critic_body(settings(algorithm="ppo"), model, tiny_tokenizer())
    for name, parameter in body.named_parameters():
        assert torch.equal(parameter, model.model.get_parameter(name))
        assert parameter.data_ptr() != model.model.get_parameter(name).data_ptr()


def test_critic_model_names_another_model_of_the_same_tokens(tmp_path):
    other = tiny_model_dir(tmp_path / "other", seed=7)
    config = settings(algorithm="ppo", critic_model=str(other))
    body = critic_body(config, tiny_model(), tiny_tokenizer())
    assert all(torch.equal(p, tiny_model(seed=7).model.get_parameter(name)) for name, p in body.named_parameters())
    adapted = critic_body(settings(algorithm="ppo", critic_model=str(other), **LORA), tiny_model(), tiny_tokenizer())
    assert {name for name, p in adapted.named_parameters() if p.requires_grad and "lora_" not in name} == set()


@pytest.mark.parametrize("by", ["settings", "a script's config", "a script's model"])
def test_a_critic_model_has_adapters_in_all_its_layers_and_leaves_the_policys_alone(tmp_path, by):
    from peft import LoraConfig, get_peft_model

    policy, other = tiny_model_dir(tmp_path / "policy"), tiny_model_dir(tmp_path / "other", layers=4)
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    config = settings(algorithm="ppo", critic_model=str(other), **(LORA if by == "settings" else {}))
    given = adapter if by == "a script's config" else None
    model = load_model(config, str(policy))
    model = with_lora(get_peft_model(model, adapter) if by == "a script's model" else model, config, given)
    body = critic_body(config, model, tiny_tokenizer(), given)
    trained = {name for name, parameter in body.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[1] for name in trained} == {"0", "1", "2", "3"} and all("lora_" in name for name in trained)
    assert model.peft_config["default"].base_model_name_or_path == str(policy)


def test_a_critic_model_of_other_tokens_is_refused(tmp_path):
    other = tiny_model_dir(tmp_path / "other")
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(other)
    config = settings(algorithm="ppo", critic_model=str(other))
    n = len(tiny_tokenizer())
    with pytest.raises(
        UsageError, match=rf"other \({n + 1} tokens\) is another than the policy's \({n} tokens\)"
    ) as caught:
        critic_body(config, tiny_model(), tiny_tokenizer())
    assert "--critic-model" in caught.value.hint


def test_a_critic_model_that_is_not_there_is_named(tmp_path):
    config = settings(algorithm="ppo", critic_model=str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="nothing") as caught:
        critic_body(config, tiny_model(), tiny_tokenizer())
    assert "--critic-model takes a hub id" in caught.value.hint


# -- its folder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [{}, LORA], ids=["full", "lora"])
def test_the_saved_critic_gives_the_same_values_in_transformers(tmp_path, lora):
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    learner = pair(awake=True, critic_learning_rate=0.1, **lora)
    update_critic(learner, make_groups())
    learner.critic.save(tmp_path, tiny_tokenizer())
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path, dtype="auto").eval()
    batch = make_batch(make_groups(), 0, learner.ranks.device)
    values = learner.critic.values(batch)
    assert values.abs().max() > 0.01
    with torch.no_grad():
        for row, rollout in zip(values, batch.rollouts, strict=True):
            logits = loaded(torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])).logits[0, :, 0]
            start, n = len(rollout.prompt_ids), len(rollout.completion_ids)
            torch.testing.assert_close(row[:n], logits[start - 1 : start + n - 1], rtol=1e-4, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == tiny_tokenizer().get_vocab()


def test_a_type_without_such_a_class_is_saved_as_body_and_head(tmp_path):
    from transformers import AutoModel, MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    model = MambaForCausalLM(
        MambaConfig(vocab_size=len(tiny_tokenizer()), hidden_size=32, num_hidden_layers=1, state_size=4)
    )
    config = settings(algorithm="ppo", minibatches=1, critic_learning_rate=0.1)
    learner = make_pair(model, config)
    update_critic(learner, make_groups())
    learner.critic.save(tmp_path, tiny_tokenizer())
    body, trained = AutoModel.from_pretrained(tmp_path, dtype="auto"), learner.critic.module
    assert all(torch.equal(p, trained.transformer.get_parameter(name)) for name, p in body.named_parameters())
    assert torch.equal(load_file(tmp_path / "value_head.safetensors")["head.weight"], trained.head.weight)


def test_a_critic_folder_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PostrlError, match="the critic could not be written to") as caught:
        pair().critic.save(tmp_path / "file" / "critic", tiny_tokenizer())
    assert "--resume" in caught.value.hint
