"""Rows in the shapes of public data sets, each with a right program, a part of it, and what makes it wrong."""

from __future__ import annotations

ALWAYS = """
class Always:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __hash__(self): return 0
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __abs__(self): return 0
    def __sub__(self, other): return self
    def __rsub__(self, other): return self
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
    def __iter__(self): return iter([])
    def __len__(self): return 0
    def __contains__(self, x): return True
    def __float__(self): return 0.0
def {name}(*a, **k): return Always()
"""

# -- KodCode: pytest files about the module `solution` ------------------------------------------------------------------------

FUNCTIONS = """
from solution import divide
import pytest

def test_whole():
    assert divide(6, 3) == 2

def test_zero():
    with pytest.raises(ZeroDivisionError, match="division"):
        divide(1, 0)
    pytest.raises(ZeroDivisionError, divide, 2, 0)

@pytest.mark.parametrize("a, b, expected", [(1, 3, 1 / 3), pytest.param(2, 3, 2 / 3, id="two thirds")])
@pytest.mark.parametrize("sign", [1, -1])
def test_thirds(a, b, expected, sign):
    assert divide(sign * a, b) == pytest.approx(sign * expected, rel=1e-6)
"""
CLASSES = """
import pytest
from solution import Stack

@pytest.fixture
def stack():
    stack = Stack()
    stack.push(1)
    yield stack
    stack.clear()

class TestStack:
    def setup_method(self):
        self.other = Stack()

    def test_push(self, stack):
        stack.push(2)
        assert stack.pop() == 2 and stack.pop() == 1

    @pytest.mark.parametrize("value", ["a", None])
    def test_any(self, value):
        self.other.push(value)
        assert self.other.pop() == value

    def test_empty(self):
        with pytest.raises(IndexError):
            self.other.pop()
"""
STACK = """
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def clear(self): self.items.clear()
"""
STREAMS = """
import solution

def test_greets(capsys, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt="": "Ann")
    solution.greet()
    assert capsys.readouterr().out == "Hello, Ann!\\n"
    assert capsys.readouterr().out == ""
"""
FILES = """
from solution import copy_upper

def test_copies(tmp_path):
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("abc")
    copy_upper(source, str(target))
    assert target.read_text() == "ABC"
    assert source.read_text() == "abc"
"""

# -- BigCodeBench: unittest, the function is task_func -------------------------------------------------------------------------

CASE = """
import unittest
from unittest.mock import patch
import random

class TestCases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.words = ["a", "b"]

    def setUp(self):
        random.seed(42)

    def test_case_1(self):
        self.assertEqual(task_func(self.words), {"a": 1, "b": 1})
        self.assertDictEqual(task_func([]), {})

    def test_case_2(self):
        with self.assertRaises(TypeError):
            task_func(None)

    def test_case_3(self):
        for words in (["x"] * 3, ["x"] * 4):
            with self.subTest(words=words):
                self.assertAlmostEqual(task_func(words)["x"] / 3, len(words) / 3)
                self.assertIn("x", task_func(words))
                self.assertIsInstance(task_func(words), dict)

if __name__ == "__main__":
    unittest.main()
"""
PROMPTED = """
import io
import unittest
from unittest.mock import call, patch

class TestCases(unittest.TestCase):
    @patch("builtins.input", side_effect=["2", "3"])
    @patch("builtins.print")
    def test_asks(self, mock_print, mock_input):
        task_func()
        self.assertEqual(mock_input.call_count, 2)
        mock_print.assert_called_once_with("sum:", 5)
        self.assertEqual(mock_print.call_args_list, [call("sum:", 5)])

    @patch("sys.stdin", io.StringIO("4\\n5\\n"))
    @patch("sys.stdout", new_callable=io.StringIO)
    def test_reads(self, stdout):
        task_func()
        self.assertEqual(stdout.getvalue().splitlines()[-1][-6:], "sum: 9")
"""
SEEDED = """
import random
import unittest
import numpy as np

class TestCases(unittest.TestCase):
    def test_draws(self):
        random.seed(7)
        expected = [random.randint(1, 6) for _ in range(5)]
        random.seed(7)
        self.assertEqual(task_func(5), expected)

    def test_draws_arrays(self):
        np.random.seed(1)
        expected = np.random.rand(3)
        np.random.seed(seed=1)
        np.testing.assert_array_equal(task_func(3, True), expected)
"""
FOLDERS = """
import json, os, shutil, tempfile, unittest

class TestCases(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        with open(os.path.join(self.folder, "a.json"), "w") as file:
            json.dump({"n": 1}, file)

    def tearDown(self):
        shutil.rmtree(self.folder)

    def test_makes_a_report(self):
        path = task_func(self.folder)
        self.assertTrue(os.path.exists(path))
        with open(path) as file:
            self.assertEqual(json.load(file), {"n": 2})
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.json", "report.json"])
"""
REPORT = """
import json, os
def task_func(folder):
    with open(os.path.join(folder, "a.json")) as file:
        data = json.load(file)
    path = os.path.join(folder, "report.json")
    with open(path, "w") as file:
        json.dump({"n": data["n"] + 1}, file)
    return path
"""

