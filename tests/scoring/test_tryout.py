"""Groups to try a reward on: made up, given, stored, sampled."""

from __future__ import annotations

import asyncio
import json

import pytest

from helpers import tiny_model_dir
from postrl.config import GRPOConfig
from postrl.errors import DataError, UsageError
from postrl.rewards import RewardRunner, resolve
from postrl.scoring.tryout import given, load_rows, made_up, sampled, score_all, wrong_answer


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def data(tmp_path):
    rows = [{"prompt": f"What is {n}+1?", "answer": str(n + 1), "level": n} for n in range(3)]
    return GRPOConfig(dataset=[write(tmp_path / "data.jsonl", *rows)])


def completions(trial):
    return [rollout.completion for rollout in trial.group.rollouts]


# -- made up -----------------------------------------------------------------------------------------------------------


def test_a_row_with_an_answer_gives_the_answer_the_same_in_a_box_and_a_wrong_one(data):
    trial = made_up(load_rows(data).prompts)[1]
    assert dict(zip(trial.origins, completions(trial), strict=True)) == {
        "the answer": "2",
        "boxed": "The answer is \\boxed{2}.",
        "wrong, boxed": "The answer is \\boxed{3}.",
    }
    assert trial.group.columns == {"answer": "2", "level": 1}


def test_an_answer_that_is_marked_already_stays_as_it_is(tmp_path):
    rows = [{"prompt": "?", "answer": "2 + 3 = 5\n#### 5"}]
    (trial,) = made_up(load_rows(GRPOConfig(dataset=[write(tmp_path / "d.jsonl", *rows)])).prompts)
    assert completions(trial) == ["2 + 3 = 5\n#### 5", "2 + 3 = 5\n#### 6"]


def test_a_row_with_tests_gives_its_solution_and_an_empty_program(tmp_path):
    rows = [{"prompt": "?", "test_type": "asserts", "tests": ["assert f() == 1"], "solution": "def f():\n    return 1"}]
    (trial,) = made_up(load_rows(GRPOConfig(dataset=[write(tmp_path / "d.jsonl", *rows)])).prompts)
    assert completions(trial) == ["def f():\n    return 1", "```python\npass\n```"]


def test_a_row_without_an_answer_asks_for_completions(tmp_path):
    found = load_rows(GRPOConfig(dataset=[write(tmp_path / "d.jsonl", {"prompt": "Tell me a joke.", "topic": "cats"})]))
    with pytest.raises(UsageError, match=r"the row d:0 has no answer .*\(columns: topic\)") as caught:
        made_up(found.prompts)
    assert "--completions" in caught.value.hint


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("7", "8"),
        ("0", "1"),
        ("99", "100"),
        ("1,299", "1,300"),
        ("-5", "-6"),
        ("\\frac{1}{2}", "\\frac{1}{3}"),
        ("Paris", "siraP"),
        ("x", "not x"),
        ("9" * 5000, "1" + "0" * 5000),
    ],
)
def test_a_wrong_answer_is_one_of_the_same_kind(answer, wrong):
    assert wrong_answer(answer) == wrong


# -- given -------------------------------------------------------------------------------------------------------------


def test_line_i_of_a_file_is_about_row_i(data, tmp_path):
    lines = [{"completion": "1"}, {"completions": ["2", "two"], "level": "hard"}]
    _, trials = given(data, write(tmp_path / "c.jsonl", *lines), 10)
    assert [completions(trial) for trial in trials] == [["1"], ["2", "two"]]
    assert trials[1].origins == ["line 2", "line 2"]
    assert trials[1].group.columns == {"answer": "2", "level": "hard"}
    assert trials[1].group.prompt == "What is 1+1?"


def test_without_a_data_set_the_lines_are_the_rows(tmp_path):
    message = [{"role": "assistant", "content": "8"}]
    lines = [{"completion": "7", "answer": "7", "prompt": "3 + 4?"}, {"completion": message, "answer": "7"}]
    _, trials = given(GRPOConfig(), write(tmp_path / "c.jsonl", *lines), 10)
    assert [(trial.group.prompt, trial.group.columns, completions(trial)) for trial in trials] == [
        ("3 + 4?", {"answer": "7"}, ["7"]),
        ("(no prompt)", {"answer": "7"}, ["8"]),
    ]


def test_only_as_many_lines_as_asked_for_are_taken(data, tmp_path):
    _, trials = given(data, write(tmp_path / "c.jsonl", *[{"completion": "1"}] * 3), 2)
    assert len(trials) == 2


def test_a_line_about_a_row_that_does_not_exist_is_an_error(data, tmp_path):
    with pytest.raises(DataError, match=r"line 4 is about row 3 of data, which does not exist"):
        given(data, write(tmp_path / "c.jsonl", *[{"completion": "1"}] * 4), 10)


def test_a_row_that_is_left_out_does_not_shift_the_others(tmp_path):
    rows = [{"prompt": "a?", "answer": "A"}, {"prompt": "b?", "answer": ""}, {"prompt": "c?", "answer": "C"}]
    data = GRPOConfig(dataset=[write(tmp_path / "d.jsonl", *rows)])
    with pytest.raises(DataError, match="line 2 is about row 1 of d, which does not exist or is not usable"):
        given(data, write(tmp_path / "c.jsonl", *[{"completion": text} for text in "ABC"]), 10)


@pytest.mark.parametrize("line", [{"text": "7"}, {"completion": None}, {"completions": []}, {"completions": ["7", 8]}])
def test_a_line_without_a_completion_is_an_error(data, tmp_path, line):
    with pytest.raises(DataError, match="line 1 has no completion"):
        given(data, write(tmp_path / "c.jsonl", line), 10)


# -- scored ------------------------------------------------------------------------------------------------------------


def test_trials_are_scored_and_timed(data):
    trials = made_up(load_rows(data).prompts)
    seen = []
    with RewardRunner([resolve("arithmetic")], timeout=60.0) as runner:
        asyncio.run(score_all(runner, trials, lambda: seen.append(1)))
    assert [[r.reward for r in trial.group.rollouts] for trial in trials] == [[1.0, 1.0, 0.0]] * 3
    assert all(trial.seconds > 0 for trial in trials)
    assert len(seen) == 3


def test_completions_can_be_sampled_from_a_model_in_this_process(data, tmp_path):
    path = str(tiny_model_dir(tmp_path / "tiny"))
    data.max_completion_length = 5
    found, trials = asyncio.run(sampled(data, path, 2, 3))
    assert found.name == "data"
    assert [trial.group.prompt for trial in trials] == ["What is 0+1?", "What is 1+1?"]
    for trial in trials:
        assert trial.origins == ["sampled"] * 3
        assert all(0 < len(rollout.completion_ids) <= 5 for rollout in trial.group.rollouts)
    assert asyncio.run(sampled(data, path, 2, 3))[1][0].group.rollouts == trials[0].group.rollouts
