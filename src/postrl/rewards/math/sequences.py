"""Lists with dots in them: 1, 2, ..., 10 as its elements, and 1, 2, ..., n in one way to write it."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from postrl.rewards.math.tree import Node
from postrl.rewards.math.values import exact

MOST_ELEMENTS = 60
DOTS = Node("dots")


def without_dots(items: list[Node]) -> list[Node]:
    """The items, dots between integers filled in where they are a progression of at most MOST_ELEMENTS elements; of a
    longer, an endless or a symbolic one only the first two items stay before the dots."""
    places = [i for i, item in enumerate(items) if item.kind == "dots"]
    if len(places) != 1 or not 1 <= places[0] >= len(items) - 2:
        return items
    first, last = items[: places[0]], items[places[0] + 1 :]
    indexes, names = zip(*map(_index, first))
    if None in indexes or len(set(names)) > 1:
        return items
    known = [index for index in indexes if index is not None]
    if len(known) == 1:
        known.append(known[0] + 1)
    step = known[1] - known[0]
    arithmetic = step != 0 and all(b - a == step for a, b in pairwise(known))
    end = exact(last[0]) if last else None
    if end is not None and not names[0]:
        filled = _arithmetic(known[0], step, end) if arithmetic else _geometric(known, end)
        if filled is not None:
            return [_number(value) for value in filled]
    return [_item(known[0], names[0]), _item(known[1], names[0]), DOTS, *last] if arithmetic else items


def _index(item: Node) -> tuple[Fraction | None, str]:
    """The number that an item is, or its index and its letter: 3 in x_3."""
    letter, _, index = str(item.value).partition("_") if item.kind == "sym" else ("", "", "")
    return (Fraction(int(index)), letter) if index.isdigit() else (exact(item), "")


def _item(index: Fraction, letter: str) -> Node:
    return Node("sym", value=f"{letter}_{index}") if letter else _number(index)


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
