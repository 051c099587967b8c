"""numpy's comparisons in the tests' process, for which no array is close to everything.

`numpy.allclose([], 7.0)` is true: an empty array broadcasts against one value, and all of nothing holds. A program that
returns nothing has not met the expected value.
"""

from __future__ import annotations

import functools
import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

COMPARING = {
    "numpy": ("allclose", "isclose", "array_equiv"),
    "numpy.testing": (
        "assert_allclose", "assert_almost_equal", "assert_array_almost_equal", "assert_array_equal", "assert_equal",
    ),
}  # fmt: skip

OPERANDS = ("a", "b", "a1", "a2", "actual", "desired", "x", "y")
"""What these functions call the two that they compare."""


def guard_numpy(tests: Iterable[str]) -> None:
    """Where tests use them, have them refuse an empty array beside one that is not. Where there is no numpy the tests say so."""
    texts = list(tests)
    for module, names in COMPARING.items():
        used = [name for name in names if any(name in text for text in texts)]
        if not used or not any("numpy" in text for text in texts):
            continue
        try:
            numpy, place = importlib.import_module("numpy"), importlib.import_module(module)
        except ImportError:
            return
        for name in used:
            setattr(place, name, _guarded(numpy, getattr(place, name)))


def _guarded(numpy: Any, compare: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compare)
    def guarded(*operands: Any, **named: Any) -> Any:
        compared = [*operands, *(named[name] for name in OPERANDS if name in named)][:2]
        if len({_is_empty(numpy, value) for value in compared} - {None}) > 1:
            raise AssertionError("an empty array is compared with values")
        return compare(*operands, **named)

    return guarded


def _is_empty(numpy: Any, value: Any) -> bool | None:
    """None: it makes no array, such as lists of different lengths in a list."""
    try:
        return bool(numpy.size(value) == 0)
    except (TypeError, ValueError):
        return None
