"""Tests that are the arguments and the result of a call, as in APPS, TACO and LiveCodeBench.

    read_calls([{"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}])      # tests of add(1, 2)

What data sets write is read into a `Suite`, whose statements compare with `expect`, so such tests run as all others do.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from postrl.rewards.code.prelude import MEMBERS
from postrl.rewards.code.suite import Suite
from postrl.rewards.code.verdict import NoSuite

FUNCTIONAL = {"functional", "function_call", "call", "calls", "call_based"}
"""What data sets call the kind of such a test."""
PLAIN = {*MEMBERS["typing"].split(), "None", "True", "False", "Decimal", "Counter"}
"""What is written with a capital and is no class of a data set, where starter code says what a function takes."""
DOCUMENTED = re.compile(r":r?type[^:\n]*:[ \t]*([\w.\[\]]+)")
METHOD = re.compile(r"^[ \t]*def[ \t]+(\w+)[ \t]*\(", re.MULTILINE)


def are_calls(tests: Any) -> bool:
    """Whether decoded tests name a function to call, or say that they call one.

    Raises:
        NoSuite: some do and some do not.
    """
    found = [_is_call(test) for test in _as_list(tests) if isinstance(test, dict)]
    if any(found) and not all(found):
        raise NoSuite("tests of two kinds, calls and standard input")
    return any(found)


def read_calls(tests: Any, entry_point: str | None = None, starter: str | None = None) -> Suite:
    """Read the tests of a row.

    Args:
        tests: objects with `input` and `output`, or with lists of both under `inputs` and `outputs`. An input is a list
            of arguments, or text with a JSON value a line. An output is the value, in a list of its own or not, or JSON
            text where inputs are text.
        entry_point: the function, for tests that do not name it; a method of `class Solution` as well.
        starter: code that names it when nothing else does.

    Raises:
        NoSuite: they are something else.
    """
    rows = _as_list(tests)
    name = _function(rows, entry_point, starter)
    if objects := _classes(name, starter or ""):
        raise NoSuite(f"call tests whose values are not of the class {min(objects)}")
    pairs = [pair for row in rows for pair in _pairs(row)]
    arguments, textual = _arguments([given for given, _ in pairs])
    results = _results([result for _, result in pairs]) if textual else [result for _, result in pairs]
    wrapped = not textual and all(isinstance(result, list) and len(result) == 1 for result in results)
    calls = zip(arguments, results, strict=True)
    how = {"wrapped": wrapped, "in_place": _works_in_place(name, starter)}
    code = [f"_postrl_expect({name}, {json.dumps(a)!r}, {json.dumps(r)!r}, **{how})" for a, r in calls]
    tests = tuple((line, True) for line in code)
    return Suite(tests=tests, tested=(name,), required=(name,), constants=False, timed=True)


def _as_list(tests: Any) -> list[Any]:
    return tests if isinstance(tests, list) else [] if tests is None else [tests]


def _is_call(test: dict[str, Any]) -> bool:
    kind = test.get("testtype", test.get("type"))
    return bool(_named(test)) or (isinstance(kind, str) and kind in FUNCTIONAL)


def _named(test: dict[str, Any]) -> Any:
    metadata = test.get("metadata")
    return (
        test.get("fn_name")
        or test.get("func_name")
        or (metadata.get("func_name") if isinstance(metadata, dict) else None)
    )


def _function(rows: Sequence[Any], entry_point: str | None, starter: str | None) -> str:
    """`Solution().two_sum` asks for `two_sum`."""
    named: list[str] = [found for row in rows if isinstance(row, dict) and (found := _named(row))]
    if not all(isinstance(found, str) for found in named):
        raise NoSuite("call tests whose function is not a name")
    names = set(named)
    if not names and entry_point:
        names = {entry_point.rpartition(".")[2].strip().removesuffix("()")}
    written = set(METHOD.findall(starter or ""))
    if "__init__" in (names or written):
        raise NoSuite("call tests of a class, step by step")
    names = names or {name for name in written if not name.startswith("_")}
    name = names.pop() if len(names) == 1 else None
    if name is None or not name.isidentifier():
        raise NoSuite("call tests without the name of a function")
    return name


def _classes(name: str, starter: str) -> set[str]:
    """Classes of the data set that the function takes or gives (ListNode, TreeNode), as its head or docstring in the starter
    says; the tests have lists in their place."""
    head = re.search(rf"def[ \t]+{name}[ \t]*\((.*?):[ \t]*(?:#.*)?$", starter, re.MULTILINE | re.DOTALL)
    if head is None:
        return set()
    documented = DOCUMENTED.findall(starter, head.end())
    return set(re.findall(r"\b[A-Z]\w*", " ".join([head[1], *documented]))) - PLAIN


def _works_in_place(name: str, starter: str | None) -> bool:
    """Whether the starter says that the function returns nothing: its result is its first argument then (LeetCode)."""
    return re.search(rf"def[ \t]+{name}[ \t]*\([^)]*\)[ \t]*->[ \t]*None[ \t]*:", starter or "") is not None


def _pairs(row: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(row, dict):
        raise NoSuite("a call test that is not an object with input and output")
    inputs, outputs = row.get("inputs"), row.get("outputs")
    if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
        return zip(inputs, outputs)
    if "input" not in row or "output" not in row:
        raise NoSuite("call tests need inputs and outputs, as many of the one as of the other")
    return [(row["input"], row["output"])]


def _arguments(inputs: Sequence[Any]) -> tuple[list[list[Any]], bool]:
    """The arguments of each call, and whether they were text. Text in which a row's inputs hold no JSON is one argument."""
    if not any(isinstance(given, str) for given in inputs):
        return [given if isinstance(given, list) else [given] for given in inputs], False
    if not all(isinstance(given, str) for given in inputs):
        raise NoSuite("inputs of calls that are text and lists")
    values = [_values(given) for given in inputs]
    if all(found is not None for found in values):
        return [found or [] for found in values], True
    if any("\n" in given.strip("\n") for given in inputs):
        raise NoSuite("arguments that are not JSON")
    return [[given] for given in inputs], True


def _results(outputs: Sequence[Any]) -> list[Any]:
    if not all(isinstance(result, str) for result in outputs):
        return list(outputs)
    values = [_values(result) for result in outputs]
    if all(found is not None and len(found) == 1 for found in values):
        return [found[0] for found in values if found]
    return list(outputs)


def _values(text: str) -> list[Any] | None:
    """The values of a text, one a line; None where a line is not a value."""
    try:
        return [_value(line) for line in text.split("\n") if line.strip()]
    except ValueError:
        return None


def _value(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        pass
    try:
        value = ast.literal_eval(line.strip())
        json.dumps(value)  # a set, bytes
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError("no value") from None
    return value
