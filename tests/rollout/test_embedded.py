"""Sampling inside the trainer, checked against the model itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from helpers import tiny_model, tiny_tokenizer
from postrl.errors import PostrlError, UsageError
from postrl.learning.collate import collate, support_of
from postrl.learning.policy import Policy
from postrl.rollout import embedded
from postrl.rollout.embedded import EmbeddedSampler, _Cut, _draw
from postrl.rollout.sampler import Request, Sampling, derive_seed
from postrl.types import Rollout, Sampled, VersionSpan

TOKENIZER = tiny_tokenizer()
EOS = TOKENIZER.eos_token_id
PROMPTS = ([5, 6, 7, 8, 9, 10], [200], [17, 18, 19])


def sampler(model: Any, *, stop: Sequence[int] = (), version: int = 3) -> EmbeddedSampler:
    return EmbeddedSampler(model, TOKENIZER, stop_token_ids=stop, version=lambda: version)


def request(prompt: Sequence[int], seed: int, **sampling: Any) -> Request:
    return Request(prompt, seed, Sampling(**{"temperature": 1.0, "max_tokens": 8, **sampling}))


def sample(which: EmbeddedSampler, requests: Sequence[Request]) -> list[Sampled]:
    async def collect() -> list[Sampled]:
        return await asyncio.gather(*map(which.sample, requests))

    return asyncio.run(collect())


def teacher_forced(
    model: Any, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0
) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0]
    distribution = torch.log_softmax(logits / temperature, dim=-1)
    return [distribution[len(prompt) + t - 1, token].item() for t, token in enumerate(completion)]


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def mixed(**sampling: Any) -> list[Request]:
    """Four completions of each of three prompts of different lengths."""
    return [request(prompt, 10 * g + i, **sampling) for g, prompt in enumerate(PROMPTS) for i in range(4)]


# -- what is sampled, and its log-probs --------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_those_of_the_distribution_that_was_sampled_from(model, temperature):
    requests = mixed(temperature=temperature)
    for asked, got in zip(requests, sample(sampler(model), requests), strict=True):
        expected = teacher_forced(model, asked.prompt_ids, got.completion_ids, temperature)
        assert got.logps == pytest.approx(expected, abs=1e-4)


def sliding() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, sliding_window=4, initializer_range=0.5,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


def test_a_sliding_window_sees_the_same_as_in_training():
    model, requests = sliding(), mixed()
    for asked, got in zip(requests, sample(sampler(model), requests), strict=True):
        assert got.logps == pytest.approx(teacher_forced(model, asked.prompt_ids, got.completion_ids), abs=1e-4)


def test_a_completion_depends_on_its_seed_and_not_on_its_neighbours(model):
    requests = mixed()
    together = sample(sampler(model), requests)
    for asked, got in zip(requests, together, strict=True):
        (alone,) = sample(sampler(model), [asked])  # without padding, too
        assert alone.completion_ids == got.completion_ids
        assert alone.logps == pytest.approx(got.logps, abs=1e-4)
    assert len({tuple(got.completion_ids) for got in together}) == len(requests)


def test_a_longer_limit_continues_the_same_completion(model):
    short, long = (sample(sampler(model), [request(PROMPTS[0], 7, max_tokens=n)])[0] for n in (4, 12))
    assert long.completion_ids[:4] == short.completion_ids


def test_more_requests_than_fit_in_a_batch_are_sampled_alike(model, monkeypatch):
    requests = mixed()
    at_once = sample(sampler(model), requests)
    monkeypatch.setattr(embedded, "MAX_SEQUENCES", 5)
    assert [got.completion_ids for got in sample(sampler(model), requests)] == [got.completion_ids for got in at_once]


def test_temperature_zero_takes_the_most_likely_token_with_its_log_prob_at_one(model):
    greedy, _ = sample(sampler(model), [request(PROMPTS[0], 1, temperature=0.0), request(PROMPTS[1], 2)])
    expected: list[int] = []
    with torch.no_grad():
        for _ in range(8):
            expected.append(int(model(torch.tensor([[*PROMPTS[0], *expected]])).logits[0, -1].argmax()))
    assert greedy.completion_ids == expected
    assert greedy.logps == pytest.approx(teacher_forced(model, PROMPTS[0], expected), abs=1e-4)


def test_the_first_tokens_are_distributed_as_the_softmax_says():
    """Pearson's chi-square over the ten likeliest tokens and the rest: 10 degrees of freedom, 29.6 at p = 0.001. The
    model's own generation config, which would narrow the distribution, is not looked at."""
    model = tiny_model()
    model.generation_config.update(top_k=3, temperature=0.1)
    n, temperature = 3000, 0.8
    found = sample(
        sampler(model),
        [request(PROMPTS[0], derive_seed(0, 0, "p", i), temperature=temperature, max_tokens=1) for i in range(n)],
    )
    with torch.no_grad():
        probabilities = (model(torch.tensor([PROMPTS[0]])).logits[0, -1] / temperature).softmax(-1)
    likely = probabilities.topk(10).indices.tolist()
    expected = [n * probabilities[token].item() for token in likely]
    counts = [sum(got.completion_ids == [token] for got in found) for token in likely]
    expected, counts = [*expected, n - sum(expected)], [*counts, n - sum(counts)]
    assert min(expected) > 20
    assert sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True)) < 29.6


