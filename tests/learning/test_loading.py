"""Models and tokenizers from folders, adapters, and what is refused."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from helpers import tiny_model, tiny_model_dir, tiny_tokenizer
from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.learning.loading import (
    load_model,
    load_tokenizer,
    starts_at_zero,
    stop_token_ids,
    stop_tokens_of,
    with_lora,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_model_dir(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, torch.float32),
        ({"dtype": "bfloat16"}, torch.float32),
        ({"dtype": "bfloat16", "lora_rank": 2}, torch.bfloat16),
        ({"dtype": "float32", "lora_rank": 2}, torch.float32),
    ],
)
def test_weights_that_are_trained_are_float32_and_frozen_ones_have_the_compute_dtype(folder, options, dtype):
    config = GRPOConfig(model=folder, **options)
    model = with_lora(load_model(config, folder), config)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for name, p in model.named_parameters() if "lora_" not in name} == {dtype}


def test_a_model_that_a_script_loaded_in_bfloat16_is_trained_in_float32():
    model = with_lora(tiny_model().to(torch.bfloat16), GRPOConfig())
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_the_tokenizer_gets_the_chat_template_and_a_pad_token(folder, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}!")
    tokenizer = load_tokenizer(GRPOConfig(chat_template=str(template)), folder)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"
    assert tokenizer.pad_token_id is not None


def test_every_configured_end_token_stops(folder):
    model = tiny_model()
    model.generation_config.eos_token_id = [2, 7]
    assert stop_token_ids(model.config, model.generation_config, tiny_tokenizer()) == [2, 7]
    assert stop_tokens_of(GRPOConfig(), folder, tiny_tokenizer()) == [2]


def test_a_wrong_model_is_one_error_that_names_it(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "no such thing"}')
    for load in (load_model, load_tokenizer):
        with pytest.raises(UsageError, match=r"cannot load the (model|tokenizer) of") as caught:
            load(GRPOConfig(), str(tmp_path))
        assert "--model" in caught.value.hint


def test_damaged_weights_are_one_error(tmp_path):
    path = tiny_model_dir(tmp_path)
    (path / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(UsageError, match="cannot load the model of"):
        load_model(GRPOConfig(), str(path))


@pytest.mark.parametrize(
    "options", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"lora_bias": True, "target_modules": ["q_proj"]}]
)
def test_adapters_that_cannot_be_merged_are_refused(options):
    config = LoraConfig(**{"target_modules": "all-linear", **options}, task_type="CAUSAL_LM")
    with pytest.raises(UsageError, match=next(iter(options))) as caught:
        with_lora(tiny_model(), GRPOConfig(), config)
    assert caught.value.hint == "give a plain peft.LoraConfig"


def test_a_model_with_an_adapter_is_trained_as_it_is():
    adapted = get_peft_model(tiny_model().to(torch.bfloat16), LoraConfig(r=2, target_modules="all-linear"))
    assert with_lora(adapted, GRPOConfig()) is adapted
    assert {p.dtype for p in adapted.parameters() if p.requires_grad} == {torch.float32}
    with pytest.raises(UsageError, match="has an adapter already"):
        with_lora(adapted, GRPOConfig(lora_rank=4))


@pytest.mark.parametrize(("init", "zero"), [(True, True), ("gaussian", True), (False, False)])
def test_an_adapter_starts_at_zero_or_is_known_not_to(init, zero):
    config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=init)
    assert starts_at_zero(with_lora(tiny_model(), GRPOConfig(), config)) is zero
