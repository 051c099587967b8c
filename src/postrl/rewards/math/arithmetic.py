"""What the operators and functions of a tree compute: in floats, and with as many digits as one likes.

Both have the same branches: the real root of a negative number where the degree is odd, the principal one elsewhere.
Every operation is bounded: what would need more than some ten thousand digits raises OverflowError.
"""

from __future__ import annotations

import cmath
import math
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

LARGEST_POWER = 1 << 18
"""Numbers are below 2 to this, and above its inverse."""
LARGEST_ANGLE = 1e6
LARGEST_FACTORIAL = 10_000
UNDEFINED = (ArithmeticError, ValueError, KeyError, TypeError)
"""What operations raise that have no value, or none within the bounds."""


class Arithmetic:
    """Numbers of one kind and what can be computed with them.

    Args:
        functions: where sin, cos, ... log, exp, sqrt, gamma and pi are.
        epsilon: relative error of one operation.
    """

    def __init__(self, functions: Any, epsilon: float) -> None:
        self.functions = functions
        self.number: Callable[[Fraction | complex], Any] = functions.number
        self.bounded: Callable[[Any], bool] = functions.bounded
        """Whether a number is finite and within the bounds."""
        self.epsilon = epsilon
        self.constants = {r"\pi": functions.pi, "e": functions.exp(1), "i": functions.number(1j)}
        self.operators = _operators(functions)
        self.calls = _calls(functions)

    def compute(self, kind: str, value: Any, args: tuple[Any, ...], exponent: Fraction | None) -> Any:
        """What a node is worth whose arguments are worth this. `exponent`: of a power, where it is rational."""
        if kind == "call":
            return self.calls[value](*args)
        if kind == "^":
            real = self._real_power(args[0], exponent)
            return self.functions.power(*args) if real is None else real
        return self.operators[kind](*args)

    def _real_power(self, base: Any, power: Fraction | None) -> Any:
        """The real one of the values of (-8)^{2/3}; None where there is no choice or no real value."""
        f = self.functions
        if power is None or power.denominator % 2 == 0 or power.denominator == 1 or f.im(base) or f.re(base) >= 0:
            return None
        size = f.power(-f.re(base), f.number(power))
        return -size if power.numerator % 2 else size


class _Floats:
    """What `Arithmetic` needs of floats and complex numbers."""

    pi = math.pi
    sin, cos, tan, sinh, cosh, tanh = cmath.sin, cmath.cos, cmath.tan, cmath.sinh, cmath.cosh, cmath.tanh
    exp, log, sqrt, asin, acos, atan = cmath.exp, cmath.log, cmath.sqrt, cmath.asin, cmath.acos, cmath.atan
    gamma = staticmethod(math.gamma)
    bounded = staticmethod(cmath.isfinite)

    @staticmethod
    def number(value: Fraction | complex) -> complex:
        return float(value) if isinstance(value, Fraction) else value

    @staticmethod
    def power(base: complex, exponent: complex) -> complex:
        return complex(base) ** exponent

    @staticmethod
    def re(value: complex) -> float:
        return complex(value).real

    @staticmethod
    def im(value: complex) -> float:
        return complex(value).imag


