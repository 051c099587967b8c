from __future__ import annotations

import pytest

from postrl.rewards.code import scorable
from postrl.rewards.code.suite import NoSuite, read_suite

CHECK = "METADATA = {'author': 'x'}\n\n\ndef check(candidate):\n    assert candidate(3) == 9\n"


def names_in(*tests: str, **row: str) -> tuple[str, ...]:
    return read_suite(tests, **row).tested


def test_names_that_the_tests_use_and_do_not_define_are_tested():
    assert names_in("import math\nx = 2\nassert math.sqrt(square(x)) == len([1, 2])") == ("square",)
    assert names_in("s = Stack()\ns.push(1)", "assert s.pop() == 1") == ("Stack",)
    assert names_in("def helper(f):\n    return f(3)", "assert helper(square) == 9") == ("square",)
    assert names_in("assert [inc(x) for x in range(3)] == [1, 2, 3]\nassert (lambda f: f(1))(dec) == 0") == (
        "dec",
        "inc",
    )


def test_the_prelude_is_not_tested():
    assert names_in("assert math.isclose(half(3), 1.5)", "assert Counter(f()) == {}") == ("f", "half")


def test_a_function_that_is_named_like_a_builtin_is_tested_when_nothing_else_is():
    assert names_in("assert sum(10, 15) == 6") == ("sum",)
    assert names_in("assert sorted(filter([2, 1])) == [1, 2]") == ("filter",)
    assert names_in("assert set(similar((3, 4))) == set((4,))") == ("similar",)


def test_the_entry_point_is_what_has_to_be_there():
    suite = read_suite((CHECK,), entry_point="square")
    assert suite.tests[-1] == ("check(square)", True)
    assert suite.required == suite.tested == ("square",)
    assert read_suite((CHECK, "check(square)"), entry_point="square").tests == ((CHECK, False), ("check(square)", True))
    assert read_suite(("assert candidate(3) == 9",), entry_point="square").tests[0] == ("candidate = square", False)
    assert read_suite(("assert Solution().f(3) == 9",), entry_point="Solution().f").required == ("Solution",)


def test_helpers_of_the_starter_are_the_data_sets_own():
    starter = 'import math\n\ndef poly(x):\n    return math.fabs(x)\n\ndef find_zero():\n    """Find it."""\n'
    suite = read_suite(("assert poly(find_zero()) < 1e-4",), entry_point="find_zero", starter=starter)
    assert suite.tested == ("find_zero",)
    assert "def poly" in suite.helpers and "def find_zero" not in suite.helpers
    assert read_suite(("assert find_zero() == 1",), "find_zero", starter).helpers == ""


@pytest.mark.parametrize(
    "body", ['"""It is to be written."""', "pass", "...", "raise NotImplementedError()", '"""Doc."""\n        pass']
)
def test_what_the_starter_leaves_empty_is_the_candidates(body):
    function = f"def square(n):\n    {body}\n".replace("\n        ", "\n    ")
    assert read_suite(("assert square(3) == 9",), starter=function).tested == ("square",)
    method = f"class Solution:\n    def __init__(self): self.n = 0\n    def square(self, n):\n        {body}\n"
    assert read_suite(("assert Solution().square(3) == 9",), starter=method).tested == ("Solution",)
    assert read_suite(("assert square(3) == 9",), starter="def square(n):\n    return n * n\n").tested == ()


def test_setup_does_not_count_as_a_test():
    suite = read_suite(("import math", "x = f(1)", "def g(): pass", "'''Text.'''", "assert x == 1", "f(2)"))
    assert [counts for _, counts in suite.tests] == [False, False, False, False, True, True]


def test_assertions_in_loops_are_marked():
    (test, _), (plain, _) = read_suite(("while q():\n    assert pop() == 1", "assert q()  # as it is")).tests
    assert test.count("_postrl") == 2
    assert plain == "assert q()  # as it is"


@pytest.mark.parametrize("test", ["assert f(3 ==", "return 1", "\0", "(" * 1000, "assert f(1) = 2"])
def test_tests_that_are_no_python_are_refused(test):
    with pytest.raises(NoSuite):
        read_suite((test,))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"tests": ["assert f(1) == 1"]}, True),
        ({"tests": "assert f(1) == 1"}, True),
        ({"tests": '["assert f(1) == 1"]'}, True),
        ({"tests": [CHECK], "entry_point": "f"}, True),
        ({"tests": [], "hidden_tests": ["assert f(1) == 1"]}, True),
        ({"tests": [{"input": "1", "output": "1"}]}, True),
        ({"tests": [{"input": "1", "output": ""}], "test_type": "stdio"}, True),
        ({"tests": {"inputs": ["1", "2"], "outputs": ["1", "2"]}}, True),
        ({"tests": '{"inputs": ["1"], "outputs": ["1"]}'}, True),
        ({"tests": [{"input": ["1", "2"], "output": ["3"]}]}, True),
        ({}, False),
        ({"tests": None}, False),
        ({"tests": []}, False),
        ({"tests": ""}, False),
        ({"tests": ["assert True"]}, False),
        ({"tests": ["import math"]}, False),
        ({"tests": ["assert f(1 =="]}, False),
        ({"tests": [3]}, False),
        ({"tests": 3}, False),
        ({"tests": [], "test_type": "stdio"}, False),
        ({"tests": ["1"], "test_type": "stdio"}, False),
        ({"tests": [{"input": "1"}], "test_type": "stdio"}, False),
        ({"tests": {"inputs": ["1", "2"], "outputs": ["1"]}}, False),
        ({"tests": [{"input": 1, "output": None}]}, False),
        ({"tests": ["assert f(1) == 1"], "test_type": "unittest"}, True),
        ({"tests": ["assert f(1) == 1"], "test_type": "doctest"}, False),
    ],
)
def test_scorable(columns, expected):
    assert scorable(columns) is expected
