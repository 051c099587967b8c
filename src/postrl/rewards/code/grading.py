"""One completion, one verdict: find the program, run its tests, say what it is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from postrl.rewards.code import calls
from postrl.rewards.code.asserts import run_asserts
from postrl.rewards.code.extract import find_program
from postrl.rewards.code.packed import decoded
from postrl.rewards.code.sandbox import Sandbox, SandboxError
from postrl.rewards.code.stdio import Checker, Example, read_examples, run_stdio
from postrl.rewards.code.suite import Suite, read_suite
from postrl.rewards.code.verdict import NoSuite, Verdict
from postrl.rewards.score import Score

ASSERTS_WALL, STDIO_WALL = 10.0, 5.0
"""Seconds for a list of asserts, and for one stdio test or call."""
TEST_TYPES = ("asserts", "stdio", "calls")
OTHER_NAMES = {
    **dict.fromkeys(("pytest", "unittest", "assert"), "asserts"),
    **dict.fromkeys(("stdin", "stdin_stdout", "standard_input"), "stdio"),
    **dict.fromkeys(calls.FUNCTIONAL, "calls"),
}
"""What data sets call the types of tests."""
Tests = Suite | tuple[Example, ...]


@dataclass(frozen=True)
class Settings:
    """How to grade; the options of `code_reward`."""

    sandbox: Sandbox
    partial: bool = False
    checker: Checker | None = None
    timeout: float = 30.0
    test_timeout: float | None = None
    memory: int = 2 << 30


@dataclass(frozen=True)
class Row:
    """A completion and the columns of its row."""

    completion: str
    tests: Any
    test_type: str | None = None
    entry_point: str | None = None
    starter: str | None = None
    hidden_tests: Any = None


def read_tests(row: Row) -> Tests:
    """The tests of a row, the hidden ones included.

    Raises:
        ValueError: they cannot be read.
    """
    tests, hidden = decoded(row.tests), decoded(row.hidden_tests)
    kind = OTHER_NAMES.get(row.test_type or "", row.test_type) or _kind(tests, hidden)
    if kind == "calls" or calls.are_calls(_both(tests, hidden)):
        return calls.read_calls(_both(tests, hidden), row.entry_point or None, row.starter or None)
    if kind == "stdio":
        return read_examples(() if tests is None else tests) + read_examples(() if hidden is None else hidden)
    if kind != "asserts":
        raise NoSuite(f"a test_type that is not one of {', '.join(TEST_TYPES)}: {kind!r}")
    return read_suite((*_statements(tests), *_statements(hidden)), row.entry_point or None, row.starter or None)


def is_empty(tests: Tests) -> bool:
    """Whether tests test nothing: there are none, or none of them names anything that a program could define."""
    if isinstance(tests, Suite):
        return not tests.tested or not any(counts for _, counts in tests.tests)
    return not tests


def grade(row: Row, settings: Settings, *, timeout: float | None = None) -> Verdict | Score:
    """Grade one completion; a Score where there is nothing to run.

    Args:
        timeout: seconds for all of it, instead of those of the settings.
    """
    try:
        tests = read_tests(row)
    except ValueError:
        return Score(None, "gold_unscorable")
    if is_empty(tests):
        return Score(0.0, "gold_unscorable")  # no program may ever be paid for having passed nothing
    names = (*tests.required, *tests.tested) if isinstance(tests, Suite) else ()
    program = find_program(row.completion, names, row.starter or None)
    if program is None:
        return Score(0.0, "no_answer")
    seconds = settings.timeout if timeout is None else timeout
    each = not isinstance(tests, Suite) or tests.timed
    wall = min(seconds, settings.test_timeout or (STDIO_WALL if each else ASSERTS_WALL))

    def run() -> Verdict:
        memory, partial = settings.memory, settings.partial
        if isinstance(tests, Suite):
            walls = {"wall": seconds, "test_wall": wall} if each else {"wall": wall}
            return run_asserts(settings.sandbox, program, tests, **walls, memory=memory, partial=partial)
        return run_stdio(
            settings.sandbox, program, tests, wall=wall, total_wall=seconds, memory=memory, partial=partial,
            checker=settings.checker,
        )  # fmt: skip

    return _tried_twice(run)


def _tried_twice(run: Callable[[], Verdict]) -> Verdict | Score:
    """A sandbox that failed, or a machine without disk or descriptors for it, is tried once more."""
    for _ in range(2):
        try:
            return run()
        except (SandboxError, OSError):
            continue
    return Score(None, "infra_error")


def to_score(found: Verdict | Score, *, partial: bool) -> Score:
    """What a verdict is worth."""
    if isinstance(found, Score):
        return found
    value = found.share if partial else float(found.status == "correct")
    return Score(value, found.status)


# -- columns as data sets give them --------------------------------------------------------------------------------------


def _kind(tests: Any, hidden: Any) -> str:
    return "stdio" if any(isinstance(test, dict) for test in _both(tests, hidden)) else "asserts"


def _both(tests: Any, hidden: Any) -> list[Any]:
    return [
        test for part in (tests, hidden) if part is not None for test in (part if isinstance(part, list) else [part])
    ]


def _statements(tests: Any) -> tuple[str, ...]:
    if tests is None:
        return ()
    if isinstance(tests, str):
        return (tests,) if tests.strip() else ()
    if not isinstance(tests, list | tuple) or not all(isinstance(test, str) for test in tests):
        raise NoSuite(f"asserts that are not a list of Python statements: {tests!r:.100}")
    return tuple(tests)
