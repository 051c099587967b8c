"""What tests use of pytest, as its documentation says it; stands under its name in the process of the tests."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import math
import re
import sys
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any


def fail(reason: str = "", pytrace: bool = True) -> None:
    raise AssertionError(reason)


# -- exceptions ------------------------------------------------------------------------------------------------------------


class Caught:
    """What `raises` gives: the exception, once it was raised."""

    value: Any = None
    type: Any = None

    def match(self, pattern: str) -> bool:
        if not re.search(pattern, str(self.value)):
            raise AssertionError(f"{pattern!r} does not match {str(self.value)!r:.200}")
        return True


@contextlib.contextmanager
def _raises(kinds: Any, match: Any, check: Callable[[Any], bool] | None) -> Iterator[Caught]:
    caught = Caught()
    try:
        yield caught
    except kinds as error:
        caught.value, caught.type = error, type(error)
        if match is not None:
            caught.match(match)
        if check is not None and check(error) is not True:
            raise AssertionError(f"{error!r:.200} is not what was expected") from None
        return
    raise AssertionError(f"did not raise {kinds}")


def raises(
    expected_exception: Any, *call: Any, match: Any = None, check: Callable[[Any], bool] | None = None, **named: Any
) -> Any:
    """A context manager; with a function and its arguments the call itself."""
    if not call:
        return _raises(expected_exception, match, check)
    with _raises(expected_exception, match, check) as caught:
        call[0](*call[1:], **named)
    return caught


# -- numbers ---------------------------------------------------------------------------------------------------------------


class approx:
    """A value that numbers near it equal: within `rel` (1e-6) of it or `abs` (1e-12). Also lists, tuples and dicts of such.

    Only numbers do: what an object of the candidate says about itself is not asked.
    """

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None
    __array_priority__ = 100

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False) -> None:
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"

    def __eq__(self, actual: object) -> bool:
        return self._near(_plain(actual), _plain(self.expected))

    def __ne__(self, actual: object) -> bool:
        return not self == actual

    def _near(self, actual: Any, expected: Any) -> bool:
        if isinstance(expected, dict):
            same = isinstance(actual, dict) and actual.keys() == expected.keys()
            return same and all(self._near(actual[key], value) for key, value in expected.items())
        if isinstance(expected, list | tuple):
            same = isinstance(actual, list | tuple) and len(actual) == len(expected)
            return same and all(map(self._near, actual, expected))
        if isinstance(expected, bool) or not isinstance(expected, int | float | complex) or not _is_number(expected):
            return bool(actual == expected)
        return _is_number(actual) and self._close(actual, expected)

    def _close(self, actual: Any, expected: Any) -> bool:
        if actual == expected:
            return True
        if actual != actual or expected != expected:
            return bool(self.nan_ok and actual != actual and expected != expected)
        if math.isinf(abs(expected)) or math.isinf(abs(actual)):
            return False
        default = 1e-6 if self.abs is None else 0.0
        relative = abs(expected) * (default if self.rel is None else self.rel)
        return bool(abs(actual - expected) <= max(relative, 1e-12 if self.abs is None else self.abs))


def _is_number(x: Any) -> bool:
    return type(x) in (int, float, complex, bool) or type(x).__module__ in ("decimal", "fractions")


def _plain(x: Any) -> Any:
    return x.tolist() if type(x).__module__ == "numpy" else x


# -- marks and fixtures ----------------------------------------------------------------------------------------------------


class Parameters(tuple):  # type: ignore[type-arg]
    """The values of `param`."""


def param(*values: Any, marks: Any = (), id: Any = None) -> Parameters:
    return Parameters(values)


def _parametrize(names: Any, values: Iterable[Any], **_: Any) -> Callable[[Any], Any]:
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    sets = []
    for value in values:
        several = len(listed) > 1 or isinstance(value, Parameters)
        sets.append(dict(zip(listed, value if several else (value,), strict=True)))

    def mark(target: Any) -> Any:
        target._postrl_parameters = [*getattr(target, "_postrl_parameters", []), sets]
        return target

    return mark


class Mark:
    """`mark.anything`, with arguments or without, changes nothing but by `parametrize`."""

    parametrize = staticmethod(_parametrize)

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **_: given[0] if len(given) == 1 and callable(given[0]) else lambda target: target


mark = Mark()


def fixture(function: Any = None, *, scope: Any = "function", autouse: bool = False, **_: Any) -> Any:
    """Made anew for each test, whatever its scope."""

    def decorate(function: Any) -> Any:
        function._postrl_fixture = autouse
        return function

    return decorate if function is None else decorate(function)


class _Named:
    """Classes of pytest that only annotations name."""

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


class FixtureRequest(_Named):
    pass


class Fixtures(contextlib.ExitStack):
    """The fixtures of one run of one test, made when first asked for and ended with it."""

    def __init__(self, functions: dict[str, Any], values: dict[str, Any]) -> None:
        super().__init__()
        self.functions, self.values = functions, dict(values)

    def use_automatic(self) -> None:
        for name, function in self.functions.items():
            if function._postrl_fixture:
                self.value(name)

    def value(self, name: str) -> Any:
        if name not in self.values:
            self.values[name] = self._made(name)
        return self.values[name]

    def _made(self, name: str) -> Any:
        if name not in self.functions:
            return self.enter_context(BUILTIN[name]())
        function = self.functions[name]
        made = function(**{each: self.value(each) for each in inspect.signature(function).parameters})
        if not inspect.isgenerator(made):
            return made
        value = next(made)
        self.callback(next, made, None)
        return value


class Around:
    """`setup_X` before and `teardown_X` after a test, of the module or of an object."""

    def __init__(self, find: Callable[[str], Any], kinds: tuple[str, ...], function: Any) -> None:
        self.find, self.kinds, self.function = find, kinds, function

    def __enter__(self) -> None:
        for kind in self.kinds:
            self._call(f"setup_{kind}")

    def __exit__(self, *_: object) -> None:
        for kind in reversed(self.kinds):
            self._call(f"teardown_{kind}")

    def _call(self, name: str) -> None:
        if callable(found := self.find(name)):
            takes = inspect.signature(found).parameters
            found(*[self.function] * len(takes))


Captured = namedtuple("Captured", ["out", "err"])


class CaptureFixture(_Named):
    """Standard output and error since the last look."""

    def __enter__(self) -> CaptureFixture:
        self.streams = sys.stdout, sys.stderr
        self._begin()
        return self

    def _begin(self) -> None:
        self.out, self.err = sys.stdout, sys.stderr = io.StringIO(), io.StringIO()

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self.streams

    def disabled(self) -> Any:
        return contextlib.nullcontext()

    def readouterr(self) -> Captured:
        found = Captured(self.out.getvalue(), self.err.getvalue())
        self._begin()
        return found


class MonkeyPatch(_Named):
    """`setattr(object, name, value)` or `setattr("module.name", value)`, undone after the test."""

    def __enter__(self) -> MonkeyPatch:
        self.before: list[tuple[Any, str, Any]] = []
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, value in reversed(self.before):
            setattr(owner, name, value)

    def setattr(self, target: Any, *rest: Any, raising: bool = True) -> None:
        if isinstance(target, str):
            module, _, name = target.rpartition(".")
            target, rest = importlib.import_module(module), (name, *rest)
        name, value = rest
        self.before.append((target, name, getattr(target, name)))
        setattr(target, name, value)


@contextlib.contextmanager
def _tmp_path() -> Iterator[Any]:
    yield importlib.import_module("pathlib").Path(importlib.import_module("tempfile").mkdtemp())


BUILTIN: dict[str, Callable[[], Any]] = {
    "capsys": CaptureFixture, "capfd": CaptureFixture, "monkeypatch": MonkeyPatch, "tmp_path": _tmp_path,
}  # fmt: skip
