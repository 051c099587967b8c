"""Whether two expressions are equal: they are evaluated where nobody chose to, first in floats, then to many digits.

Every value comes with a bound of its error, so that "differ" is sure. Two expressions that agree to DIGITS digits at
points drawn by chance are equal; the work is counted, not timed, and what would take more of it has no value.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from postrl.rewards.math.arithmetic import FLOATS, UNDEFINED, Arithmetic, with_digits
from postrl.rewards.math.tree import BINDING, Node
from postrl.rewards.math.values import contains, exact, symbols

SAFETY = 100
"""Two approximations that are this many errors apart are two numbers."""
DIGITS = (60, 300)
"""Of the second look; more where the first lost too many to cancellation."""
ENOUGH = 1e-25
"""The relative error below which two numbers that do not differ are one."""
RANGES = ((0.3, 2.7), (0.3, 2.7), (0.3, 2.7), (0.3, 2.7), (0.05, 0.3), (10, 60), (10, 60))
"""Of the sizes of variables at each point."""
POSITIVE = (0, 1, 5)
"""Points at which all variables are positive; at the third all are negative, at the others either."""
FIRST_POINTS = (0, 2, 5, 6, 1, 3, 4)
"""The order of the points for the second look, and how many of them are enough."""
POINTS_WITH_DIGITS = 3
MOST_WORK = 200_000
"""Operations of one comparison; one with many digits counts as ten."""
MOST_TERMS = 400
ENDLESS_TERMS = 60
"""How many terms of an infinite series stand for it: enough to tell two series apart."""
QUADRATURE_POINTS = 24
QUADRATURE = 1e-9
"""Relative error of an integral."""


class Exhausted(Exception):
    """More than MOST_WORK."""


class Work:
    """What is left of the work of one comparison."""

    def __init__(self) -> None:
        self.left = MOST_WORK

    def take(self, operations: int) -> None:
        self.left -= operations
        if self.left < 0:
            raise Exhausted


class Approximation:
    """Evaluates trees at one point, and bounds the error. Remembers whether all numbers were real."""

    def __init__(self, point: Mapping[str, float], arithmetic: Arithmetic = FLOATS, work: Work | None = None) -> None:
        self.arithmetic = arithmetic
        self.point: dict[str, Any] = {name: arithmetic.number(value) for name, value in point.items()}
        self.point |= arithmetic.constants
        self.real = True
        self.work = work or Work()
        self.cost = 1 if arithmetic is FLOATS else 10

    def of(self, node: Node) -> tuple[Any, Any]:
        """A value and its error: what each operation rounds, and how far it carries the errors of its operands.

        Raises:
            ArithmeticError, ValueError, KeyError, TypeError: it has no value, or none within the bounds.
            Exhausted
        """
        heavy = 10 if node.kind in ("!", "!!") or node.value == "binom" else 1
        self.work.take(self.cost * heavy * (1 + len(node.args)))
        error: Any = 0.0
        if node.kind == "num":
            value = self.arithmetic.number(node.value)
        elif node.kind == "sym":
            value = self.point[node.value]
        elif node.kind in BINDING:
            value, error = self._bound(node)
        else:
            exponent = exact(node.args[1]) if node.kind == "^" else None
            args, errors = zip(*map(self.of, node.args))
            value = self.arithmetic.compute(node.kind, node.value, args, exponent)
            error = self._carried(node, args, errors, value, exponent)
        if not (self.arithmetic.bounded(value) and self.arithmetic.bounded(error)):
            raise OverflowError
        size = abs(value)
        self.real = self.real and (value.imag == 0 or bool(abs(value.imag) <= 1e-9 * size))
        return value, error + self.arithmetic.epsilon * size

    def _carried(self, node: Node, args: tuple[Any, ...], errors: tuple[Any, ...], value: Any, exponent: Any) -> Any:
        """How far an operation carries the errors of its operands."""
        if node.kind in ("+", "neg"):
            return sum(errors)
        if node.kind == "*":
            return errors[0] * abs(args[1]) + errors[1] * abs(args[0])
        error: Any = 0.0
        for i, moved in enumerate(errors):
            if moved:
                others = (*args[:i], args[i] + moved, *args[i + 1 :])
                error += abs(self.arithmetic.compute(node.kind, node.value, others, exponent) - value)
        return error

    def _bound(self, node: Node) -> tuple[Any, Any]:
        """Sums and products term by term, integrals by a rule of fixed points."""
        variable, low, high, body = node.args
        before = self.point.get(variable.value)
        start, end = self._limit(low), self._limit(high)
        total, error = (self.arithmetic.number(Fraction(node.kind == "prod")), 0.0)
        for place, weight in _rule(start, end) if node.kind == "int" else _terms(start, end):
            self.point[variable.value] = self.arithmetic.number(place)
            value, moved = self.of(body)
            if node.kind == "prod":
                error = error * abs(value) + moved * abs(total)
                total = total * value
            else:
                total, error = total + value * weight, error + moved * abs(weight)
        if before is not None:
            self.point[variable.value] = before
        return total, error

    def _limit(self, node: Node) -> float:
        infinite = node.args[0] if node.kind == "neg" else node
        if infinite.kind == "inf":
            return float("-inf" if node.kind == "neg" else "inf")
        value = self.of(node)[0]
        if self.arithmetic.functions.im(value):
            raise ValueError
        return float(self.arithmetic.functions.re(value))


def _terms(start: float, end: float) -> list[tuple[Fraction, int]]:
    if start != round(start) or (end - start >= MOST_TERMS and end != float("inf")):
        raise ValueError
    last = start + ENDLESS_TERMS - 1 if end == float("inf") else end
    if last != round(last):
        raise ValueError
    return [(Fraction(int(i)), 1) for i in range(int(start), int(last) + 1)]


@lru_cache(maxsize=1)
def _unit_rule() -> list[tuple[float, float]]:
    """Gauss and Legendre's points and weights on (0, 1)."""
    rule = []
    for i in range(QUADRATURE_POINTS):
        x = math.cos(math.pi * (i + 0.75) / (QUADRATURE_POINTS + 0.5))
        for _ in range(8):  # Newton's steps
            below, value = 1.0, x
            for n in range(2, QUADRATURE_POINTS + 1):
                below, value = value, ((2 * n - 1) * x * value - (n - 1) * below) / n
            slope = QUADRATURE_POINTS * (x * value - below) / (x * x - 1)
            x -= value / slope
        rule.append(((x + 1) / 2, 1 / ((1 - x * x) * slope**2)))
    return rule


