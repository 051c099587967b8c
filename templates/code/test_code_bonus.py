"""`pytest` runs these: the bonus, and that the tests in data.jsonl tell right from wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from code_bonus import documented

from postrl.rewards.code import code_reward

ROWS = [json.loads(line) for line in Path(__file__).with_name("data.jsonl").read_text(encoding="utf-8").splitlines()]
WITH = '```python\ndef f(x):\n    """Twice x."""\n    return 2 * x\n```'
WITHOUT = "```python\ndef f(x):\n    return 2 * x\n```"


def test_a_docstring_is_worth_a_bonus() -> None:
    assert documented([WITH, WITHOUT]) == [1.0, 0.0]
    assert documented([[{"role": "assistant", "content": f"Here it is:\n\n{WITH}\n"}]]) == [1.0]


@pytest.mark.parametrize("text", ["", "no code at all", "```python\ndef f(:\n```", "(" * 5000, "x\0y"])
def test_what_is_no_code_is_not(text: str) -> None:
    assert documented([text]) == [0.0]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["tests"][0])
def test_every_solution_in_the_data_passes_and_an_empty_one_fails(row: dict[str, Any]) -> None:
    completions = [f"```python\n{row['solution']}\n```", "```python\npass\n```"]
    scores = code_reward(completions, test_type=[row["test_type"]] * 2, tests=[row["tests"]] * 2)
    assert [score.value for score in scores] == [1.0, 0.0]
