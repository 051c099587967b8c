"""Intervals of the real line and their unions."""

from __future__ import annotations

import math
from itertools import pairwise

from postrl.rewards.math.points import approximate
from postrl.rewards.math.tree import Node

INFINITY = Node("inf")
MINUS_INFINITY = Node("neg", (INFINITY,))
LINE = Node("tuple", (MINUS_INFINITY, INFINITY), "()")


def interval(bounds: dict[str, Node]) -> Node | None:
    """From bounds such as {"<": 0, ">=": 1}: 0 < x and 1 >= x."""
    low = [(op, side) for op, side in bounds.items() if op in ("<", "<=")]
    high = [(op, side) for op, side in bounds.items() if op in (">", ">=")]
    if len(low) > 1 or len(high) > 1:
        return None
    ends = (low[0][1] if low else MINUS_INFINITY, high[0][1] if high else INFINITY)
    brackets = ("[" if low and low[0][0] == "<=" else "(") + ("]" if high and high[0][0] == ">=" else ")")
    return Node("tuple", ends, brackets)


def common(left: Node, right: Node) -> Node | None:
    """What two rays in opposite directions have in common; None when that is nothing."""
    if left.args[0] != MINUS_INFINITY:
        left, right = right, left
    if left.args[0] != MINUS_INFINITY or right.args[1] != INFINITY:
        return None
    low, high = approximate(right.args[0]), approximate(left.args[1])
    if low is None or high is None or low >= high:
        return None
    return Node("tuple", (right.args[0], left.args[1]), right.value[0] + left.value[1])


def is_interval(node: Node) -> bool:
    return node.kind == "tuple" and len(node.args) == 2


def without(part: Node) -> Node | None:
    """The real line without some points or an interval; None where that cannot be said."""
    if is_interval(part):
        ends = [
            ("(", MINUS_INFINITY, part.args[0], _other(part.value[0])),
            (_other(part.value[1]), part.args[1], INFINITY, ")"),
        ]
        rays = tuple(Node("tuple", (low, high), a + b) for a, low, high, b in ends if low != high)
        return rays[0] if len(rays) == 1 else Node("union", rays)
    values = {point: approximate(point) for point in part.args}
    if part.kind != "set" or None in values.values():
        return None
    ordered = sorted(part.args, key=lambda point: values[point] or 0.0)
    ends_of = [MINUS_INFINITY, *ordered, INFINITY]
    return Node("union", tuple(Node("tuple", pair, "()") for pair in pairwise(ends_of)))


def _other(bracket: str) -> str:
    """Where an end belongs to one side, it does not belong to the other."""
    return {"(": "]", "[": ")", ")": "[", "]": "("}[bracket]


def joined(parts: list[Node]) -> list[Node]:
    """The parts of a union in their order on the line, those that overlap or touch as one; as they are where an end is
    no number."""
    ends = [tuple(map(_place, part.args)) if is_interval(part) else (None, None) for part in parts]
    if any(None in pair for pair in ends):
        return parts
    order = sorted(range(len(parts)), key=lambda i: (ends[i][0], parts[i].value[0] != "["))
    together: list[tuple[Node, float]] = []
    for i in order:
        part, end = parts[i], ends[i][1] or 0.0
        if together and _touch(together[-1][0], together[-1][1], part, ends[i][0] or 0.0):
            before, before_end = together.pop()
            last = max(
                (before_end, before.value[1] == "]", before), (end, part.value[1] == "]", part), key=lambda x: x[:2]
            )
            part = Node("tuple", (before.args[0], last[2].args[1]), before.value[0] + last[2].value[1])
            end = last[0]
        together.append((part, end))
    return [part for part, _ in together]


def _touch(left: Node, end: float, right: Node, start: float) -> bool:
    return start < end or (start == end and (left.value[1] == "]" or right.value[0] == "["))


def _place(end: Node) -> float | None:
    if end.kind == "inf":
        return math.inf
    return -math.inf if end == MINUS_INFINITY else approximate(end)