def _rule(start: float, end: float) -> list[tuple[float, float]]:
    """Points and weights on an interval, which may be infinite."""
    if start > end:
        return [(place, -weight) for place, weight in _rule(end, start)]
    infinity = float("inf")
    if start == -infinity:
        right = _rule(0.0 if end == infinity else -end, infinity)
        mirrored = [(-place, weight) for place, weight in right]
        return mirrored + right if end == infinity else mirrored
    if end == infinity:
        return [(start + t / (1 - t), weight / (1 - t) ** 2) for t, weight in _unit_rule()]
    return [(start + (end - start) * t, (end - start) * weight) for t, weight in _unit_rule()]


def approximate(node: Node) -> float | None:
    """The value of an expression without variables, if it is real."""
    try:
        value = complex(Approximation({}).of(node)[0])
    except (*UNDEFINED, Exhausted):
        return None
    return value.real if abs(value.imag) <= 1e-12 * abs(value) else None


def to_many_digits(node: Node) -> Fraction | None:
    """The value of an expression without variables, right to some fifty digits, if it is real."""
    arithmetic = with_digits(DIGITS[0])
    try:
        value, error = Approximation({}, arithmetic).of(node)
    except (*UNDEFINED, Exhausted):
        return None
    if abs(arithmetic.functions.im(value)) > error or error * SAFETY > ENOUGH * abs(value):
        return None
    return Fraction(arithmetic.functions.context.nstr(arithmetic.functions.re(value), DIGITS[0]))


# -- two expressions ---------------------------------------------------------------------------------------------------


def compare_at_points(gold: Node, answer: Node, *, proportional: bool = False, signed: bool = False) -> str:
    """Whether two expressions differ, by evaluating both at a few points.

    Args:
        proportional: ask whether one is a constant multiple of the other (equations `gold = 0` and `answer = 0`).
        signed: the constant must be positive (inequalities).

    Returns:
        "differ" when they surely do, "agree" when they are equal to many digits wherever both have a value, "unknown"
        when the gold has no value anywhere, or not with enough digits.
    """
    work = Work()
    try:
        verdict = _compare(gold, answer, FLOATS, work, proportional, signed)
        if verdict == "differ" or (verdict == "agree" and (contains(gold, INTEGRALS) or contains(answer, INTEGRALS))):
            return verdict
        for digits in DIGITS:
            verdict = _compare(gold, answer, with_digits(digits), work, proportional, signed)
            if verdict != "imprecise":
                break
    except Exhausted:
        return "unknown"
    return "unknown" if verdict == "imprecise" else verdict


