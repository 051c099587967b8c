"""What ends a turn, by the chat templates of the field: each case is a template's manner, written small."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import CHAT_TEMPLATE, PAD, TURN_END, TURN_START, tiny_tokenizer
from postrl.rewards.text import final_part
from postrl.rollout.sampler import Sampling
from postrl.rollout.turn_end import TurnEnd, turn_end
from postrl.types import Prompt


def tokenizer_with(
    template: str | None, *, special: tuple[str, ...] = (), added: tuple[str, ...] = (), eos: str = PAD
) -> Any:
    """The tiny tokenizer with further tokens; by default its eos is not what ends a turn of ChatML."""
    tokenizer = tiny_tokenizer(chat_template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": [TURN_START, TURN_END, *special]})
    tokenizer.add_tokens(list(added))
    tokenizer.eos_token = eos
    return tokenizer


def talk(*contents: Any, last: str = "user") -> Prompt:
    messages = [{"role": "user", "content": content} for content in contents]
    return Prompt("rows:0", [*messages[:-1], {**messages[-1], "role": last}], "rendered", [1])


def found(tokenizer: Any, *prompts: Prompt) -> tuple[list[str], tuple[str, ...]]:
    """(tokens by name, texts) that end a turn."""
    end = turn_end(tokenizer, prompts or [talk("2 + 2?")])
    return tokenizer.convert_ids_to_tokens(list(end.tokens)), end.texts


LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments | tojson }}<|eom_id|>{% else %}<|eot_id|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]{% else %} {{ m['content'] }}</s>{% endif %}{% endfor %}"
)
PHI_3 = (  # two tokens behind the last message, and the first one ends it
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
HARMONY = (  # <|end|> ends a message and not the turn: the reasoning before an answer is a message of its own
    "{% for m in messages %}<|start|>{{ m['role'] }}<|message|>{{ m['content'] }}"
    "{% if loop.last and m['role'] == 'assistant' and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
GLM = (  # nothing ends a message: the next one begins
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GLM_WITH_TOOLS = GLM.replace(
    "<|{{ m['role'] }}|>\n{{ m['content'] }}",
    "<|{{ 'observation' if m['role'] == 'tool' else m['role'] }}|>\n{{ m['content'] }}{% for c in m.tool_calls or [] %}\n"
    "<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}",
)
ALWAYS_OPEN = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}<|assistant|>"
WITH_TOOLS = (  # each call has an end of its own
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call><|call_end|>\n{% endfor %}"
    "{{ '<|eom|>' if m.tool_calls else '<|im_end|>' }}\n{% endfor %}"
)
CHATML_ALWAYS_OPEN = CHAT_TEMPLATE.replace("{% if add_generation_prompt %}", "").removesuffix("{% endif %}")
COHERE = (  # two tokens that always follow each other
    "{% for m in messages %}<|start|>{{ m['role'] }}<|say|>{{ m['content'] }}<|said|><|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
WRAPPED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n<answer>{{ m['content'] }}</answer><|im_end|>\n{% endfor %}"
)
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for p in m['content'] %}{{ p.text + '' }}{% endfor %}<|im_end|>\n"
    "{% endfor %}"
)
SYSTEM_FIRST = "{{ raise_exception('no system') if messages[0].role != 'system' }}" + CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("template", "tokens", "ends"),
    [
        (CHAT_TEMPLATE, {}, [TURN_END]),
        (CHAT_TEMPLATE.replace("<|im_end|>", " <|im_end|>"), {}, [TURN_END]),
        (LLAMA_3, {"special": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>")}, ["<|eot_id|>", "<|eom_id|>"]),
        (GEMMA, {"special": ("<start_of_turn>",), "added": ("<end_of_turn>",)}, ["<end_of_turn>"]),
        (MISTRAL, {"special": ("[INST]", "[/INST]", "</s>")}, ["</s>"]),
        (PHI_3, {"special": ("<|end|>", "<|user|>", "<|assistant|>")}, ["<|end|>"]),
        (HARMONY, {"special": ("<|start|>", "<|message|>", "<|end|>", "<|return|>")}, ["<|return|>"]),
        (GLM, {"special": ("<|user|>", "<|assistant|>")}, ["<|user|>"]),
        (GLM_WITH_TOOLS, {"special": ("<|user|>", "<|assistant|>", "<|observation|>"), "added": ("<tool_call>", "</tool_call>")}, ["<|user|>", "<|observation|>"]),
        (ALWAYS_OPEN, {"special": ("<|user|>", "<|assistant|>")}, ["<|user|>"]),
        (CHATML_ALWAYS_OPEN, {}, [TURN_END]),
        (WITH_TOOLS, {"special": ("<|call_end|>", "<|eom|>"), "added": ("<tool_call>", "</tool_call>")}, [TURN_END, "<|eom|>"]),
        (WRAPPED, {"added": ("<answer>", "</answer>")}, [TURN_END]),
        (COHERE, {"special": ("<|start|>", "<|say|>", "<|said|>", "<|end|>")}, ["<|end|>"]),
        (SYSTEM_FIRST, {}, [TURN_END]),
    ],
)  # fmt: skip
def test_the_token_that_a_template_puts_behind_an_answer_ends_a_turn(template, tokens, ends):
    assert found(tokenizer_with(template, **tokens)) == (ends, ())


def test_a_template_that_takes_content_in_parts_is_asked_in_parts():
    parts = [{"type": "text", "text": "2 + 2?"}]
    assert found(tokenizer_with(PARTS), talk(parts)) == ([TURN_END], ())


def test_a_prefix_that_the_policy_goes_on_from_is_not_the_turn_it_ends():
    template = "{{ raise_exception('alternate') if messages[-1].role == messages[-2].role }}" + CHAT_TEMPLATE
    assert found(tokenizer_with(template), talk("2 + 2?", "It is", last="assistant")) == ([TURN_END], ())


def test_what_rows_give_to_the_template_is_given_to_it_here_too():
    template = CHAT_TEMPLATE.replace("<|im_end|>", "{{ '<|eom|>' if builtin_tools else '<|im_end|>' }}")
    tokenizer = tokenizer_with(template, special=("<|eom|>",))
    given = [talk("2 + 2?"), talk("3 + 3?"), talk("4 + 4?")]
    given[1].columns["chat_template_kwargs"] = {"builtin_tools": ["code"]}
    given[2].columns["tools"] = '[{"type": "function", "function": {"name": "f"}}]'
    assert found(tokenizer, *given) == ([TURN_END, "<|eom|>"], ())


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}", "\nuser:"),
        ("{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n{% endfor %}### assistant:\n", "\n### user:"),
        ("{% for m in messages %}{{ m.content }}\n### End\n\n{% endfor %}", "\n### End"),
        ("{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}", " user"),
    ],
)
def test_a_turn_that_ends_with_text_ends_a_completion_and_is_not_part_of_what_was_said(template, text):
    tokenizer = tokenizer_with(template)
    assert found(tokenizer) == ([], (text,))
    end, prompt = turn_end(tokenizer, [talk("2 + 2?")]), talk("2 + 2?")
    assert end.sampling(Sampling(1.0, 8, ("</x>",)), prompt) == Sampling(1.0, 8, ("</x>", text))
    ids = tokenizer(f"It is 4.{text} and 5?", add_special_tokens=False)["input_ids"]
    assert end.said(tokenizer, ids, prompt) == "It is 4."
    assert repr(text) in end.note(tokenizer)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content }}\n{% endfor %}",  # nothing shows where one message ends
        "{{ messages[-1].content if messages[-1].role == 'user' }}",  # drops what the assistant says
        "{{ raise_exception('one message only') if messages | length > 1 }}{{ messages[0].content }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_a_template_that_does_not_show_what_ends_a_turn_leaves_it_to_the_eos_tokens_and_says_so(template):
    tokenizer = tokenizer_with(template)
    end = turn_end(tokenizer, [talk("2 + 2?")], [tokenizer.eos_token_id])
    assert (end.tokens, end.texts) == ((), ())
    assert f"does not show what ends a turn: completions of conversations end at {PAD}" in end.note(tokenizer)


def test_a_base_model_without_a_template_has_no_turns():
    assert turn_end(tokenizer_with(None), [Prompt("rows:0", None, "2 + 2 =", [1])]) == TurnEnd()


def test_text_that_was_rendered_with_the_template_is_a_conversation_and_plain_text_is_not():
    tokenizer = tokenizer_with(CHAT_TEMPLATE)
    rendered = tokenizer.apply_chat_template(talk("2 + 2?").messages, tokenize=False, add_generation_prompt=True)
    prompt, plain = Prompt("rows:0", None, rendered, [1]), Prompt("rows:1", None, "2 + 2 =", [1])
    end = turn_end(tokenizer, [plain, prompt])
    assert end.sampling(Sampling(1.0, 8), prompt).stop_token_ids == (tokenizer.convert_tokens_to_ids(TURN_END),)
    assert end.sampling(Sampling(1.0, 8), plain) == Sampling(1.0, 8)
    assert [end.covers(p) for p in (prompt, plain, talk("2 + 2?"))] == [True, False, True]


@pytest.mark.parametrize(
    ("template", "plain"),
    [
        ("{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}### assistant:\n{% endif %}",
         "### user:\nWhat does '### assistant:' mean?"),
        (CHAT_TEMPLATE.replace("|", "!"), "<!im_start!>user\n2 + 2?<!im_end!>"),
    ],
)  # fmt: skip
def test_a_conversation_that_was_rendered_with_words_alone_is_one_where_it_ends_with_those_that_open_a_turn(
    template, plain
):
    tokenizer = tokenizer_with(template)
    rendered = tokenizer.apply_chat_template(talk("2 + 2?").messages, tokenize=False, add_generation_prompt=True)
    prompts = [Prompt("rows:0", None, text, [1]) for text in (rendered, plain, "2 + 2 =")]
    end = turn_end(tokenizer, prompts)
    assert end.texts
    assert [end.covers(prompt) for prompt in prompts] == [True, False, False]


def test_a_conversation_that_was_rendered_without_the_beginning_of_an_answer_is_one_too():
    tokenizer = tokenizer_with(CHAT_TEMPLATE.replace("assistant\n{%", "assistant\n<think>\n{%"))
    rendered = tokenizer.apply_chat_template(talk("2 + 2?").messages, tokenize=False, add_generation_prompt=True)
    assert rendered.endswith("<think>\n")
    prompts = [Prompt("rows:0", None, text, [1]) for text in (rendered, rendered.removesuffix("<think>\n"))]
    end = turn_end(tokenizer, prompts)
    assert all(map(end.covers, prompts))


def test_rewards_do_not_see_the_end_of_a_turn_that_is_no_special_token():
    tokenizer = tiny_tokenizer(chat_template="{% for m in messages %}{{ m.content }}<turn_ends>{% endfor %}")
    tokenizer.add_tokens(["<turn_ends>"])
    prompt = talk("2 + 2?")
    end = turn_end(tokenizer, [prompt])
    ids = tokenizer("It is 4.<turn_ends>", add_special_tokens=False)["input_ids"]
    assert end.said(tokenizer, ids, prompt) == "It is 4."
    assert end.said(tokenizer, ids, Prompt("rows:0", None, "2 + 2 =", [1])) == "It is 4.<turn_ends>"


def test_what_eos_settings_end_anyway_is_not_said():
    tokenizer = tokenizer_with(CHAT_TEMPLATE)
    turn, eos = tokenizer.convert_tokens_to_ids([TURN_END, PAD])
    assert turn_end(tokenizer, [talk("2 + 2?")], [turn, eos]).note(tokenizer) == ""
    assert turn_end(tokenizer, [talk("2 + 2?")], [eos]).note(tokenizer) == (
        "completions of conversations end at <|im_end|>: the chat template ends a turn with it, and the eos settings name "
        "<|endoftext|>"
    )


def test_rewards_read_tags_that_are_special_tokens_and_not_what_ends_the_text():
    tokenizer = tokenizer_with(CHAT_TEMPLATE, special=("<think>", "</think>", "<|end_of_text|>"))
    (end_of_text,) = tokenizer.convert_tokens_to_ids(["<|end_of_text|>"])
    said = "<think>It is \\boxed{5}.</think>It is \\boxed{4}."
    written = tokenizer(said, add_special_tokens=False)["input_ids"]
    assert len(written) < len(said) - len("<think></think>") + 3, "the tags are tokens"
    turn, padding = tokenizer.convert_tokens_to_ids([TURN_END, PAD])
    end = turn_end(tokenizer, [talk("2 + 2?")], [end_of_text])
    for last in ([turn], [end_of_text], [padding], []):
        assert end.said(tokenizer, [*written, *last], talk("2 + 2?")) == said
    plain = Prompt("rows:0", None, "2 + 2 =", [1])
    assert end.said(tokenizer, [*written, end_of_text], plain) == said
    unclosed = tokenizer("<think>\\boxed{4}", add_special_tokens=False)["input_ids"]
    assert final_part(end.said(tokenizer, unclosed, plain)) is None


def test_a_turn_of_its_own_that_the_policy_writes_is_seen_by_rewards():
    tokenizer = tokenizer_with(CHAT_TEMPLATE)
    said = f"It is 4.{TURN_START}user"
    ids = tokenizer(said, add_special_tokens=False)["input_ids"]
    assert turn_end(tokenizer, [talk("2 + 2?")]).said(tokenizer, ids, talk("2 + 2?")) == said


def test_a_text_is_said_as_it_was_written_whatever_its_tokenizer_cleans_up():
    tokenizer = tokenizer_with(CHAT_TEMPLATE)
    tokenizer.clean_up_tokenization_spaces = True
    tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    code = "[x for x in y if x , 5 .real]"
    assert turn_end(tokenizer, []).said(tokenizer, tokenizer(code)["input_ids"], talk("2 + 2?")) == code
