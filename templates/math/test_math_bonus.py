"""`pytest` runs these: the bonus, and that the built-in reward can read every answer in data.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from math_bonus import one_box

from postrl.rewards.math import math_reward

ROWS = [json.loads(line) for line in Path(__file__).with_name("data.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("text", ["3 + 4 = 7, so \\boxed{7}", "$\\boxed{\\frac{1}{2}}$.", "\\boxed{7}"])
def test_one_box_at_the_end_is_tidy(text: str) -> None:
    assert one_box([text]) == [1.0]


@pytest.mark.parametrize(
    "text", ["7", "\\boxed{6} or \\boxed{7}", "\\boxed{}", "\\boxed{7", "\\boxed{7} or something else entirely"]
)
def test_no_box_two_boxes_or_more_text_is_not(text: str) -> None:
    assert one_box([text]) == [0.0]


def test_messages_are_read_like_texts() -> None:
    assert one_box([[{"role": "assistant", "content": "\\boxed{7}"}]]) == [1.0]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["answer"])
def test_every_answer_in_the_data_can_be_scored(row: dict[str, str]) -> None:
    completions = [f"\\boxed{{{row['answer']}}}", "\\boxed{-12345}"]
    assert [score.value for score in math_reward(completions, answer=[row["answer"]] * 2)] == [1.0, 0.0]
