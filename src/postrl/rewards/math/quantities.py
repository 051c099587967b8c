"""Values with what stands behind them, and decimals that stand for exact numbers."""

from __future__ import annotations

from fractions import Fraction

from postrl.rewards.math.guards import guarded
from postrl.rewards.math.points import to_many_digits
from postrl.rewards.math.tree import Node
from postrl.rewards.math.units import AMBIGUOUS, LETTERS, Unit, read_unit
from postrl.rewards.math.values import contains, digits_of, exact, plain, symbols
from postrl.rewards.math.words import GENERIC, names

FEWEST_DIGITS = 6
"""Significant digits of a decimal that stands for an exact number without a finite decimal."""
NO_NUMBERS = names("inf dots empty word unit such minus meet list set tuple matrix based compound")


def read_quantity(node: Node) -> tuple[Node, Unit | None, bool] | None:
    """A value, its unit, and whether it is in percent; None when the words behind it are no unit."""
    words: list[str] = []
    percent = negative = False
    while node.kind in ("unit", "%", "°") or (node.kind == "neg" and node.args[0].kind in ("unit", "%", "°", "neg")):
        if node.kind == "neg":
            negative = not negative
        elif node.kind == "unit":
            words.append(node.value)
        percent |= node.kind == "%"
        words += ["°"] if node.kind == "°" else []
        node = node.args[0]
    unit = read_unit(" ".join(dict.fromkeys(words))) if words else None
    if words and unit is None:
        return None
    return (Node("neg", (node,)) if negative else node), unit, percent


def with_units(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Both sides, a bare letter behind a number read as its unit where the other side says that it is one: 5 m against
    5 "m" or 500 "cm". Where the gold is a plain number, a letter that stands apart from the answer's is one, too."""
    if _has_unit(answer):
        gold = _unit_of_letters(gold) or gold
    if _has_unit(gold) or (plain(gold) and answer.kind == "*" and answer.text == " "):
        answer = _unit_of_letters(answer) or answer
    return gold, answer


def _has_unit(node: Node) -> bool:
    while node.kind == "neg":
        node = node.args[0]
    return node.kind == "unit"


def _unit_of_letters(node: Node) -> Node | None:
    """A number and letters behind it as a quantity; None where there is no number alone, or letters that are no unit."""
    if node.kind == "neg":
        quantity = _unit_of_letters(node.args[0])
        return None if quantity is None else Node("neg", (quantity,))
    number, letters = _number_and_letters(node) or (None, [])
    if number is None or not letters:
        return None
    joined = "".join(name for name, _ in letters)
    if joined in AMBIGUOUS and all(power == 1 for _, power in letters):
        return Node("unit", (number,), joined)
    if not all(name in LETTERS for name, _ in letters):
        return None
    return Node(
        "unit", (number,), " ".join(name if power == 1 else f"{name}^{power}" for name, power in letters).lower()
    )


def _number_and_letters(node: Node) -> tuple[Node | None, list[tuple[str, int]]] | None:
    """What a product has of numbers, at most one, and its letters with their powers."""
    if not symbols(node):
        return node, []
    if node.kind == "sym":
        return None, [(node.value, 1)]
    if node.kind == "^" and node.args[0].kind == "sym":
        power = exact(node.args[1])
        return None if power is None or power.denominator != 1 else (None, [(node.args[0].value, int(power))])
    if node.kind not in ("*", "/"):
        return None
    left, right = map(_number_and_letters, node.args)
    if left is None or right is None or right[0] is not None:
        return None
    (number, letters), (_, others) = left, right
    return number, [*letters, *((name, -power if node.kind == "/" else power) for name, power in others)]


def countable(unit: Unit, other: Unit | None, value: Node) -> bool:
    """Whether the nouns of an answer's unit can stand behind its value: the gold has them, too, or it is a plain number,
    and they are a plural unless it is at most one."""
    nouns = unit.nouns - GENERIC
    if not nouns or (other is not None and other.nouns & nouns):
        return True
    number = exact(value) if plain(value) else None
    return number is not None and (unit.plural or bool(unit.measures) or abs(number) <= 1)


def same_decimal(gold: Node, gold_value: Fraction, answer: Node, answer_value: Fraction) -> bool:
    """Whether one is the other as a decimal, when the other has no finite decimal or is itself a long one."""
    return (_endless(gold, gold_value) and _rounds_to(gold_value, answer)) or (
        _endless(answer, answer_value) and _rounds_to(answer_value, gold)
    )


def _endless(node: Node, value: Fraction) -> bool:
    bottom = value.denominator
    for prime in (2, 5):
        while bottom % prime == 0:
            bottom //= prime
    decimal = digits_of(node)
    return bottom != 1 or (decimal is not None and decimal[2] < 1 and decimal[1] >= FEWEST_DIGITS)


def _rounds_to(value: Fraction, node: Node) -> bool:
    """Whether a decimal of enough digits is this value, rounded or cut."""
    decimal = digits_of(node)
    if decimal is None or decimal[1] < FEWEST_DIGITS or decimal[2] == 1:
        return False
    shown, _, place = decimal
    cut = 0 <= abs(value) - abs(shown) < place and value * shown > 0
    return cut or abs(shown - value) <= place / 2


def approximated(gold: Node, answer: Node) -> bool:
    """Whether one is an irrational number and the other a decimal of enough digits for it."""
    decimal, other = (answer, gold) if digits_of(answer) else (gold, answer)
    if not digits_of(decimal) or symbols(other) or contains(other, NO_NUMBERS) or not guarded(other):
        return False
    value = to_many_digits(other)
    return value is not None and _rounds_to(value, decimal)