def test_a_token_without_probability_is_never_drawn():
    logits = torch.full((3, 5), -torch.inf)
    logits[:, 1], logits[:, 3] = 0.0, 1.0
    edges = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    tokens, logps = _draw(logits, torch.ones(3), edges)
    assert tokens.tolist() == [1, 3, 3]  # p(1) = 1 / (1 + e) = 0.27
    assert logps.tolist() == pytest.approx([-1.3133, -0.3133, -0.3133], abs=1e-4)


# -- top-k and top-p ---------------------------------------------------------------------------------------------------


def test_only_the_likeliest_tokens_are_drawn_and_each_says_which_they_were(model):
    requests = mixed(temperature=0.8, top_k=7, top_p=0.6, min_p=1e-6)
    for asked, got in zip(requests, sample(sampler(model), requests), strict=True):
        assert len(got.support) == len(got.completion_ids)
        with torch.no_grad():
            logits = model(torch.tensor([[*asked.prompt_ids, *got.completion_ids]])).logits[0].double() / 0.8
        for t, token in enumerate(got.completion_ids):
            row = logits[len(asked.prompt_ids) + t - 1]
            best = row.topk(7)
            mass = best.values.softmax(-1).cumsum(-1)
            expected = best.indices[: int((mass < 0.6).sum()) + 1]
            assert sorted(expected.tolist()) == got.support[t]
            assert token in got.support[t]
            logp = row[expected].log_softmax(-1)[expected.tolist().index(token)]
            assert got.logps[t] == pytest.approx(logp.item(), abs=1e-4)


def test_the_share_is_that_of_the_tokens_that_top_k_leaves():
    """0.5 0.3 0.1 0.06 0.04: of the first three, which have 0.56 0.33 0.11 of their own, two make up 0.8."""
    logits = torch.tensor([[0.1, 0.5, 0.04, 0.3, 0.06]]).log()
    assert kept(logits, top_k=3, top_p=0.8) == [[1, 3]]
    assert kept(logits, top_k=0, top_p=0.81) == [[0, 1, 3]]
    assert kept(logits, top_k=3) == [[0, 1, 3]]
    assert kept(logits, top_p=1e-9) == [[1]]
    assert kept(logits, min_p=0.19) == [[0, 1, 3]], "0.1 is a fifth of 0.5"
    assert kept(logits, min_p=0.21) == [[1, 3]]
    assert kept(logits, min_p=1.0) == [[1]]
    assert kept(logits.repeat(2, 1) * 0, top_k=2) == [[0, 1], [0, 1]]  # of equal ones the first, and no more


