"""Rows whose tests are calls with their results, in the shapes of APPS, TACO, LiveCodeBench and what was made of them."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib

import pytest

from postrl.rewards.code import scorable, verify, why_unscorable
from rewards.code.grading import fenced

ADD = "def add(a, b):\n    return a + b"
METHOD = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b"
STEPS = "class Cache:\n    def __init__(self, size: int):\n        \n    def get(self, key: int) -> int:\n        "
LINKED = "# class ListNode:\n#     def __init__(self, val=0): ...\nclass Solution:\n    def rev(\n        self, head: Optional[ListNode]\n    ) -> int:\n        "
DOCUMENTED = 'class Solution:\n    def f(self, root):\n        """\n        :type root: TreeNode\n        :rtype: None Do not return\n        """\n        '
ALWAYS = "class Always:\n    def __eq__(self, other): return True\n    def __getitem__(self, i): return self\n\ndef add(a, b):\n    return Always()"


def functional(*pairs, **more):
    return [{"input": given, "output": result, "testtype": "functional", **more} for given, result in pairs]


def compressed(value):
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


SHAPES = {
    "APPS": {"tests": {"fn_name": "add", "inputs": [[3, 4], [1, 2]], "outputs": [[7], [3]]}},
    "APPS as text": {"tests": '{"fn_name": "add", "inputs": [[3, 4], [1, 2]], "outputs": [[7], [3]]}'},
    "results without a list": {"tests": {"fn_name": "add", "inputs": [[3, 4], [1, 2]], "outputs": [7, 3]}},
    "named as stdio": {"tests": {"fn_name": "add", "inputs": [[3, 4]], "outputs": [[7]]}, "test_type": "stdio"},
    "named as asserts": {"tests": {"fn_name": "add", "inputs": [[3, 4]], "outputs": [[7]]}, "test_type": "asserts"},
    "lines of text": {"tests": {"fn_name": "add", "inputs": ["3\n4", "1\n2"], "outputs": ["7", "3"]}},
    "a function in each": {"tests": [{"fn_name": "add", "type": "function_call", "input": [3, 4], "output": [7]}]},
    "metadata in each": {"tests": functional(("3\n4", "7"), metadata={"func_name": "add"})},
    "metadata as text": {"tests": functional(("3\n4\n", "7"), metadata='{"func_name": "add"}')},
    "an entry point": {"tests": json.dumps(functional(("3\n4", "7"))), "entry_point": "add"},
    "a method as the entry point": {"tests": functional(("3\n4", "7")), "entry_point": "Solution().add"},
    "starter code": {
        "tests": functional(("3\n4", "7")),
        "starter": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    },
    "plain types on many lines": {
        "tests": functional(("3\n4", "7")),
        "starter": "class Solution:\n    def add(\n        self, a: Union[int, Any],\n        b: Optional[int] = None,\n    ) -> int:\n        ",
    },
    "a type of the test": {"tests": [{"input": [3, 4], "output": 7}], "test_type": "functional", "entry_point": "add"},
    "private tests": {
        "tests": functional(("3\n4", "7")),
        "hidden_tests": compressed(json.dumps(functional(("1\n2", "3")))),
        "entry_point": "add",
    },
}


@pytest.mark.parametrize("row", SHAPES.values(), ids=SHAPES)
def test_a_function_is_called(row):
    assert scorable(row)
    assert verify(fenced(ADD), **row).value == 1
    assert verify(fenced(METHOD), **row).value == 1
    assert verify(fenced(ADD.replace("+", "-")), **row).value == 0
    assert verify(fenced(ALWAYS), **row).value == 0
    assert verify(fenced("print(7)"), **row).value == 0
    assert verify("Seven.", **row).status == "no_answer"


RESULTS = [
    ("x", [[["a", "b"]]], [["ab"]], "''.join(x)", True),
    ("x", [["abc"]], [["cba"]], "x[::-1]", True),
    ("x", ["abc"], ["cba"], "x[::-1]", True),
    ("x", ["abc", "12"], ["cba", "21"], "x[::-1]", True),
    ("x", ['"12"'], ['"21"'], "x[::-1]", True),
    ("x", [[[1, 2]]], [[[2, 1]]], "x[::-1]", True),
    ("x", [[[1, 2]]], [[2, 1]], "x[::-1]", True),
    ("x", [[[1, 2]]], [[2, 1]], "2", False),
    ("x", [[[1, 2]]], [[[2, 1]]], "tuple(x[::-1])", True),
    ("x", [[[1, 2]]], [[[[1, 2], [1, 2]]]], "[tuple(x), tuple(x)]", True),
    ("x", [[[1, 2]]], [[[2, 1]]], "set(x)", False),
    ("x", [[3]], [[0.3333333]], "1 / x", True),
    ("x", [[3]], [[0.3334]], "1 / x", False),
    ("x", [[3]], [[3]], "x + 1e-9", False),
    ("x", [[3]], [[3]], "float(x)", True),
    ("x", [[3]], [["3"]], "x", False),
    ("x", [[3]], [[True]], "x == 3", True),
    ("x", [[3]], [[None]], "None", True),
    ("x", [[3]], [[None]], "0", False),
    ("x", [[{"1": 2}]], [[{"2": 1}]], "{v: k for k, v in x.items()}", True),
    ("x", [[{"a": 2}]], [[{"a": 4}]], "{k: 2 * v for k, v in x.items()}", True),
    ("x", [[2], [3]], [[[4]], [[9]]], "[x * x]", True),
    ("x", [[2], [3]], [[4], [9]], "[x * x]", True),
    ("*x", [[]], [[0]], "len(x)", True),
    ("x, y", ["[1, 2]\n'a'"], ['["a", 2]'], "[y, len(x)]", True),
    ("x", [[float("nan")]], [[float("nan")]], "x", True),
    ("x", [["é"]], [["É"]], "x.upper()", True),
]


@pytest.mark.parametrize(("parameters", "inputs", "outputs", "result", "right"), RESULTS)
def test_results_are_compared_as_json(parameters, inputs, outputs, result, right):
    tests = {"fn_name": "f", "inputs": inputs, "outputs": outputs}
    assert verify(fenced(f"def f({parameters}):\n    return {result}"), tests).value == right


def test_arguments_are_fresh_for_each_call():
    tests = {"fn_name": "f", "inputs": [[[1, 2]], [[1, 2]]], "outputs": [[2], [2]]}
    assert verify(fenced("def f(x):\n    x.append(3)\n    return len(x) - 1"), tests).value == 1
    assert verify(fenced("seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen) + 1"), tests).value == 0


def test_partial_counts_calls():
    tests = {"fn_name": "f", "inputs": [[1], [2], [3], [4]], "outputs": [[1], [2], [3], [16]]}
    assert verify(fenced("def f(x):\n    return x"), tests, partial=True).value == 0.75


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"tests": functional(("3\n4", "7"))}, "call tests without the name of a function"),
        ({"tests": {"fn_name": "a b", "inputs": [[1]], "outputs": [[1]]}}, "call tests without the name of a function"),
        (
            {"tests": [*functional(("3", "7"), fn_name="f"), {"input": "1", "output": "1", "testtype": "stdin"}]},
            "tests of two kinds, calls and standard input",
        ),
        (
            {"tests": {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1]]}},
            "call tests need inputs and outputs, as many of",
        ),
        ({"tests": {"fn_name": "__init__", "inputs": [[1]], "outputs": [[1]]}}, "call tests of a class, step by step"),
        ({"tests": functional(("[]", "[]")), "starter": STEPS}, "call tests of a class, step by step"),
        (
            {"tests": functional(("[]", "[]")), "starter": LINKED},
            "call tests whose values are not of the class ListNode",
        ),
        (
            {"tests": functional(("[]", "3")), "starter": DOCUMENTED},
            "call tests whose values are not of the class TreeNode",
        ),
        ({"tests": {"fn_name": ["f"], "inputs": [[1]], "outputs": [[1]]}}, "call tests whose function is not a name"),
        ({"tests": functional(("a b\n4", "7")), "entry_point": "f"}, "arguments that are not JSON"),
        ({"tests": compressed(Harmful())}, "compressed tests that are neither JSON nor a pickled string"),
        ({"tests": compressed(["x"])}, "compressed tests that are neither JSON nor a pickled string"),
        ({"tests": ["assert f(1 =="]}, "a test is not valid Python"),
        ({"tests": []}, "no tests of anything that a program could define"),
    ],
)
def test_rows_that_cannot_be_graded_say_why(row, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert why_unscorable(row).startswith(reason)
    assert verify(fenced("def f(x):\n    return x"), **row).status == "gold_unscorable"
    assert not list(tmp_path.iterdir())


def test_stdio_rows_of_live_code_bench_are_scripts():
    tests = json.dumps([{"input": "3 4\n", "output": "7\n", "testtype": "stdin"}])
    assert verify(fenced("print(sum(map(int, input().split())))"), tests).value == 1


def test_a_function_that_returns_nothing_is_judged_by_its_argument():
    row = {
        "tests": functional(("[3, 1, 2]", "[1, 2, 3]")),
        "starter": "class Solution:\n    def order(self, x: List[int]) -> None:\n        ",
    }
    assert verify(fenced("class Solution:\n    def order(self, x):\n        x.sort()"), **row).value == 1
    assert verify(fenced("class Solution:\n    def order(self, x):\n        x.reverse()"), **row).value == 0
    assert verify(fenced("def order(x):\n    x.sort()"), row["tests"], entry_point="order").value == 0


def test_each_call_has_its_own_time():
    tests = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [2]]}
    endless = verify(fenced("def f(x):\n    while x > 1: pass\n    return x"), tests, test_timeout=1.0, partial=True)
    assert (endless.status, endless.value) == ("timeout", 0.5)
    slow = "import time\ndef f(x):\n    time.sleep(1)\n    return x"
    assert verify(fenced(slow), tests, test_timeout=1.9).value == 1
