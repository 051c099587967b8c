"""What a tree is worth: exactly where it is rational, approximately where it is not, and whether it is safe to ask.

`guarded` comes first: after it, no number that the other functions or a computer algebra system meet has more than
some ten thousand digits. Everything here is bounded by the size of the tree, which the parser bounds.
"""

from __future__ import annotations

import cmath
import math
import random
from collections.abc import Callable, Mapping, Sequence, Set
from fractions import Fraction

from postrl.rewards.math.tree import Node

MOST_BITS = 1 << 15
"""Of exact numbers; beyond, a number has no exact value here. 32768 bits are 9,864 digits."""
LARGEST_EXPONENT = 10_000
LARGEST_FACTORIAL = 10_000
LARGEST_EXACT_FACTORIAL = 2_900
MOST_OPERATORS = 200
DEEPEST_TOWER = 2
EPSILON = 1e-15
"""Relative error of one operation with floats."""
SAFETY = 100
"""Two approximations that are this many errors apart are two numbers."""


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
    """The names of its variables; e, i and pi are none."""
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
    """Whether a node of one of these kinds is in the tree."""
    return node.kind in kinds or any(contains(arg, kinds) for arg in node.args)


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
    return _small(_EXACT[node.kind](*args))


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


_EXACT: dict[str, Callable[..., Fraction]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "mixed": lambda a, b: a + b,
    "%": lambda a: a / 100,
}
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

# -- approximate -------------------------------------------------------------------------------------------------------

CONSTANTS: dict[str, complex] = {r"\pi": math.pi, "e": math.e, "i": 1j}
POINTS = 5
UNDEFINED = (ArithmeticError, ValueError, KeyError, TypeError)


class Approximation:
    """Evaluates trees at one point with floats, and bounds the error. Remembers whether all numbers were real."""

    def __init__(self, point: Mapping[str, complex]) -> None:
        self.point = {**point, **CONSTANTS}
        self.real = True

    def of(self, node: Node) -> tuple[complex, float]:
        """A value and its error: what each operation rounds, and how far it carries the errors of its operands.

        Raises:
            ArithmeticError, ValueError, KeyError, TypeError: it has no value, or none that a float can hold.
        """
        error = 0.0
        if node.kind in ("num", "sym"):
            value = float(node.value) if node.kind == "num" else self.point[node.value]
        else:
            args, errors = zip(*map(self.of, node.args))
            value = self._computed(node, args)
            for i, moved in enumerate(errors):
                error += abs(self._computed(node, (*args[:i], args[i] + moved, *args[i + 1 :])) - value)
        if not cmath.isfinite(value) or not math.isfinite(error):
            raise OverflowError
        self.real &= abs(complex(value).imag) <= 1e-9 * abs(value)
        return value, error + EPSILON * abs(value)

    @staticmethod
    def _computed(node: Node, args: Sequence[complex]) -> complex:
        if node.kind == "call":
            return _CALLS[node.value](*args)
        real = _real_power(args[0], node.args[1]) if node.kind == "^" else None
        return _OPERATORS[node.kind](*args) if real is None else real


def approximate(node: Node) -> float | None:
    """The value of an expression without variables, if it is real."""
    try:
        value = complex(Approximation({}).of(node)[0])
    except UNDEFINED:
        return None
    return value.real if abs(value.imag) <= 1e-12 * abs(value) else None


def compare_at_points(gold: Node, answer: Node, *, proportional: bool = False) -> tuple[str, bool]:
    """Whether two expressions differ, by evaluating both at a few points.

    Args:
        proportional: ask whether one is a constant multiple of the other (equations `gold = 0` and `answer = 0`).

    Returns:
        "differ" when they surely do, "agree" when no difference was seen, "unknown" when the gold has no value
        anywhere; and whether the gold is real at positive points only, as logarithms and roots are.
    """
    names = symbols(gold) | symbols(answer)
    complex_gold = _mentions(gold, "i")
    defined = agreed = 0
    positive_only = False
    ratios: list[tuple[complex, float]] = []
    for index in range(POINTS if names else 1):
        point = _point(names, index)
        try:
            at_gold = Approximation(point)
            wanted, error = at_gold.of(gold)
        except UNDEFINED:
            continue
        if names and not at_gold.real and not complex_gold:  # outside of the gold's domain
            positive_only |= index >= POINTS_POSITIVE
            continue
        defined += 1
        try:
            got, other_error = Approximation(point).of(answer)
        except UNDEFINED:
            continue
        if not proportional and abs(wanted - got) > SAFETY * (error + other_error):
            return "differ", positive_only
        agreed += 1
        if min(abs(wanted) - SAFETY * error, abs(got) - SAFETY * other_error) > 0:
            ratios.append((wanted / got, error / abs(wanted) + other_error / abs(got)))
    if proportional and any(_unlike(ratio, ratios[0]) for ratio in ratios):
        return "differ", positive_only
    return ("agree" if agreed else "differ" if defined else "unknown"), positive_only