def kept(logits: torch.Tensor, **sampling: Any) -> list[list[int]]:
    cut = _Cut.of([request([1], 0, **sampling)] * len(logits), torch.device("cpu"))
    restricted = cut(logits, torch.ones(len(logits)), torch.arange(len(logits)))
    return [(row > -torch.inf).nonzero().flatten().tolist() for row in restricted]


def test_beside_others_a_completion_of_the_whole_vocabulary_stays_what_it_is(model):
    whole, cut = request(PROMPTS[0], 1), request(PROMPTS[1], 2, top_k=1)
    greedy = request(PROMPTS[1], 3, temperature=0.0)
    together = sample(sampler(model), [whole, cut, greedy])
    (alone,) = sample(sampler(model), [whole])
    assert (together[0].completion_ids, together[0].support) == (alone.completion_ids, None)
    assert together[1].completion_ids == together[2].completion_ids
    assert together[1].support == [[token] for token in together[2].completion_ids]
    assert together[1].logps == [0.0] * 8 and together[2].support is None


def test_the_learners_log_probs_over_the_support_are_the_samplers(model):
    """Of completions with a support and of one without, in one micro-batch; of the trainable tokens."""
    requests = [*mixed(temperature=0.8, top_p=0.7), request(PROMPTS[0], 99, temperature=0.8)]
    rollouts = [
        Rollout("rows:0", 0, list(asked.prompt_ids), got.completion_ids, got.logps, got.version_spans, "stop",
                support=got.support)
        for asked, got in zip(requests, sample(sampler(model), requests), strict=True)
    ]  # fmt: skip
    mask = torch.ones(len(rollouts), 8, dtype=torch.bool)
    mask[::2, 3] = False
    ids, select, targets, place = collate(rollouts, mask, torch.device("cpu"))
    support = support_of(rollouts, place, torch.device("cpu"))
    with torch.no_grad():
        logps, _ = Policy(model)(ids, select, targets, 0.8, support=support)
    expected = torch.tensor([rollout.logps for rollout in rollouts])[mask]
    torch.testing.assert_close(logps, expected, rtol=0, atol=1e-4)
    assert support_of(rollouts[-1:], place[-1:], torch.device("cpu")) is None


# -- when it ends ------------------------------------------------------------------------------------------------------


def test_a_stop_token_ends_it_and_belongs_to_it(model):
    (free,) = sample(sampler(model), [request(PROMPTS[0], 7)])
    end = free.completion_ids[3]
    assert end not in free.completion_ids[:3]
    (stopped,) = sample(sampler(model, stop=[EOS, end]), [request(PROMPTS[0], 7)])
    assert stopped.completion_ids == free.completion_ids[:4]
    assert stopped.logps == pytest.approx(free.logps[:4], abs=1e-4)
    assert (free.finish_reason, stopped.finish_reason) == ("length", "stop")


def test_a_stop_token_of_a_request_ends_that_one_alone(model):
    (free,) = sample(sampler(model), [request(PROMPTS[0], 7)])
    asked = [request(PROMPTS[0], 7, stop_token_ids=(free.completion_ids[3],)), request(PROMPTS[0], 7)]
    stopped, other = sample(sampler(model), asked)
    assert (stopped.completion_ids, stopped.finish_reason) == (free.completion_ids[:4], "stop")
    assert (other.completion_ids, other.finish_reason) == (free.completion_ids, "length")


def test_a_stop_token_at_the_limit_is_a_stop(model):
    (free,) = sample(sampler(model), [request(PROMPTS[0], 7)])
    (stopped,) = sample(sampler(model, stop=[free.completion_ids[3]]), [request(PROMPTS[0], 7, max_tokens=4)])
    assert (len(stopped.completion_ids), stopped.finish_reason) == (4, "stop")


def test_a_stop_text_ends_it_even_where_it_spans_tokens(model):
    requests = [request(PROMPTS[0], seed) for seed in range(30)]
    found = sample(sampler(model), requests)
    # two neighbouring tokens of plain text, whose text does not come earlier
    index, text, end = next(
        (i, two, t + 1)
        for i, got in enumerate(found)
        for t in range(1, 7)
        if (two := TOKENIZER.decode(got.completion_ids[t : t + 2])).isascii()
        and two.isprintable()
        and len(two) == 2
        and two not in TOKENIZER.decode(got.completion_ids[: t + 1])
    )
    (stopped,) = sample(sampler(model), [request(PROMPTS[0], index, stop=("never", text))])
    assert stopped.completion_ids == found[index].completion_ids[: end + 1]
    assert stopped.finish_reason == "stop"


