"""Rows of public data sets of programming tasks get the columns of the reward `code`."""

from __future__ import annotations

import json

import pytest

from helpers import tiny_tokenizer
from postrl.config import GRPOConfig
from postrl.data.prompts import load_prompts
from postrl.rewards.code import scorable, verify
from postrl.rows.programming import code_columns

CALLS = json.dumps({"fn_name": "double", "inputs": [[2], [3]], "outputs": [[4], [6]]})
CHECK = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 6\n"
FUNCTIONAL = [{"input": "2", "output": "4", "testtype": "functional"}]
PYTEST = "from solution import double\n\ndef test_double():\n    assert double(2) == 4\n"
UNITTEST = "import unittest\nclass TestCases(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(double(2), 4)\n"
ROWS = {
    "APPS": {"question": "q", "input_output": CALLS, "solutions": "[]", "starter_code": ""},
    "TACO": {"question": "q", "input_output": CALLS, "starter_code": "def double(x):\n    "},
    "LiveCodeBench": {
        "question_content": "q", "public_test_cases": json.dumps(FUNCTIONAL), "private_test_cases": json.dumps(FUNCTIONAL),
        "metadata": '{"func_name": "double"}', "starter_code": "class Solution:\n    def double(self, x: int) -> int:\n        ",
    },
    "DeepCoder": {"problem": "q", "tests": json.dumps(FUNCTIONAL), "metadata": {"func_name": "double"}},
    "verifiable coding": {
        "prompt": "q",
        "verification_info": {"language": "python", "test_cases": [{"type": "function_call", "fn_name": "double", "input": [2], "output": [4]}]},
    },
    "KodCode": {"question": "q", "solution": "def double(x): ...", "test": PYTEST},
    "BigCodeBench": {
        "instruct_prompt": "q", "complete_prompt": "", "code_prompt": "import math\ndef double(x):\n", "test": UNITTEST, "entry_point": "double",
    },
    "LeetCodeDataset": {"prompt": "class Node:\n    pass\n", "query": "q", "test": CHECK, "entry_point": "Solution().double"},
    "HumanEval": {"prompt": 'def double(x):\n    """Twice x."""\n', "test": CHECK, "entry_point": "double"},
    "MBPP": {"text": "q", "prompt": "q", "test_list": ["assert double(2) == 4"], "test_setup_code": "", "challenge_test_list": []},
}  # fmt: skip
PROGRAM = (
    "```python\nclass Solution:\n    def double(self, x):\n        return {}\n\ndef double(x):\n    return {}\n```"
)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_can_be_graded_as_it_comes(row):
    columns = {**row, **code_columns(row)}
    assert scorable(columns)
    row = {name: columns.get(name) for name in ("tests", "entry_point", "starter", "hidden_tests")}
    assert verify(PROGRAM.format("2 * x", "2 * x"), **row).value == 1
    assert verify(PROGRAM.format("3 * x", "3 * x"), **row).value == 0


def test_rows_of_other_kinds_stay_as_they_are():
    assert code_columns({"question": "q", "answer": "4", "test": "which one?"}) == {}
    assert code_columns({"prompt": "q", "test": True, "metadata": "x"}) == {}
    assert code_columns({"prompt": "q", "tests": ["assert f(1) == 1"], "entry_point": "f"}) == {}


def test_columns_of_the_row_are_kept():
    row = {
        "tests": ["assert f(1) == 1"],
        "test_list": ["assert g(1) == 1"],
        "starter": "x = 1\n",
        "starter_code": "y = 1\n",
    }
    assert code_columns(row) == {}


def test_a_data_set_is_loaded_with_them():
    rows = [ROWS["APPS"], {**ROWS["APPS"], "input_output": '{"inputs": ["1\\n"], "outputs": ["2\\n"]}'}]
    loaded = load_prompts(GRPOConfig(reward=["code"]), tiny_tokenizer(), split="train", raw=rows)
    assert [prompt.text for prompt in loaded.prompts] == ["q", "q"]
    assert [json.loads(prompt.columns["tests"]).get("fn_name") for prompt in loaded.prompts] == ["double", None]
