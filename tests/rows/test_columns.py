"""Columns that nobody has named."""

from __future__ import annotations

import pytest

from helpers import tiny_tokenizer
from postrl.config import GRPOConfig
from postrl.data.prompts import load_prompts
from postrl.errors import DataError


def load(rows, **settings):
    return load_prompts(GRPOConfig(**settings), tiny_tokenizer(), split="train", raw=rows)


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"question": "q", "answer": "a"}, "q", "a"),
        ({"problem": "q", "solution": "a"}, "q", "a"),
        ({"Instruction": "q", "label": 0}, "q", 0),
        ({"query": "q", "target": ["a"], "level": 3}, "q", ["a"]),
        ({"Prompt": "q", "ground_truth": "a"}, "q", "a"),
        ({"prompt": "q", "question": "no", "answer": "a", "solution": "no"}, "q", "a"),
    ],
)
def test_the_only_likely_column_is_taken(row, prompt, answer):
    (found,) = load([row]).prompts
    assert (found.text, found.columns["answer"]) == (prompt, answer)


def test_what_was_guessed_is_named_with_the_flag():
    (line,) = load([{"question": "q", "solution": "s"}], chat=False).notes
    assert "question for prompt (--prompt-column" in line and "solution for answer (--answer-column" in line
    assert load([{"prompt": "q", "answer": "s"}], chat=False).notes == []


def test_nothing_is_guessed_beside_what_was_given():
    rows = [{"question": "q", "text": "t", "solution": "s", "gold": "g"}]
    found = load(rows, prompt_column="text", answer_column="gold", chat=False)
    assert (found.prompts[0].text, found.prompts[0].columns["answer"], found.notes) == ("t", "g", [])


def test_the_solution_of_a_programming_task_is_no_answer():
    found = load([{"prompt": "q", "solution": "def f(): ...", "tests": ["assert f()"]}], chat=False)
    assert (found.prompts[0].columns.keys(), found.notes) == ({"solution", "tests"}, [])


def test_several_likely_columns_are_refused_and_named():
    with pytest.raises(DataError, match="no column 'prompt'; it has instruction, input, output") as caught:
        load([{"instruction": "q", "input": "x", "output": "a"}])
    assert "--prompt-column: instruction or input" in (caught.value.hint or "")


ASKED = [{"role": "user", "content": "q"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "a"}]


def test_messages_are_taken_where_they_end_with_a_question():
    (found,) = load([{"messages": ASKED, "answer": "a"}]).prompts
    assert found.messages == ASKED
    with pytest.raises(DataError, match="no column 'prompt'; it has messages"):
        load([{"messages": ANSWERED, "answer": "a"}])


@pytest.mark.parametrize("messages", [ASKED, ANSWERED])
def test_the_kind_of_a_task_is_not_taken_for_it_beside_messages(messages):
    with pytest.raises(DataError) as caught:
        load([{"task": "algebra", "messages": messages, "answer": "a"}])
    assert "--prompt-column: task or messages" in (caught.value.hint or "")


def test_a_column_of_numbers_is_no_prompt():
    with pytest.raises(DataError, match="no column 'prompt'"):
        load([{"query": 7}])


def test_a_row_without_the_guessed_answer_stays_usable():
    found = load([{"prompt": "a", "label": None}, {"prompt": "b", "label": 1}])
    assert [prompt.columns for prompt in found.prompts] == [{"label": None}, {"label": 1, "answer": 1}]
