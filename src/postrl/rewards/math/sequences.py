"""Lists with dots in them: 1, 2, ..., 10 as its elements, and 1, 2, ..., n in one way to write it."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from postrl.rewards.math.tree import Node
from postrl.rewards.math.values import exact

MOST_ELEMENTS = 60
DOTS = Node("dots")


def without_dots(items: list[Node]) -> list[Node]:
    """The items, dots between integers filled in where they are a progression of at most MOST_ELEMENTS elements; where
    the last one is no number, only the first two stay before the dots."""
    places = [i for i, item in enumerate(items) if item.kind == "dots"]
    if len(places) != 1 or not 1 <= places[0] == len(items) - 2:
        return items
    first, last = items[: places[0]], items[-1]
    numbers = [exact(item) for item in first]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return items
    if len(known) == 1:
        known.append(known[0] + 1)
    step = known[1] - known[0]
    arithmetic = all(b - a == step for a, b in pairwise(known))
    end = exact(last)
    if end is None:
        return [_number(known[0]), _number(known[1]), DOTS, last] if arithmetic and step else items
    filled = _arithmetic(known[0], step, end) if arithmetic else _geometric(known, end)
    return items if filled is None else [_number(value) for value in filled]


def _arithmetic(start: Fraction, step: Fraction, end: Fraction) -> list[Fraction] | None:
    count = (end - start) / step if step else Fraction(-1)
    if count.denominator != 1 or not 0 < count < MOST_ELEMENTS:
        return None
    return [start + step * i for i in range(int(count) + 1)]


def _geometric(known: list[Fraction], end: Fraction) -> list[Fraction] | None:
    values = known[:]
    ratio = known[1] / known[0] if known[0] else Fraction(0)
    if abs(ratio) <= 1 or any(b != a * ratio for a, b in pairwise(known)):
        return None
    while abs(values[-1]) < abs(end) and len(values) <= MOST_ELEMENTS:
        values.append(values[-1] * ratio)
    return values if values[-1] == end else None


def _number(value: Fraction) -> Node:
    return Node("num", value=value, text=str(value))
