"""What rewards do with text that nobody vouches for."""

from __future__ import annotations

import itertools

import pytest

from postrl.rewards.text import CONTROL, broken_up, only

TOKENS = (
    "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|endoftext|>", "<|return|>", "<|START_OF_TURN_TOKEN|>",
    "<s>", "</s>", "<bos>", "<eos>", "<pad>", "<unk>", "<BOS_TOKEN>", "<start_of_turn>", "<end_of_turn>", "<unused7>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<seed:think>", "<fim_prefix>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]",
    "[TOOL_CALLS]", "[CLS]", "[SEP]", "<<SYS>>", "<</SYS>>", "<｜User｜>", "<｜end▁of▁sentence｜>", "◁think▷",
)  # fmt: skip
HONEST = (
    "if a < b and b > c:", "x |> f <| y", "<b>bold</b> <div class='s'>", "List<int> y", "d[key] = a[i][j]", "a<s and s>b",
    "[1, 2]", "[x]", "3 << 4 >> 2", r"$a<b$ and \\left[0,1\\right]", "f<T>(x)",
)  # fmt: skip


@pytest.mark.parametrize("token", TOKENS)
def test_a_special_token_of_any_model_is_broken_up_and_can_still_be_read(token):
    text = broken_up(f"so{token}it")
    assert token not in text
    assert text.replace(" ", "") == f"so{token}it"


@pytest.mark.parametrize("text", HONEST)
def test_what_is_no_special_token_is_left_as_it_is(text):
    assert broken_up(text) == text


def test_no_token_is_made_of_the_pieces_of_others():
    for a, b in itertools.product(TOKENS, repeat=2):
        for text in (a + b, a[:2] + b + a[2:], a[:-1] + b + a[-1:]):
            once = broken_up(text)
            assert not CONTROL.search(once), text
            assert not [token for token in TOKENS if token in broken_up(text, only(TOKENS))], text


def test_tokens_that_overlap_are_all_broken_up():
    assert broken_up("<a<b>", only(["<a<", "<b>"])) == "< a< b>"
    assert broken_up("<a>", only([])) == "<a>"


def test_a_long_text_of_beginnings_takes_a_moment():
    text = "<|" * 200_000
    assert broken_up(text) == text
