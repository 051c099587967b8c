"""Runs tests that are written for unittest or pytest, in the process of the tests.

unittest is the real one. Of pytest there is what `features` lets through: `raises`, `approx`, `mark.parametrize`, fixtures,
the fixtures capsys, monkeypatch and tmp_path; importing all of it would take longer than most tests.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import unittest

from postrl.rewards.code import pytest_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


class Harness:
    """The tests of one namespace, by name."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        sys.modules["pytest"] = pytest_api

    def run(self, name: str) -> None:
        """Run `test_one`, or `TestThing.test_one`; raises what it raises."""
        *classes, method = name.split(".")
        owner: Any = None
        for each in classes:
            owner = getattr(owner, each) if owner else self.namespace[each]
        if owner is None:
            self._run_functions(self.namespace[method], None)
        elif isinstance(owner, type) and issubclass(owner, unittest.TestCase):
            run_case(owner, method)
        else:
            self._run_functions(getattr(owner, method), owner)

    def _run_functions(self, function: Callable[..., Any], owner: type | None) -> None:
        """A function of pytest's, once for each set of its parameters, with a fresh object of its class each time."""
        for parameters in parameter_sets(function, owner):
            instance = owner() if owner else None
            bound = getattr(instance, function.__name__) if owner else function
            fixtures = pytest_api.Fixtures({**self._fixtures(), **self._fixtures_of(instance)}, parameters)
            with fixtures, self._around(instance, function):
                fixtures.use_automatic()
                result = bound(**{name: fixtures.value(name) for name in arguments_of(bound)})
                if inspect.iscoroutine(result):
                    __import__("asyncio").run(result)

    def _fixtures(self) -> dict[str, Any]:
        return {name: value for name, value in self.namespace.items() if is_fixture(value)}

    def _fixtures_of(self, instance: Any) -> dict[str, Any]:
        names = [name for name, value in inspect.getmembers_static(type(instance)) if is_fixture(value)]
        return {name: getattr(instance, name) for name in names}

    def _around(self, instance: Any, function: Callable[..., Any]) -> pytest_api.Around:
        """xUnit's way: what is called before and after each test."""
        if instance is None:
            return pytest_api.Around(self.namespace.get, ("module", "function"), function)
        return pytest_api.Around(lambda name: getattr(instance, name, None), ("class", "method"), function)


def run_case(owner: type[unittest.TestCase], method: str) -> None:
    """Run one method with all that belongs to it."""
    result = Result()
    unittest.TestSuite([owner(method)]).run(result)
    if result.problem is not None:
        raise result.problem
    if not result.testsRun or result.skipped:
        raise AssertionError("the test did not run")


class Result(unittest.TestResult):
    """Keeps the first exception, as it was raised."""

    problem: BaseException | None = None

    def addError(self, test: Any, err: Any) -> None:
        self.problem = self.problem or err[1]

    def addFailure(self, test: Any, err: Any) -> None:
        self.problem = self.problem or err[1]

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.problem = self.problem or err[1]


def is_fixture(value: Any) -> bool:
    """Only functions of the tests are: an object of the candidate would say what it likes."""
    return inspect.isfunction(value) and "_postrl_fixture" in vars(value)


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """The fixtures that a function asks for: its arguments without default, without those that `mock.patch` gives."""
    found = [
        p for p in inspect.signature(function).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    mocks = [
        p
        for p in getattr(function, "patchings", [])
        if p.attribute_name is None and p.new is sys.modules["unittest.mock"].DEFAULT
    ]
    return [p.name for p in found[len(mocks) :] if p.default is p.empty]


def parameter_sets(function: Callable[..., Any], owner: type | None) -> Iterator[dict[str, Any]]:
    """The parameters of each run: every combination of the marks of a test and its class."""
    marks = [*getattr(function, "_postrl_parameters", []), *getattr(owner, "_postrl_parameters", [])]
    for combination in itertools.product(*marks):
        yield {name: value for part in combination for name, value in part.items()}