def test_every_request_has_its_own_limit(model):
    lengths = [1, 5, 3]
    found = sample(sampler(model), [request(PROMPTS[0], seed, max_tokens=n) for seed, n in enumerate(lengths)])
    assert [len(got.completion_ids) for got in found] == lengths
    assert {got.finish_reason for got in found} == {"length"}


def test_every_token_is_stamped_with_the_weights_that_the_model_holds(model):
    version = 4
    which = EmbeddedSampler(model, TOKENIZER, stop_token_ids=[], version=lambda: version)
    (first,) = sample(which, [request(PROMPTS[0], 1)])
    version = 5
    (second,) = sample(which, [request(PROMPTS[0], 1)])
    assert (first.version_spans, second.version_spans) == ([VersionSpan(4, 0, 8)], [VersionSpan(5, 0, 8)])


# -- how it is computed ------------------------------------------------------------------------------------------------


def test_each_prompt_is_read_once_and_what_has_ended_leaves_the_batch(model):
    shapes: list[tuple[int, ...]] = []
    hook = model.model.embed_tokens.register_forward_hook(lambda _, inputs, __: shapes.append(tuple(inputs[0].shape)))
    requests = [request(PROMPTS[g], 10 * g + i, max_tokens=2 + i) for g in (0, 1, 0) for i in range(3)]
    try:
        sample(sampler(model), requests)
    finally:
        hook.remove()
    # two prompts, the longer of 6 tokens; then one token for each that is not at its limit of 2, 3 or 4
    assert shapes == [(2, 6), (9, 1), (6, 1), (3, 1)]


def fill_memory(model: Any, *, above: int) -> Any:
    """Forward passes of more than `above` rows run out of memory; returns the hook."""

    def hook(_: Any, inputs: tuple[torch.Tensor, ...], __: Any) -> None:
        if len(inputs[0]) > above:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    return model.lm_head.register_forward_hook(hook)


def test_out_of_memory_halves_the_batch_and_samples_the_same(model):
    requests = mixed()
    expected = sample(sampler(model), requests)
    which, sizes = sampler(model), []
    counting = model.model.embed_tokens.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    filling = fill_memory(model, above=3)
    try:
        found = sample(which, requests)
        seen, sizes[:] = max(sizes), []
        sample(which, requests)
    finally:
        filling.remove(), counting.remove()
    assert [got.completion_ids for got in found] == [got.completion_ids for got in expected]
    assert (seen, max(sizes)) == (12, 3)  # the second time it knows


def test_out_of_memory_with_a_single_completion_names_the_settings(model):
    filling = fill_memory(model, above=0)
    try:
        with pytest.raises(PostrlError, match="single completion of at most 8 tokens") as caught:
            sample(sampler(model), mixed())
    finally:
        filling.remove()
    assert "--max-completion-length" in caught.value.hint


def test_a_model_in_training_samples_without_dropout_and_trains_on(model):
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(tiny_model(), LoraConfig(r=2, lora_dropout=0.9, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    adapted.train()
    once, again = (sample(sampler(adapted), [request(PROMPTS[0], 7)])[0] for _ in range(2))
    assert once == again
    assert adapted.training
    assert not any(parameter.grad is not None for parameter in adapted.parameters())


def test_a_model_whose_state_is_not_keys_and_values_is_refused():
    from transformers import MambaConfig, MambaForCausalLM

    mamba = MambaForCausalLM(MambaConfig(vocab_size=len(TOKENIZER), hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(UsageError, match="cannot sample from MambaForCausalLM") as caught:
        sample(sampler(mamba), [request(PROMPTS[0], 1)])
    assert caught.value.hint == "use --engine vllm"
