"""What a tree is worth exactly, what it mentions, and whether it is a number as one writes a result.

Everything here is bounded by the size of the tree, which the parser bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from fractions import Fraction

from postrl.rewards.math.arithmetic import OF_ANY_NUMBERS
from postrl.rewards.math.tree import BINDING, Node

MOST_BITS = 1 << 15
"""Of exact numbers; beyond, a number has no exact value here. 32768 bits are 9,864 digits."""
LARGEST_EXPONENT = 10_000
LARGEST_EXACT_FACTORIAL = 2_900
CONSTANTS = frozenset({r"\pi", "e", "i"})


def plain(node: Node) -> bool:
    """Whether it is a number as one writes a result: an integer, a decimal, one fraction of such, a mixed number,
    scientific notation, a percentage, degrees, a quantity of these, a number in words (5 million, 5 squared). Not
    `17 \\times 23`, not `\\sqrt{4}`."""
    if node.kind in ("neg", "%", "°", "unit"):
        return plain(node.args[0])
    if node.value == "scale":
        return _literal(node.args[0])
    if node.kind == "/":
        return all(_literal(arg) for arg in node.args)
    if node.kind == "*":
        return _literal(node.args[0]) and _power_of_ten(node.args[1])
    return node.kind in ("num", "mixed") or _power_of_ten(node)


def digits_of(node: Node) -> tuple[Fraction, int, Fraction] | None:
    """A decimal as written: its value, how many significant digits it has, and a unit of its last place."""
    sign = 1
    while node.kind == "neg":
        sign, node = -sign, node.args[0]
    if node.kind != "num" or not set(node.text) <= set("0123456789."):
        return None
    places = len(node.text.partition(".")[2])
    significant = len(node.text.replace(".", "").lstrip("0"))
    return sign * node.value, significant, Fraction(1, 10**places)


def symbols(node: Node) -> frozenset[str]:
    """The names of its variables; e, i and pi are not variables, nor is what a sum or an integral runs over."""
    if node.kind in BINDING:
        variable, low, high, body = node.args
        return symbols(low) | symbols(high) | (symbols(body) - {variable.value})
    if node.kind == "sym":
        return frozenset() if node.value in CONSTANTS else frozenset([node.value])
    return frozenset().union(*map(symbols, node.args))


def undefined(node: Node) -> bool:
    """Whether something in it is divided by zero."""
    if node.kind == "/" and exact(node.args[1]) == 0:
        return True
    if node.kind == "^" and exact(node.args[0]) == 0 and (exact(node.args[1]) or 0) < 0:
        return True
    return any(map(undefined, node.args))


def contains(node: Node, kinds: Set[str]) -> bool:
    """Whether a node of one of these kinds is in the tree. A sum or an integral may run to infinity."""
    args = [arg for arg in node.args if not _is_infinite(arg)] if node.kind in BINDING else node.args
    return node.kind in kinds or any(contains(arg, kinds) for arg in args)


def _is_infinite(node: Node) -> bool:
    return node.kind == "inf" or (node.kind == "neg" and node.args[0].kind == "inf")


def contains_calls(node: Node, functions: Set[str]) -> bool:
    """Whether one of these functions is called in the tree."""
    return (node.kind == "call" and node.value in functions) or any(contains_calls(arg, functions) for arg in node.args)


# -- exact -------------------------------------------------------------------------------------------------------------


def exact(node: Node) -> Fraction | None:
    """The value of a rational expression; None for any other, for an undefined one and for one of too many digits."""
    try:
        return _exact(node)
    except (ArithmeticError, ValueError, KeyError):
        return None


def _exact(node: Node) -> Fraction:
    if node.kind == "num":
        return _small(node.value)
    args = [_exact(arg) for arg in node.args]
    if node.kind == "^":
        return _power(args[0], args[1])
    if node.kind == "!":
        return Fraction(math.factorial(_integer(args[0], LARGEST_EXACT_FACTORIAL)))
    if node.kind == "!!":
        return Fraction(math.prod(range(_integer(args[0], LARGEST_EXACT_FACTORIAL), 0, -2)))
    if node.kind == "call":
        return _EXACT_CALLS[node.value](args)
    return _small(OF_ANY_NUMBERS[node.kind](*args))


def _small(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise OverflowError
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    power = _integer(exponent, LARGEST_EXPONENT, signed=True)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(power) > MOST_BITS or (base == 0 and power <= 0):
        raise OverflowError
    return base**power


def _integer(value: Fraction, largest: int, *, signed: bool = False) -> int:
    if value.denominator != 1 or abs(value) > largest or (value < 0 and not signed):
        raise ValueError
    return int(value)


def _exact_root(args: list[Fraction]) -> Fraction:
    value, degree = args[0], _integer(args[1], 64)
    roots = [round(abs(part) ** (1 / degree)) for part in (value.numerator, value.denominator)]
    root = Fraction(roots[0], roots[1])
    if degree < 2 or value < 0 or root**degree != value:
        raise ValueError
    return root


_EXACT_CALLS: dict[str, Callable[[list[Fraction]], Fraction]] = {
    "abs": lambda args: abs(args[0]),
    "floor": lambda args: Fraction(math.floor(args[0])),
    "ceil": lambda args: Fraction(math.ceil(args[0])),
    "max": max,
    "min": min,
    "gcd": lambda args: Fraction(math.gcd(*(int(_integer(a, 10**30, signed=True)) for a in args))),
    "lcm": lambda args: _small(Fraction(math.lcm(*(int(_integer(a, 10**30, signed=True)) for a in args[:20])))),
    "binom": lambda args: _small(Fraction(math.comb(_integer(args[0], 500), _integer(args[1], 500)))),
    "root": _exact_root,
}


def _literal(node: Node) -> bool:
    while node.kind in ("neg", "unit"):
        node = node.args[0]
    return node.kind == "num"


def _power_of_ten(node: Node) -> bool:
    if node.kind != "^" or node.args[0].kind != "num" or node.args[0].value != 10:
        return False
    return _literal(node.args[1]) and exact(node.args[1]) is not None