def _unlike(ratio: tuple[complex, float], other: tuple[complex, float]) -> bool:
    """Whether two numbers with relative errors are two numbers."""
    return abs(ratio[0] - other[0]) > SAFETY * (ratio[1] + other[1] + EPSILON) * abs(other[0])


POINTS_POSITIVE = 2


def _mentions(node: Node, name: str) -> bool:
    return (node.kind == "sym" and node.value == name) or any(_mentions(arg, name) for arg in node.args)


def _point(names: frozenset[str], index: int) -> dict[str, complex]:
    """The same at every call: positive values first, then of either sign."""
    point: dict[str, complex] = {}
    for name in sorted(names):
        generator = random.Random(f"{name} {index}")
        size = generator.uniform(0.3, 2.7)
        negative = index == POINTS_POSITIVE or (index > POINTS_POSITIVE and generator.random() < 0.5)
        point[name] = -size if negative else size
    return point


def _factorial(value: complex) -> complex:
    if complex(value).imag:
        raise ValueError
    return math.gamma(complex(value).real + 1)


def _double_factorial(value: complex) -> complex:
    whole = int(complex(value).real)
    if whole != value or not 0 <= whole <= 300:
        raise ValueError
    return float(math.prod(range(whole, 0, -2)))


def _largest(choose: Callable[..., float]) -> Callable[..., float]:
    def chosen(*values: complex) -> float:
        if any(abs(complex(value).imag) > 1e-12 for value in values):
            raise ValueError
        return choose(complex(value).real for value in values)

    return chosen


def _whole(function: Callable[[float], int]) -> Callable[[complex], complex]:
    """Of a number that is whole but for an error of rounding: that whole number."""

    def rounded(value: complex) -> complex:
        real = complex(value).real
        return function(round(real) if abs(real - round(real)) < 1e-9 else real)

    return rounded


def _root(value: complex, degree: complex) -> complex:
    """The real root of a negative number when the degree is odd."""
    value, degree = complex(value), complex(degree)
    if not value.imag and value.real < 0 and degree.real % 2 == 1 and not degree.imag:
        return -math.pow(-value.real, 1 / degree.real)
    if degree == 2 or not value:
        return cmath.sqrt(value)
    return cmath.exp(cmath.log(value) / degree)


def _real_power(base: complex, exponent: Node) -> float | None:
    """The real one of the values of (-8)^{2/3}; None where there is no choice or no real value."""
    base = complex(base)
    power = exact(exponent) if base.real < 0 and not base.imag else None
    if power is None or power.denominator % 2 == 0 or power.denominator == 1:
        return None
    size = math.pow(-base.real, power)
    return -size if power.numerator % 2 else size


def _binomial(n: complex, k: complex) -> complex:
    return _factorial(n) / (_factorial(k) * _factorial(n - k))


_OPERATORS: dict[str, Callable[..., complex]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "^": lambda a, b: complex(a) ** b,
    "neg": lambda a: -a,
    "mixed": lambda a, b: a + b,
    "%": lambda a: a / 100,
    "°": lambda a: a * math.pi / 180,
    "!": _factorial,
    "!!": _double_factorial,
}
_CALLS: dict[str, Callable[..., complex]] = {
    **{name: getattr(cmath, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp")},
    "cot": lambda a: 1 / cmath.tan(a),
    "sec": lambda a: 1 / cmath.cos(a),
    "csc": lambda a: 1 / cmath.sin(a),
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "ln": cmath.log,
    "log": lambda a, base: cmath.log(a) / cmath.log(base),
    "lg": lambda a, base: cmath.log(a) / cmath.log(base),
    "root": _root,
    "abs": abs,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "binom": _binomial,
    "max": _largest(max),
    "min": _largest(min),
    "cis": lambda a: cmath.exp(1j * a),
}

# -- guards ------------------------------------------------------------------------------------------------------------


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
        return abs(Approximation({}).of(node)[0])
    except UNDEFINED:
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


def _literal(node: Node) -> bool:
    while node.kind in ("neg", "unit"):
        node = node.args[0]
    return node.kind == "num"


def _power_of_ten(node: Node) -> bool:
    if node.kind != "^" or node.args[0].kind != "num" or node.args[0].value != 10:
        return False
    return _literal(node.args[1]) and exact(node.args[1]) is not None
