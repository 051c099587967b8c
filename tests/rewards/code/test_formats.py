"""Rows in the shapes of public data sets: the right program passes, a wrong one and one that claims everything do not."""

from __future__ import annotations

import pytest

from postrl.rewards.code import verify, why_unscorable
from rewards.code.grading import fenced
from rewards.code.sets import ALWAYS, CASE, FUNCTIONS, ROWS


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
        ("import doctest\nassert doctest.testmod().failed == 0 and f() == 1", "tests that use doctest"),
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


LIAR = """
class Liar:
    def keys(self): return set()
    def __iter__(self): return iter(["expected.txt"])
    def __len__(self): return 1
    def __getitem__(self, name): return b"0"
"""
RAW = """
import sys
def send(changes):
    frame = sys._getframe()
    while "side" not in frame.f_locals:
        frame = frame.f_back
    frame.f_locals["side"].request("files", changes)
"""


@pytest.mark.parametrize(
    "changes", ["{'expected.txt': b'0'}", "{'./expected.txt': b'0'}", "{'x/../expected.txt': b'0'}", "Liar()"]
)
def test_a_program_that_speaks_for_itself_changes_no_file_of_the_tests_either(changes):
    tests = "open('expected.txt', 'w').write('9')\ntry:\n    f()\nexcept Exception:\n    pass\nassert open('expected.txt').read() == '0'"
    assert verify(fenced(f"{LIAR}\n{RAW}\ndef f():\n    send({changes})"), tests).value == 0


def test_files_do_not_leave_the_folder():
    tests = "import os\nf()\nassert sorted(os.listdir('.')) == ['a.txt']\nassert open('a.txt').read() == 'x'"
    assert verify(fenced("def f():\n    open('a.txt', 'w').write('x')"), tests).value == 1
    link = "import os\ndef f():\n    open('a.txt', 'w').write('x')\n    os.symlink('/etc', 'b')"
    assert verify(fenced(link), tests).value == 1  # links stay where they are
    raw = f"{RAW}\ndef f():\n    open('a.txt', 'w').write('x')\n    send({{'../b.txt': b'x'}})"
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
