"""Whether an expression may be evaluated at all: no number that it leads to has more than some ten thousand digits."""

from __future__ import annotations

import math

from postrl.rewards.math.arithmetic import LARGEST_FACTORIAL, UNDEFINED
from postrl.rewards.math.points import Approximation, Exhausted
from postrl.rewards.math.tree import Node
from postrl.rewards.math.values import LARGEST_EXPONENT, symbols

MOST_OPERATORS = 200
DEEPEST_TOWER = 2


def guarded(node: Node) -> bool:
    """Whether a computer algebra system may see it: no power tower, no exponent or factorial beyond ten thousand, no
    number that large, and not more than some two hundred operators."""
    return _operators(node) <= MOST_OPERATORS and _tower(node) <= DEEPEST_TOWER and _bounded(node)


def _operators(node: Node) -> int:
    return bool(node.args) + sum(map(_operators, node.args))


def _tower(node: Node) -> int:
    """How many powers stand on each other's exponents."""
    below = max(map(_tower, node.args), default=0)
    return max(below, 1 + _tower(node.args[1])) if node.kind == "^" else below


def _bounded(node: Node) -> bool:
    if not all(map(_bounded, node.args)):
        return False
    if node.kind == "^":
        return _size(node.args[1]) <= LARGEST_EXPONENT and _digits(node) <= LARGEST_EXPONENT
    if node.kind in ("!", "!!"):
        return _size(node.args[0]) <= LARGEST_FACTORIAL
    if node.kind == "call" and node.value == "binom":
        return all(_size(arg) <= LARGEST_FACTORIAL for arg in node.args)
    return True


def _size(node: Node) -> float:
    """How large a number can be; 0 for what has variables, infinity for what no float can hold."""
    if symbols(node):
        return max(map(_size, node.args), default=0.0)
    try:
        return float(abs(Approximation({}).of(node)[0]))
    except (*UNDEFINED, Exhausted):
        return math.inf


def _digits(node: Node) -> float:
    """How many decimal digits a number has at most, by the sum of logarithms."""
    if node.kind == "num":
        return max(len(str(part)) for part in (node.value.numerator, node.value.denominator))
    if node.kind == "^":
        return _digits(node.args[0]) * max(1.0, _size(node.args[1]))
    if node.kind in ("!", "!!"):
        size = _size(node.args[0])
        return size * math.log10(size + 1) + 1
    return sum(map(_digits, node.args)) + 1
