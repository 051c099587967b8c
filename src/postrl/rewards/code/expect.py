"""The result of a call against the one that a data set has for it, as JSON knows it: in the process of the tests."""

from __future__ import annotations

import json
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TOLERANCE = 1e-6
PLAIN = (type(None), bool, int, float, str)


def expect(function: Callable[..., Any], arguments: str, expected: str, *, wrapped: bool, in_place: bool) -> None:
    """Call the function, and raise AssertionError unless the result is the expected one.

    Args:
        arguments, expected: JSON text.
        wrapped: whether the expected result may be the only item of `expected`.
        in_place: whether the result is what becomes of the first argument.
    """
    given, wanted = [with_whole_keys(argument) for argument in json.loads(arguments)], json.loads(expected)
    result = function(*given)
    if in_place and result is None and given:
        result = given[0]
    if not (same(result, wanted) or (wrapped and same(result, wanted[0]))):
        raise AssertionError(f"{arguments:.200} gives {result!r:.200}, expected {expected:.200}")


def with_whole_keys(argument: Any) -> Any:
    """JSON has no integers as keys: an object whose keys all look like them is a dict of integers, as APPS reads it."""
    if not isinstance(argument, dict) or not all(key.removeprefix("-").isdecimal() for key in argument):
        return argument
    return {int(key): value for key, value in argument.items()}


def same(result: Any, expected: Any) -> bool:
    """Whether a value is what JSON says: tuples are lists, keys are text, and a number with a point is met within 1e-6,
    absolute or relative. Everything else is equal as in Python."""
    kind = type(result)
    if type(expected) is list:
        return kind in (list, tuple) and len(result) == len(expected) and all(map(same, result, expected))
    if type(expected) is dict:
        if not isinstance(result, dict) or not all(type(key) in PLAIN for key in result):
            return False
        texts = {str(key): value for key, value in result.items()}
        return texts.keys() == expected.keys() and all(same(texts[key], value) for key, value in expected.items())
    if type(expected) is float and kind in (int, float):
        return _close(result, expected)
    return kind in PLAIN and result == expected


def _close(result: float, expected: float) -> bool:
    if math.isnan(expected):
        return result != result
    return math.isclose(result, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
