"""Code rewards: programs that a model wrote, run against tests in a sandbox.

    code_reward(completions, tests)                        # asserts, as in HumanEval and MBPP
    code_reward(completions, tests, test_type=["stdio"] * n)     # inputs and outputs of a script
    code_reward(completions, tests, test_type=["calls"] * n)     # arguments and results of a function

What counts as an answer is in `extract`, which test files and calls there are in `collect` and `calls`, what tests may ask of
the candidate's process in `features` and `shared`, how asserts are run without the candidate seeing them in `asserts`, `tester`
and `candidate`, how outputs are compared in `compare`, what a program may do in `sandbox`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial as bind
from typing import Any

from postrl.errors import UsageError
from postrl.rewards.code.grading import Row, Settings, grade, is_empty, read_tests, to_score
from postrl.rewards.code.sandbox import choose
from postrl.rewards.code.stdio import Checker
from postrl.rewards.code.verdict import Verdict
from postrl.rewards.score import Score
from postrl.rewards.text import text_of
from postrl.user_code import find_function, load_function

VERSION = "code 2"
MOST_AT_ONCE = 8
"""Samples that are run at the same time, on a machine with as many cores: a crowd turns slow programs into timeouts."""
LEAST_RETRY = 2.0
"""Seconds that must be left of a sample's time for a second try."""

__all__ = ["VERSION", "Checker", "code_reward", "scorable", "verify", "why_unscorable"]


def code_reward(
    completions: Sequence[Any],
    tests: Sequence[Any],
    test_type: Sequence[str | None] | None = None,
    entry_point: Sequence[str | None] | None = None,
    starter: Sequence[str | None] | None = None,
    hidden_tests: Sequence[Any] | None = None,
    *,
    partial: bool = False,
    sandbox: str = "auto",
    checker: Checker | str | None = None,
    timeout: float = 30.0,
    test_timeout: float | None = None,
    memory_gb: float = 2.0,
) -> list[Score]:
    """1 where the program in a completion passes all tests, else 0.

    Columns, one item a completion, None where a row has none:
        tests: asserts: a list of Python statements, or a test file; stdio and calls: a list of objects with `input` and
            `output`, for calls with `fn_name` or of the type "functional".
        test_type: "asserts", "stdio" or "calls"; default: what the tests look like.
        entry_point: asserts and calls: the function or class to write; default: all names that the tests use and do not define.
        starter: code that a completion may go on with instead of repeating it (HumanEval's prompt).
        hidden_tests: more tests of the same kind, which no prompt shows.

    Args:
        partial: the share of tests passed instead. All are run then.
        sandbox: "strict", "landlock", "basic", or "auto", the strongest that works here; see `sandbox`.
        checker: stdio problems with many right answers: `checker(input, output, expected) -> bool`, called in this
            process in place of the comparison; also as "file.py:function" or "package.module:function".
        timeout: seconds for one sample.
        test_timeout: seconds for its list of asserts (default 10) or for each stdio test or call (default 5). A sample that takes
            longer while other programs keep this machine busy is tried once more, alone.
        memory_gb: GiB of memory for one program.

    Statuses: correct, wrong, no_answer (no program), timeout, resource (memory, output, processes, disk), crashed (it
    ended, or broke the connection), gold_unscorable (None where the tests cannot be read, 0 where they test nothing),
    infra_error (None: the sandbox failed, twice).

    Raises:
        UsageError: the sandbox does not work here, or the checker cannot be found.
        ValueError: a column with another number of items.
    """
    settings = Settings(
        sandbox=choose(sandbox),
        partial=partial,
        checker=_loaded(checker),
        timeout=timeout,
        test_timeout=test_timeout,
        memory=int(memory_gb * (1 << 30)),
    )
    columns = [_column(c, len(completions)) for c in (tests, test_type, entry_point, starter, hidden_tests)]
    rows = [Row(text_of(c), *values) for c, *values in zip(completions, *columns, strict=True)]
    return [to_score(found, partial=partial) for found in _grade_all(rows, settings)]


def verify(
    completion: Any,
    tests: Any,
    test_type: str | None = None,
    entry_point: str | None = None,
    starter: str | None = None,
    hidden_tests: Any = None,
    **options: Any,
) -> Score:
    """The score of one completion; `code_reward` says what the arguments mean."""
    return code_reward([completion], [tests], [test_type], [entry_point], [starter], [hidden_tests], **options)[0]


def scorable(columns: dict[str, Any]) -> bool:
    """Whether a row has tests that can be read and that test something."""
    try:
        return not is_empty(read_tests(_row(columns)))
    except ValueError:
        return False


def why_unscorable(columns: dict[str, Any]) -> str:
    """In a few words, why a row's tests cannot be run; "" where they can."""
    if scorable(columns):
        return ""
    try:
        read_tests(_row(columns))
    except ValueError as error:
        return str(error).partition(":")[0]
    return "no tests of anything that a program could define"


def _row(columns: dict[str, Any]) -> Row:
    known = ("test_type", "entry_point", "starter", "hidden_tests")
    return Row("", columns.get("tests"), **{name: columns.get(name) for name in known})


def _version(sandbox: str = "auto") -> str:
    """What is stored with each reward."""
    return f"{VERSION}, sandbox {choose(sandbox).level}"


code_reward.version = _version  # type: ignore[attr-defined]


def _grade_all(rows: Sequence[Row], settings: Settings) -> list[Verdict | Score]:
    """All rows, some at a time. Timeouts on a machine that others keep busy are then looked at again, one by one."""
    cores = _cores()
    begin = time.monotonic()
    with ThreadPoolExecutor(min(cores, MOST_AT_ONCE), thread_name_prefix="code") as pool:
        found = list(pool.map(bind(_timed, settings=settings), rows))
    left = settings.timeout
    verdicts = [verdict for verdict, _ in found]
    for number, (verdict, seconds) in enumerate(found):
        late = isinstance(verdict, Verdict) and verdict.status == "timeout" and os.getloadavg()[0] > cores
        budget = min(left, settings.timeout - seconds)
        if late and budget >= LEAST_RETRY:
            begin = time.monotonic()
            verdicts[number] = grade(rows[number], settings, timeout=budget)
            left -= time.monotonic() - begin
    return verdicts


def _timed(row: Row, settings: Settings) -> tuple[Verdict | Score, float]:
    begin = time.monotonic()
    return grade(row, settings), time.monotonic() - begin


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _column(values: Iterable[Any] | None, count: int) -> Iterable[Any]:
    return itertools.repeat(None, count) if values is None else values


def _loaded(checker: Checker | str | None) -> Checker | None:
    if not isinstance(checker, str):
        return checker
    found = find_function(checker, "checker")
    if found is None:
        raise UsageError(f"the checker is {checker!r}", hint="write it as file.py:function or package.module:function")
    return load_function(found)
