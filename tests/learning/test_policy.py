"""The policy against the plain transformers model."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny_model, tiny_tokenizer
from postrl.config import GRPOConfig
from postrl.errors import PostrlError
from postrl.learning.collate import collate, scatter
from postrl.learning.loading import with_lora
from postrl.learning.on_cpu import can_share_prompts, collate_shared
from postrl.learning.policy import Policy
from postrl.types import Rollout

CPU = torch.device("cpu")


def rollout(prompt: list[int], completion: list[int]) -> Rollout:
    return Rollout("test:0", 0, prompt, completion, [0.0] * len(completion), [], "stop")


ROLLOUTS = [
    rollout([5, 6, 7, 8], [9, 10, 11]),
    rollout([200], [30, 31, 32, 33, 34, 2]),
    rollout([17, 18], [40]),
]


def full_mask(rollouts: list[Rollout]) -> torch.Tensor:
    width = max(len(r.completion_ids) for r in rollouts)
    return torch.tensor([[i < len(r.completion_ids) for i in range(width)] for r in rollouts])


def logps_of(
    policy: Policy, rollouts: list[Rollout], mask: torch.Tensor, temperature: float = 1.0, **options
) -> torch.Tensor:
    ids, select, targets, place = collate(rollouts, mask, CPU)
    with torch.no_grad():
        logps, _ = policy(ids, select, targets, temperature, **options)
    return scatter(logps, place)


def plain_logps(model, r: Rollout, temperature: float = 1.0) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([[*r.prompt_ids, *r.completion_ids]])).logits[0]
    distribution = torch.log_softmax(logits / temperature, dim=-1)
    start = len(r.prompt_ids)
    return [distribution[start + t - 1, token].item() for t, token in enumerate(r.completion_ids)]


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_the_plain_models_whatever_stands_beside_a_row(model, temperature):
    found = logps_of(Policy(model), ROLLOUTS, full_mask(ROLLOUTS), temperature)
    for row, r in zip(found, ROLLOUTS, strict=True):
        n = len(r.completion_ids)
        assert row[:n].tolist() == pytest.approx(plain_logps(model, r, temperature), abs=1e-5)
        assert row[n:].tolist() == [0.0] * (len(row) - n)


def test_only_masked_in_positions_reach_the_head(model):
    mask = full_mask(ROLLOUTS)
    mask[1, 2:5] = False
    _ids, select, targets, place = collate(ROLLOUTS, mask, CPU)
    assert int(select.sum()) == len(targets) == int(place.sum()) == 3 + 3 + 1
    assert targets.tolist() == [9, 10, 11, 30, 31, 2, 40]
    found, whole = logps_of(Policy(model), ROLLOUTS, mask), logps_of(Policy(model), ROLLOUTS, full_mask(ROLLOUTS))
    assert torch.equal(found != 0, mask)
    torch.testing.assert_close(found[mask], whole[mask])


def test_no_rows_give_a_dummy_pass_with_nothing_selected(model):
    ids, select, targets, place = collate([], torch.zeros(0, 4, dtype=torch.bool), CPU)
    assert (ids.shape, int(select.sum()), len(targets), place.shape) == ((1, 1), 0, 0, (0, 4))
    logps, _ = Policy(model)(ids, select, targets, 1.0)
    loss = scatter(logps, place).sum()
    loss.backward()  # every weight takes part, with a gradient of zero
    assert [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().sum() > 0] == []
    model.zero_grad(set_to_none=True)


@pytest.mark.parametrize("targets", [["all-linear"], ["q_proj", "lm_head"]], ids=["body", "head"])
def test_the_reference_of_an_adapter_is_the_model_without_it(targets):
    config = GRPOConfig(lora_rank=4, lora_target_modules=targets)
    base, adapted = tiny_model(tie=False), with_lora(tiny_model(tie=False), config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    policy, mask = Policy(adapted), full_mask(ROLLOUTS)
    expected = logps_of(Policy(base), ROLLOUTS, mask)
    torch.testing.assert_close(logps_of(policy, ROLLOUTS, mask, reference=True), expected)
    policy.check_head()  # the model's own forward pass, adapter and all
    assert (logps_of(policy, ROLLOUTS, mask) - expected).abs().max() > 0.1


def test_scatter_is_differentiable():
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    placed = scatter(values, torch.tensor([[False, True], [True, False]]))
    assert placed.tolist() == [[0.0, 1.0], [2.0, 0.0]]
    (placed * torch.tensor([[5.0, 6.0], [7.0, 8.0]])).sum().backward()
    assert values.grad.tolist() == [6.0, 7.0]


# -- prompts that are read once ----------------------------------------------------------------------------------------

SHARING = [rollout([5, 6, 7, 8], [9, 10, 11]), rollout([5, 6, 7, 8], [12]), *ROLLOUTS[1:], rollout([200], [2, 3])]


def shared_logps_of(policy: Policy, rollouts: list[Rollout], mask: torch.Tensor) -> torch.Tensor:
    ids, select, targets, place, prefix = collate_shared(rollouts, mask)
    return scatter(policy(ids, select, targets, 1.0, prefix=prefix)[0], place)


def test_rows_that_continue_one_prompt_give_the_log_probs_and_gradients_of_rows_on_their_own(model):
    policy, mask = Policy(model).eval(), full_mask(SHARING)
    mask[2, 2:4] = False
    upstream = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0))
    found = []
    for shared in (True, False):
        if shared:
            logps = shared_logps_of(policy, SHARING, mask)
        else:
            ids, select, targets, place = collate(SHARING, mask, CPU)
            logps = scatter(policy(ids, select, targets, 1.0)[0], place)
        model.zero_grad(set_to_none=True)
        (logps * upstream).sum().backward()
        found.append((logps.detach(), {name: p.grad for name, p in model.named_parameters()}))
    (ours, gradients), (expected, expected_gradients) = found
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    for name, gradient in gradients.items():
        assert (gradient - expected_gradients[name]).norm() <= 1e-5 * expected_gradients[name].norm(), name


def test_the_prompt_of_a_group_is_read_once():
    ids, _, _, _, prefix = collate_shared(SHARING, full_mask(SHARING))
    assert prefix.ids_PL.tolist() == [[5, 6, 7], [0, 0, 0], [17, 0, 0]]  # without their last tokens
    assert prefix.lengths_P.tolist() == [3, 0, 1]
    assert prefix.owner_b.tolist() == [0, 0, 1, 2, 1]
    assert ids[0].tolist() == [8, 9, 10, 0, 0, 0]


@pytest.mark.parametrize(
    ("config_class", "model_class", "options", "can"),
    [
        ("LlamaConfig", "LlamaForCausalLM", {}, True),
        ("MistralConfig", "MistralForCausalLM", {"sliding_window": 4}, False),
        ("Gemma2Config", "Gemma2ForCausalLM", {}, False),
        ("MptConfig", "MptForCausalLM", {"d_model": 32, "n_heads": 2, "n_layers": 1}, False),  # counts distances itself
        ("MambaConfig", "MambaForCausalLM", {}, False),
    ],
)
def test_prompts_are_shared_where_that_changes_nothing(config_class, model_class, options, can):
    assert can_share_prompts(Policy(tiny(config_class, model_class, **options))) is can


def test_prompts_are_not_shared_where_activations_are_computed_again():
    model = tiny_model()
    model.gradient_checkpointing_enable()
    assert not can_share_prompts(Policy(model))


# -- architectures that do something to their logits -------------------------------------------------------------------


def tiny(config_class, model_class, **options):
    import transformers

    config = getattr(transformers, config_class)(
        vocab_size=len(tiny_tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.5,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **options,
    )
    torch.manual_seed(0)
    return getattr(transformers, model_class)(config).eval()


@pytest.mark.parametrize(
    ("config_class", "model_class", "options"),
    [
        ("Gemma2Config", "Gemma2ForCausalLM", {"final_logit_softcapping": 3.0}),
        ("CohereConfig", "CohereForCausalLM", {"logit_scale": 0.25}),
        ("GraniteConfig", "GraniteForCausalLM", {"logits_scaling": 4.0}),
    ],
)
def test_scaled_and_capped_logits_are_known(config_class, model_class, options):
    model = tiny(config_class, model_class, **options)
    policy = Policy(model)
    policy.check_head()
    found = logps_of(policy, ROLLOUTS, full_mask(ROLLOUTS), 0.8)
    for row, r in zip(found, ROLLOUTS, strict=True):
        assert row[: len(r.completion_ids)].tolist() == pytest.approx(plain_logps(model, r, 0.8), abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_architecture_with_unknown_logits_is_refused(dtype):
    model = tiny_model().to(dtype)
    plain_forward = model.forward

    def odd_forward(**inputs):
        out = plain_forward(**inputs)
        out.logits = out.logits * 1.5
        return out

    model.forward = odd_forward
    with pytest.raises(PostrlError, match="LlamaForCausalLM computes its logits in a way that postrl does not know"):
        Policy(model).check_head()


def test_rounding_of_capped_logits_in_bfloat16_is_not_taken_for_an_unknown_architecture():
    """Gemma 2 caps its bfloat16 logits in bfloat16; ours are capped in float32."""
    model = tiny("Gemma2Config", "Gemma2ForCausalLM", final_logit_softcapping=30.0)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(8)  # logits of a size where bfloat16 is coarse
    Policy(model.to(torch.bfloat16)).check_head()