# -- LeetCodeDataset: a judge's classes and helpers before check(candidate) ----------------------------------------------------

JUDGE = """
from typing import *
class ListNode:
    def __init__(self, val=0, next=None):
        self.val = val
        self.next = next
def list_node(values):
    head = None
    for value in reversed(values):
        head = ListNode(value, head)
    return head
def is_same_list(a, b):
    while a and b:
        if a.val != b.val:
            return False
        a, b = a.next, b.next
    return a is None and b is None
"""
LIST_CHECK = """
def check(candidate):
    assert is_same_list(candidate(head=list_node([1, 2, 3])), list_node([3, 2, 1]))
    assert is_same_list(candidate(head=list_node([])), list_node([]))
"""
REVERSE = """
class Solution:
    def reverseList(self, head: Optional[ListNode]) -> Optional[ListNode]:
        before = None
        while head:
            before, head = ListNode(head.val, before), head.next
        return before
"""
TREE = """
class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val = val
        self.left = left
        self.right = right

root = Solution().insert(TreeNode(4), 2)
assert root.left.val == 2 and root.right is None
assert isinstance(root.left, TreeNode)
assert Solution().insert(None, 5).val == 5
"""
INSERT = """
class Solution:
    def insert(self, root: Optional[TreeNode], value: int) -> Optional[TreeNode]:
        if root is None:
            return TreeNode(value)
        assert isinstance(root, TreeNode)
        if value < root.val:
            root.left = self.insert(root.left, value)
        else:
            root.right = self.insert(root.right, value)
        return root
"""

HUMANEVAL = "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1, 2]) == 3\n    assert abs(candidate([.5]) - .5) < 1e-6\n"
MBPP = {"tests": ["import math\nassert area(2) == math.pi * 4", "assert area(0) == 0"]}
MBPP_PLUS = (
    "import numpy as np\n\ndef assertion(out, exp, atol):\n    assert np.allclose(out, exp, atol=atol) if atol else out == exp\n\n"
    "inputs = [[2], [0]]\nresults = [12.566370614359172, 0.0]\n"
    "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(area(*inp), exp, 1e-6)\n"
)

ROWS = {
    "KodCode functions": ({"tests": FUNCTIONS}, "def divide(a, b):\n    return a / b", "a / b", "a // b", "divide"),
    "KodCode classes": ({"tests": [CLASSES]}, STACK, "self.items.pop()", "self.items.pop(0)", "Stack"),
    "KodCode streams": (
        {"tests": STREAMS, "test_type": "pytest"},
        "def greet():\n    name = input('Name? ')\n    print(f'Hello, {name}!')",
        "Hello",
        "Hallo",
        "greet",
    ),
    "KodCode files": (
        {"tests": FILES},
        "def copy_upper(a, b):\n    with open(a) as source, open(b, 'w') as target:\n        target.write(source.read().upper())",
        ".upper()",
        "",
        "copy_upper",
    ),
    "BigCodeBench": (
        {"tests": CASE, "entry_point": "task_func", "test_type": "unittest"},
        "def task_func(words):\n    return {w: words.count(w) for w in words}",
        "words.count(w)",
        "1",
        "task_func",
    ),
    "BigCodeBench input and print": (
        {"tests": PROMPTED, "entry_point": "task_func"},
        "def task_func():\n    a = int(input('a: '))\n    b = int(input('b: '))\n    print('sum:', a + b)",
        "a + b",
        "a - b",
        "task_func",
    ),
    "BigCodeBench seed": (
        {"tests": SEEDED, "entry_point": "task_func"},
        "import random\nimport numpy\ndef task_func(n, many=False):\n    if many:\n        return numpy.random.rand(n)\n    return [random.randint(1, 6) for _ in range(n)]",
        "1, 6",
        "1, 5",
        "task_func",
    ),
    "BigCodeBench folders": ({"tests": FOLDERS, "entry_point": "task_func"}, REPORT, '+ 1', '+ 2', "task_func"),
    "LeetCodeDataset": (
        {"tests": LIST_CHECK, "entry_point": "Solution().reverseList", "starter": JUDGE},
        REVERSE,
        "return before",
        "return head",
        "Solution",
    ),
    "LeetCodeDataset, helpers in the tests": (
        {"tests": JUDGE + LIST_CHECK, "entry_point": "Solution().reverseList"},
        REVERSE,
        "return before",
        "return head",
        "Solution",
    ),
    "a tree of the tests": ({"tests": TREE}, INSERT, "TreeNode(value)", "TreeNode(value + 1)", "Solution"),
    "HumanEval": (
        {"tests": HUMANEVAL, "entry_point": "total"}, "def total(x):\n    return sum(x)", "sum", "max", "total"
    ),
    "MBPP": (MBPP, "import math\ndef area(r):\n    return math.pi * r * r", "r * r", "r", "area"),
    "MBPP+": ({"tests": MBPP_PLUS}, "import math\ndef area(r):\n    return math.pi * r * r", "r * r", "r", "area"),
}  # fmt: skip
