"""Special tokens at the ends of a prompt: those before it once, none behind it."""

from __future__ import annotations

import re

import pytest
from tokenizers.processors import TemplateProcessing

from helpers import CHAT_TEMPLATE, PAD, TURN_END, tiny_tokenizer
from postrl.config import GRPOConfig
from postrl.data.prompts import load_prompts
from postrl.errors import DataError
from postrl.rows.tokens import added_tokens, check_vocabulary, encode_prompts, encode_whole

BOS, EOS = "<s>", "</s>"


def tokenizer_adding(single: str, *, same: bool = False, pair: tuple[str, ...] = ()):
    """A tokenizer of the Llama kind, whose post-processor makes `single` of a text; `same`: bos is eos too."""
    found = tiny_tokenizer(chat_template="{{ bos_token }}" + CHAT_TEMPLATE)
    found.add_special_tokens({"bos_token": BOS, "eos_token": BOS if same else EOS})
    found.add_special_tokens({"additional_special_tokens": list(pair)}) if pair else None
    tokens = [(token, found.convert_tokens_to_ids(token)) for token in (BOS, EOS, *pair) if token in single]
    found.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=tokens)
    return found


def ids_of(tokenizer, text: str) -> list[int]:
    (found,) = encode_prompts(tokenizer, [text], templated=False)
    return found


def test_a_row_that_was_rendered_with_the_template_has_one_beginning_like_its_messages():
    tokenizer = tokenizer_adding(f"{BOS} $A")
    messages = [{"role": "user", "content": "What is 1+1?"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered.startswith(BOS) and tokenizer(rendered)["input_ids"].count(tokenizer.bos_token_id) == 2
    text, conversation = load_prompts(
        GRPOConfig(), tokenizer, split="train", raw=[{"prompt": rendered}, {"prompt": messages}]
    ).prompts
    assert text.token_ids == conversation.token_ids
    assert text.token_ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("text", ["hi", f"{BOS}hi", f" \n{BOS}hi", f"{BOS}{BOS}hi", f"{BOS} {BOS}hi"])
@pytest.mark.parametrize("single", [f"{BOS} $A", f"{BOS} $A {EOS}"])
def test_a_text_begins_once_and_does_not_end(single, text):
    tokenizer = tokenizer_adding(single)
    assert ids_of(tokenizer, text) == [tokenizer.bos_token_id, *tokenizer("hi", add_special_tokens=False)["input_ids"]]


def test_a_tokenizer_that_only_ends_texts_gives_prompts_that_go_on():
    tokenizer = tokenizer_adding(f"$A {EOS}")
    assert ids_of(tokenizer, "hi") == tokenizer("hi", add_special_tokens=False)["input_ids"]


def test_a_tokenizer_that_adds_nothing_leaves_texts_as_they_are():
    tokenizer = tiny_tokenizer()
    assert added_tokens(tokenizer) == ((), ())
    for text in (f"{PAD}hi", f"{PAD}{PAD}hi", "hi"):
        assert tokenizer.decode(ids_of(tokenizer, text)) == text


def test_one_token_for_beginning_and_end_stays_at_the_beginning():
    tokenizer = tokenizer_adding(f"{BOS} $A {BOS}", same=True)
    bos = tokenizer.bos_token_id
    assert (ids_of(tokenizer, BOS), ids_of(tokenizer, "")) == ([bos], [bos])
    assert ids_of(tokenizer, f"{BOS}hi") == [bos, *tokenizer("hi", add_special_tokens=False)["input_ids"]]


def test_several_tokens_before_a_text_come_once_together():
    tokenizer = tokenizer_adding("[lang] <s> $A", pair=("[lang]",))
    before = tokenizer.convert_tokens_to_ids(["[lang]", BOS])
    hi = tokenizer("hi", add_special_tokens=False)["input_ids"]
    assert [ids_of(tokenizer, text) for text in ("hi", "[lang]<s>hi", "[lang]hi")] == [[*before, *hi]] * 3


@pytest.mark.parametrize("text", [f"hi{EOS}", f"hi{EOS}\n", f"{BOS}hi{EOS}"])
def test_a_text_that_ends_with_the_end_is_refused_with_its_row(text):
    with pytest.raises(DataError, match="train:0: the prompt ends with </s>") as caught:
        load_prompts(GRPOConfig(), tokenizer_adding(f"{BOS} $A"), split="train", raw=[{"prompt": text}])
    assert "add_generation_prompt" in (caught.value.hint or "")


@pytest.mark.parametrize("eos", [TURN_END, PAD])
def test_a_turn_that_was_rendered_without_the_next_one_is_refused(eos):
    """Also where the eos token, as that of a base model, is another than the one that ends a turn."""
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = eos
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert rendered.rstrip().endswith(TURN_END)
    with pytest.raises(DataError, match=re.escape("train:0: the prompt ends with <|im_end|>")):
        load_prompts(GRPOConfig(), tokenizer, split="train", raw=[{"prompt": rendered}])


def test_a_text_to_be_read_whole_begins_and_ends_once():
    tokenizer = tokenizer_adding(f"{BOS} $A {EOS}")
    expected = tokenizer("hi")["input_ids"]
    assert [encode_whole(tokenizer, text) for text in ("hi", f"{BOS}hi", f" {BOS}hi{EOS}")] == [expected] * 3


def test_a_token_that_the_model_does_not_know_is_refused_before_it_is_read():
    tokenizer = tiny_tokenizer()
    known = len(tokenizer)
    tokenizer.add_tokens(["<new>"])
    fine, new = load_prompts(
        GRPOConfig(), tokenizer, split="train", raw=[{"prompt": "a"}, {"prompt": "a <new>"}]
    ).prompts
    assert str(known + 1) in check_vocabulary([fine], tokenizer, known), "no prompt holds it: a line is enough"
    assert check_vocabulary([fine, new], tokenizer, known + 1) == ""
    with pytest.raises(
        DataError, match=f"train:1 has the token {known} .*<new>.* knows {known} tokens.* has {known + 1}"
    ):
        check_vocabulary([fine, new], tokenizer, known)
