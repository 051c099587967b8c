"""Rows in the shapes of public data sets: the right program passes, a wrong one and one that claims everything do not."""

from __future__ import annotations

import pytest

from postrl.rewards.code import verify, why_unscorable
from rewards.code.grading import fenced

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


@pytest.mark.parametrize(("row", "program", "part", "instead", "name"), ROWS.values(), ids=ROWS)
def test_rows_of(row, program, part, instead, name):
    assert why_unscorable(row) == ""
    assert part in program
    assert verify(fenced(program), test_timeout=20.0, **row).value == 1
    assert verify(fenced(program.replace(part, instead)), test_timeout=20.0, **row).value == 0
    assert verify(fenced(ALWAYS.replace("{name}", name)), test_timeout=20.0, **row).value == 0


@pytest.mark.parametrize("name", ["KodCode streams", "KodCode files", "BigCodeBench folders", "BigCodeBench seed"])
def test_what_tests_share_with_a_program_is_shared_without_namespaces_too(name):
    row, program, part, instead, _ = ROWS[name]
    assert verify(fenced(program), sandbox="landlock", test_timeout=20.0, **row).value == 1
    assert verify(fenced(program.replace(part, instead)), sandbox="landlock", test_timeout=20.0, **row).value == 0


def test_each_collected_test_counts():
    program = "def divide(a, b):\n    return a // b"
    assert verify(fenced(program), FUNCTIONS, partial=True, test_timeout=20.0).value == pytest.approx(2 / 3)
    wrong = "def task_func(words):\n    return dict.fromkeys(words, 1)"
    assert verify(fenced(wrong), CASE, None, "task_func", partial=True, test_timeout=20.0).value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("from unittest.mock import patch\nwith patch('os.system', return_value=1):\n    assert f() == 1", "tests that patch os.system"),
        (["from unittest.mock import patch", "with patch('os.system', return_value=1):\n    assert f() == 1"], "tests that patch os.system"),
        ("import warnings\nwith warnings.catch_warnings(record=True) as w:\n    f()\nassert w", "tests that record warnings"),
        ("from unittest import mock\n@mock.patch('solution.g')\ndef test_f(g):\n    assert f() == 1", "tests that patch solution.g"),
        ("from unittest.mock import MagicMock\ndb = MagicMock()\ndb.get.return_value = 1\nassert f(db) == 1", "tests that hand over mock objects"),
        ("import os\nos.environ['X'] = '1'\nassert f() == 1", "tests that use os.environ"),
        ("import pandas as pd\nassert f(pd.DataFrame()) == 1", "tests that import pandas, whose objects do not cross"),
        ("import no_such_library\nassert f() == 1", "tests that import no_such_library, which is not installed"),
        ("import unittest\nclass TestF(unittest.TestCase):\n    def test_f(self):\n        with self.assertLogs():\n            f()", "tests that use assertLogs"),
        ("def test_f(client):\n    assert f(client) == 1", "tests with the fixture client"),
        ("def test_f(monkeypatch):\n    monkeypatch.setenv('X', '1')\n    assert f() == 1", "tests that use monkeypatch.setenv"),
        ("import pytest\n@pytest.mark.xfail\ndef test_f():\n    assert f() == 1", "tests that use pytest.mark.xfail"),
        ("import pytest\ndef test_f():\n    with pytest.warns(UserWarning):\n        f()", "tests that use pytest.warns"),
        ("import pytest\n@pytest.mark.skip\ndef test_f():\n    assert f() == 1", "no tests of anything"),
        ("import pytest\ndef test_f():\n    with pytest.raises(AssertionError):\n        f()", "tests that expect AssertionError"),
        ("class Bad(Exception): pass\ntry:\n    f()\nexcept Bad:\n    pass", "tests that expect an exception of their own"),
        ("import subprocess, sys\nassert subprocess.run([sys.executable, 'solution.py']).returncode == f()", "tests that use subprocess"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_name(tests, reason):
    row = {"tests": tests}
    assert why_unscorable(row).startswith(reason)
    assert verify(fenced("def f(*a):\n    return 1"), tests).status == "gold_unscorable"


def test_a_starter_with_a_library_that_is_not_here_is_refused():
    starter = "import no_such_library\ndef f(x):\n"
    assert (
        why_unscorable({"tests": ["assert f(1) == 1"], "starter": starter})
        == "code that imports no_such_library, which is not installed"
    )
    assert why_unscorable({"tests": ["assert f(1) == 1"], "starter": "import math\ndef f(x):\n"}) == ""


HACKS = {
    "skips": "import unittest\ndef f(x):\n    raise unittest.SkipTest('no')",
    "asserts": "def f(x):\n    raise AssertionError",
    "exits": "def f(x):\n    raise SystemExit(0)",
    "patches unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef f(x):\n    return 0",
    "writes a module": "open('unittest.py', 'w').write('raise SystemExit')\ndef f(x):\n    return 0",
    "keyboard": "def f(x):\n    raise KeyboardInterrupt",
}


@pytest.mark.parametrize("hack", HACKS.values(), ids=HACKS)
def test_a_program_ends_no_test_of_unittest(hack):
    tests = (
        "import unittest\nclass TestF(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(3), 9)\n"
    )
    assert verify(fenced(hack), tests, test_timeout=20.0).value == 0


def test_a_file_of_the_tests_changes_only_where_they_name_it():
    tests = "import os\nopen('expected.txt', 'w').write('9')\nf(3, 'out.txt')\nassert open('out.txt').read() == open('expected.txt').read()"
    honest = "def f(x, path):\n    with open(path, 'w') as file:\n        file.write(str(x * x))"
    assert verify(fenced(honest), tests).value == 1
    hack = "def f(x, path):\n    for p in (path, 'expected.txt'):\n        with open(p, 'w') as file:\n            file.write('0')"
    assert verify(fenced(hack), tests).value == 0


def test_files_do_not_leave_the_folder():
    tests = "import os\nf()\nassert sorted(os.listdir('.')) == ['a.txt']\nassert open('a.txt').read() == 'x'"
    assert verify(fenced("def f():\n    open('a.txt', 'w').write('x')"), tests).value == 1
    link = "import os\ndef f():\n    open('a.txt', 'w').write('x')\n    os.symlink('/etc', 'b')"
    assert verify(fenced(link), tests).value == 1  # links stay where they are
    raw = (
        "import sys\ndef f():\n    open('a.txt', 'w').write('x')\n    frame = sys._getframe()\n"
        "    while 'side' not in frame.f_locals:\n        frame = frame.f_back\n"
        "    frame.f_locals['side'].request('files', {'../b.txt': b'x'})"
    )
    assert verify(fenced(raw), tests).value == 0


def test_what_is_printed_while_a_program_is_loaded_is_no_output_of_a_call():
    tests = "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    f()\nassert out.getvalue() == 'hi\\n'"
    assert verify(fenced("print('loaded')\ndef f():\n    print('hi')"), tests).value == 1
    assert (
        verify(
            fenced("import sys\ndef f():\n    sys.stdout.write('h')\n    sys.stdout.buffer.write(b'i\\n')"), tests
        ).value
        == 1
    )
    assert verify(fenced("def f():\n    print('ho')"), tests).value == 0
    assert verify(fenced("import sys\ndef f():\n    print('hi', file=sys.stderr)"), tests).value == 0


def test_a_class_that_asserts_is_not_given_away():
    tests = (
        "class Judge:\n    answer = 42\n    def check(self, x):\n        assert x == self.answer\n\nJudge().check(f())"
    )
    assert verify(fenced("def f():\n    return 42"), tests).value == 1
    assert verify(fenced("def f():\n    return Judge().answer"), tests).value == 0


def test_files_and_members_of_classes_of_the_tests_are_handed_over():
    tests = "import io\nassert f(io.StringIO('a\\nb')) == ['a', 'b']\nout = io.StringIO()\ng(out)\nassert out.getvalue() == 'x'"
    program = "def f(file):\n    return [line.strip() for line in file.readlines()]\ndef g(file):\n    file.write('x')"
    assert verify(fenced(program), tests).value == 1
    assert verify(fenced(program.replace("'x'", "'y'")), tests).value == 0
    tests = "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\n\nassert f(Color.RED) is Color.BLUE"
    assert verify(fenced("def f(x):\n    return Color.BLUE if x == Color.RED else Color.RED"), tests).value == 1
    assert verify(fenced("def f(x):\n    return Color.RED"), tests).value == 0


def test_nested_classes_async_tests_and_plain_asserts_with_pytest_are_run():
    tests = (
        "import pytest\nimport unittest\n\nclass TestAll:\n    class TestSmall:\n        @pytest.mark.asyncio\n        async def test_it(self):\n"
        "            assert await f(1) == 2\n\nclass Cases(unittest.IsolatedAsyncioTestCase):\n    async def test_it(self):\n"
        "        self.assertEqual(await f(2), 3)\n"
    )
    assert verify(fenced("async def f(x):\n    return x + 1"), tests, partial=True).value == 1
    assert verify(fenced("async def f(x):\n    return 2"), tests, partial=True).value == 0.5
    assert (
        verify(fenced("def f():\n    return 0.1 + 0.2"), "import pytest\nassert f() == pytest.approx(0.3)").value == 1
    )


def test_functions_that_tests_patch_are_called_with_them():
    tests = (
        "import random, unittest\nfrom unittest.mock import patch\n\nclass TestCases(unittest.TestCase):\n"
        "    @patch('random.randint', side_effect=[3, 4])\n    @patch('time.sleep')\n    def test_patched(self, sleep, randint):\n"
        "        self.assertEqual(roll(2), 7)\n        randint.assert_called_with(1, 6)\n        sleep.assert_called_once_with(100)\n\n"
        "    @patch('time.sleep')\n    def test_seeded(self, sleep):\n        random.seed(3)\n        expected = random.randint(1, 6)\n"
        "        random.seed(3)\n        self.assertEqual(roll(1), expected)\n"
    )
    program = "from random import randint\nimport time\ndef roll(n):\n    time.sleep(100)\n    return sum(randint(1, 6) for _ in range(n))"
    assert verify(fenced(program), tests, partial=True).value == 1
    assert verify(fenced(program.replace("1, 6", "1, 7")), tests).value == 0
    assert verify(fenced(program.replace("time.sleep(100)", "pass")), tests).value == 0


def test_the_limit_of_recursion_that_tests_set_is_the_programs():
    program = "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)"
    assert verify(fenced(program), "import sys\nsys.setrecursionlimit(5000)\nassert f(3000) == 3000").value == 1
    assert verify(fenced(program), "assert f(3000) == 3000").value == 0