INTEGRALS = frozenset({"int"})


def _compare(gold: Node, answer: Node, arithmetic: Arithmetic, work: Work, proportional: bool, signed: bool) -> str:
    names = symbols(gold) | symbols(answer)
    whole = _in_limits(gold) | _in_limits(answer)
    indexes, enough = (range(len(RANGES)), len(RANGES)) if arithmetic is FLOATS else (FIRST_POINTS, POINTS_WITH_DIGITS)
    indexes = indexes if names else range(1)
    pairs: list[tuple[tuple[Any, Any], tuple[Any, Any] | None]] = []
    elsewhere: list[tuple[tuple[Any, Any], tuple[Any, Any] | None]] = []
    complex_gold = _mentions(gold, "i")
    for index in indexes:
        if len(pairs) == enough:
            break
        point = _point(names, index, whole)
        at_gold = Approximation(point, arithmetic, work)
        try:
            wanted = at_gold.of(gold)
        except UNDEFINED:
            continue
        try:
            got = Approximation(point, arithmetic, work).of(answer)
        except UNDEFINED:
            got = None
        (pairs if at_gold.real or complex_gold or not names else elsewhere).append((wanted, got))
    pairs = pairs or elsewhere  # nowhere real
    if not pairs:
        return "unknown"
    both = [(wanted, got) for wanted, got in pairs if got is not None]
    if not both:
        return "differ"
    loose = QUADRATURE if contains(gold, INTEGRALS) or contains(answer, INTEGRALS) else 0.0
    verdicts = (
        _ratios(both, arithmetic, signed) if proportional else [_values(*pair, arithmetic, loose) for pair in both]
    )
    return next((verdict for verdict in ("differ", "imprecise") if verdict in verdicts), "agree")


def _values(wanted: tuple[Any, Any], got: tuple[Any, Any], arithmetic: Arithmetic, loose: float) -> str:
    error = SAFETY * (wanted[1] + got[1]) + loose * abs(wanted[0])
    if abs(wanted[0] - got[0]) > error:
        return "differ"
    precise = arithmetic is FLOATS or error <= ENOUGH * max(abs(wanted[0]), abs(got[0]), ENOUGH)
    return "agree" if precise else "imprecise"


def _ratios(pairs: list[tuple[tuple[Any, Any], tuple[Any, Any]]], arithmetic: Arithmetic, signed: bool) -> list[str]:
    """Of each pair, whether its ratio is that of the first one."""
    ratios: list[tuple[Any, Any]] = []
    for (wanted, error), (got, other_error) in pairs:
        if min(abs(wanted) - SAFETY * error, abs(got) - SAFETY * other_error) > 0:
            ratios.append((wanted / got, error / abs(wanted) + other_error / abs(got)))
    if len(ratios) < 2 and arithmetic is not FLOATS:
        return ["imprecise"]
    if signed and any(arithmetic.functions.re(ratio) <= 0 for ratio, _ in ratios):
        return ["differ"]
    first = ratios[0] if ratios else (0, 0)
    return [_values((first[0], first[1] * abs(first[0])), (r, e * abs(r)), arithmetic, 0.0) for r, e in ratios[1:]]


def _mentions(node: Node, name: str) -> bool:
    return (node.kind == "sym" and node.value == name) or any(_mentions(arg, name) for arg in node.args)


def _in_limits(node: Node) -> frozenset[str]:
    """The variables in the limits of sums and products, which are whole numbers."""
    below = frozenset[str]().union(*map(_in_limits, node.args))
    return below | symbols(node.args[1]) | symbols(node.args[2]) if node.kind in ("sum", "prod") else below


@lru_cache(maxsize=2_000)
def _point(names: frozenset[str], index: int, whole: frozenset[str]) -> dict[str, float]:
    """The same at every call: positive values first, then of either sign."""
    point: dict[str, float] = {}
    for name in sorted(names):
        generator = random.Random(f"{name} {index}")
        size = generator.uniform(*RANGES[index])
        negative = index not in POSITIVE and (index == 2 or generator.random() < 0.5)
        point[name] = float(3 + 2 * index + generator.randrange(2)) if name in whole else -size if negative else size
    return point
