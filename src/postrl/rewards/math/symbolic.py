"""The questions that need computer algebra, answered with math_verify. Runs only in the grader's child process.

Trees become sympy objects constructor by constructor: no text of a model is parsed or evaluated here, except by
math_verify's LaTeX parser for what our grammar does not know. Work is counted, in calls of Python functions: a question
that needs more than MOST_CALLS of them is answered with no, on a slow machine as on a fast or a busy one.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

ROUNDING = 6
PRECISION = 15
DIGITS = 30
MOST_CALLS = 250_000
"""About half a second, so that the two of `grader.SECONDS` are never reached by counted work."""
RELATIVE_ERROR = 1e-20
"""Of the difference of two numbers, computed with DIGITS digits. math_verify alone takes 2^-99 for 2^-98."""


class TooMuchWork(BaseException):
    """The question needs more than MOST_CALLS calls. Not an Exception: sympy catches those."""


@contextlib.contextmanager
def counted(most: int = MOST_CALLS) -> Iterator[None]:
    """Raise TooMuchWork at every call of a Python function beyond so many."""
    left = most

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooMuchWork

    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(None)


def answer(question: dict[str, Any]) -> bool:
    """Whether a gold and an answer are equal, or whether a gold can be read. Raises TooMuchWork."""
    with counted():
        return _answer(question)


def _answer(question: dict[str, Any]) -> bool:
    ask = question["ask"]
    if ask == "readable":
        return _from_latex(question["gold"]) is not None
    if ask == "latex":
        gold, got = _from_latex(question["gold"]), _from_latex(question["answer"])
        return gold is not None and got is not None and _same(gold, got)
    make = Builder()
    return _same(make(question["gold"]), make(question["answer"]))


def warm() -> None:
    """Run once what every question runs, so that forked children start with it in memory."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that nothing limits its time: we do
    two = ["num", "2"]
    x = ["sym", "x"]
    square = ["^", None, ["+", None, x, two], two]
    expanded = ["+", None, ["+", None, ["^", None, x, two], ["*", None, ["num", "4"], x]], ["num", "4"]]
    steps = ["call", "floor", x]
    root = ["call", "root", ["num", "12"], two]
    for gold, got in [
        (square, expanded),
        (steps, steps),
        (root, ["*", None, two, ["call", "root", ["num", "3"], two]]),
    ]:
        _answer({"ask": "equal", "gold": gold, "answer": got})
    _answer({"ask": "latex", "gold": r"\int_0^1 x dx", "answer": r"\frac{\sin{x}}{2}"})


def _same(gold: Any, got: Any) -> bool:
    from math_verify import verify

    if gold == got or _vanishes(gold, got):
        return True
    found = verify(gold, got, float_rounding=ROUNDING, numeric_precision=PRECISION, strict=True, timeout_seconds=None)
    return bool(found) and _close(gold, got)


def _vanishes(gold: Any, got: Any) -> bool:
    """Whether the difference is zero by expansion, by Euler's formulas or as a rational function: proofs that take
    milliseconds where math_verify's simplification takes tens of them, or seconds."""
    import sympy
    from sympy.functions.elementary.hyperbolic import HyperbolicFunction
    from sympy.functions.elementary.trigonometric import TrigonometricFunction

    if not all(isinstance(side, sympy.Expr) for side in (gold, got)):
        return False
    difference = sympy.expand(gold - got)
    if difference != 0 and difference.has(TrigonometricFunction, HyperbolicFunction):
        difference = sympy.expand(difference.rewrite(sympy.exp))
    return bool(difference == 0 or (difference.free_symbols and sympy.cancel(difference) == 0))


def _close(gold: Any, got: Any) -> bool:
    """Whether two numbers are equal to many digits, relative to their size; True for what are no numbers."""
    if not all(getattr(side, "is_number", False) for side in (gold, got)):
        return True
    size = max(abs(gold.evalf(DIGITS)), abs(got.evalf(DIGITS)))
    difference = abs((gold - got).evalf(DIGITS, maxn=1000))
    return bool(difference <= RELATIVE_ERROR * size)


def _from_latex(text: str) -> Any:
    """The sympy object of a LaTeX text; None unless the parser consumes all of it."""
    from antlr4 import Token
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy
    from math_verify import LatexExtractionConfig, parse

    try:
        parser = _Latex2Sympy(is_real=True).create_parser(text)
        parser.math()
        if parser.getTokenStream().LA(1) != Token.EOF:
            return None
        found = parse(
            rf"\boxed{{{text}}}",
            [LatexExtractionConfig(boxed_match_priority=0)],
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
    except Exception:  # the generated parser raises bare Exception
        return None
    return found[0] if found else None


class Builder:
    """From the wire form of a tree to a sympy object."""

    def __call__(self, wire: list[Any]) -> Any:
        """Raises KeyError for a kind of node that sympy has nothing for here."""
        import sympy

        kind, value, *args = wire
        if kind == "num":
            return sympy.Rational(value)
        if kind == "sym":
            return self._symbol(value)
        built = [self(arg) for arg in args]
        return _calls()[value](*built) if kind == "call" else _operators()[kind](*built)

    def _symbol(self, name: str) -> Any:
        import sympy

        constants = {r"\pi": sympy.pi, "e": sympy.E, "i": sympy.I}
        if name in constants:
            return constants[name]
        return sympy.Symbol(name, real=True)


def _operators() -> dict[str, Callable[..., Any]]:
    import sympy

    return {
        "+": lambda a, b: a + b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b,
        "^": _power,
        "neg": lambda a: -a,
        "mixed": lambda a, b: a + b,
        "%": lambda a: a / 100,
        "°": lambda a: a * sympy.pi / 180,
        "!": sympy.factorial,
        "!!": sympy.factorial2,
    }


def _calls() -> dict[str, Callable[..., Any]]:
    import sympy

    same = "sin cos tan cot sec csc sinh cosh tanh exp gcd lcm floor"
    arcs = {f"arc{name}": getattr(sympy, f"a{name}") for name in ("sin", "cos", "tan")}
    return {
        **{name: getattr(sympy, name) for name in same.split()},
        **arcs,
        "ln": sympy.log,
        "log": lambda a, base: sympy.log(a) / sympy.log(base),
        "lg": lambda a, base: sympy.log(a) / sympy.log(base),
        "root": _root,
        "abs": sympy.Abs,
        "ceil": sympy.ceiling,
        "binom": sympy.binomial,
        "max": sympy.Max,
        "min": sympy.Min,
        "arg": sympy.arg,
        "Re": sympy.re,
        "Im": sympy.im,
        "cis": lambda a: sympy.cos(a) + sympy.I * sympy.sin(a),
    }


def _power(base: Any, exponent: Any) -> Any:
    """The real power of a negative number where there is one: (-8)^{1/3} is -2."""
    if base.is_negative and exponent.is_Rational and exponent.q % 2 and exponent.q > 1:
        return (-1) ** exponent.p * (-base) ** exponent
    return base**exponent


def _root(value: Any, degree: Any) -> Any:
    """The real root of a negative number when the degree is odd."""
    import sympy

    if value.is_negative and degree.is_odd:
        return -sympy.root(-value, degree)
    return sympy.sqrt(value) if degree == 2 else value ** (1 / degree)