class _Digits:
    """The same with mpmath."""

    def __init__(self, digits: int) -> None:
        from mpmath.ctx_mp import MPContext

        self.context = context = MPContext()
        context.dps = digits
        self.pi = +context.pi
        self.log, self.sqrt, self.re, self.im = context.log, context.sqrt, context.re, context.im
        self.asin, self.acos, self.atan = map(self._within, (context.asin, context.acos, context.atan))
        self.sin, self.cos, self.tan = map(self._within, (context.sin, context.cos, context.tan))
        self.sinh, self.cosh, self.tanh = map(self._within, (context.sinh, context.cosh, context.tanh))
        self.exp = self._within(context.exp)

    def _within(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def bounded(value: Any) -> Any:
            if abs(value) > LARGEST_ANGLE:
                raise OverflowError
            return function(value)

        return bounded

    def number(self, value: Fraction | complex) -> Any:
        if isinstance(value, Fraction):
            return self.context.mpf(value.numerator) / value.denominator
        return self.context.convert(value)

    def power(self, base: Any, exponent: Any) -> Any:
        if base and abs(exponent) * abs(self.context.mag(base)) > LARGEST_POWER:
            raise OverflowError
        return self.context.power(base, exponent)

    def gamma(self, value: Any) -> Any:
        if abs(value) > LARGEST_FACTORIAL + 1:
            raise OverflowError
        return self.context.gamma(value)

    def bounded(self, value: Any) -> bool:
        return bool(not value or (self.context.isfinite(value) and abs(self.context.mag(value)) <= LARGEST_POWER))


OF_ANY_NUMBERS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "mixed": lambda a, b: a + b,
    "%": lambda a: a / 100,
}
"""Operators that mean the same for fractions, floats and numbers of many digits."""


def _operators(f: Any) -> dict[str, Callable[..., Any]]:
    return {
        **OF_ANY_NUMBERS,
        "°": lambda a: a * f.pi / 180,
        "!": lambda a: _factorial(f, a),
        "!!": lambda a: _double_factorial(f, a),
    }


def _calls(f: Any) -> dict[str, Callable[..., Any]]:
    same = ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp")
    return {
        **{name: getattr(f, name) for name in same},
        "cot": lambda a: 1 / f.tan(a),
        "sec": lambda a: 1 / f.cos(a),
        "csc": lambda a: 1 / f.sin(a),
        "arcsin": f.asin,
        "arccos": f.acos,
        "arctan": f.atan,
        "cis": lambda a: f.exp(1j * a),
        "ln": f.log,
        "log": lambda a, base: f.log(a) / f.log(base),
        "lg": lambda a, base: f.log(a) / f.log(base),
        "root": lambda a, degree: _root(f, a, degree),
        "abs": abs,
        "floor": lambda a: f.number(Fraction(math.floor(_nearly_whole(f, a)))),
        "ceil": lambda a: f.number(Fraction(math.ceil(_nearly_whole(f, a)))),
        "max": lambda *values: max(_real(f, value) for value in values),
        "min": lambda *values: min(_real(f, value) for value in values),
        "binom": lambda n, k: _factorial(f, n) / (_factorial(f, k) * _factorial(f, n - k)),
    }


def _real(f: Any, value: Any) -> Any:
    if abs(f.im(value)) > 1e-12 * abs(value):
        raise ValueError
    return f.re(value)


def _factorial(f: Any, value: Any) -> Any:
    return f.gamma(_real(f, value) + 1)


def _double_factorial(f: Any, value: Any) -> Any:
    whole = int(_real(f, value))
    if whole != value or not 0 <= whole <= LARGEST_FACTORIAL:
        raise ValueError
    return f.number(Fraction(math.prod(range(whole, 0, -2))))


def _nearly_whole(f: Any, value: Any) -> Any:
    """A real number; of one that is whole but for an error of rounding: that whole number."""
    real = f.re(value)
    near = round(float(real))
    return near if abs(real - near) < 1e-9 else real


def _root(f: Any, value: Any, degree: Any) -> Any:
    real = not f.im(value) and not f.im(degree)
    if real and f.re(value) < 0 and f.re(degree) % 2 == 1:
        return -f.power(-f.re(value), 1 / f.re(degree))
    if degree == 2 or not value:
        return f.sqrt(value)
    return f.exp(f.log(value) / degree)


FLOATS = Arithmetic(_Floats, 1e-15)


_of_thread = threading.local()


def with_digits(digits: int) -> Arithmetic:
    """Numbers of that many decimal digits. Each thread has its own: mpmath's contexts are not for several."""
    known: dict[int, Arithmetic] = _of_thread.__dict__.setdefault("known", {})
    if digits not in known:
        known[digits] = Arithmetic(_Digits(digits), 10.0 ** (1 - digits))
    return known[digits]
