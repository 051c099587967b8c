"""The trees that texts are parsed to: plain data that computes nothing.

kinds of nodes      value                      arguments
num                 Fraction                   -                 `text`: how it was written
sym                 its name                   -                 x, x_1, \\alpha, f'; `text`: from a text command
word                the word, lower case       -
inf, dots, empty    -                          -
+ * / ^ neg ! !!    -                          operands          `/` of two integers: also a fraction; the value "scale":
% °                                                              a number in words; `text` of `*`: " " or "(" between them
mixed               -                          integer, fraction
pm                  + or -                     left?, right      `\\pm`; - for `\\mp`
call                sin, log, root, abs ...    arguments
unit                its words                  quantity
compound            -                          two quantities    5 feet 6 inches
based               the digits                 base              2516_8
list                and, or, ","               items             nothing around them
set, tuple          brackets                   items             {1,2}, (1,2), [0,1)
union, minus, meet  -                          sets
such                -                          element, condition
relation            operators                  sides             a < x <= b
ratio               -                          parts             1:2:3
matrix              -                          rows, each a list
sum, prod, int      -                          variable, low, high, body
cases               -                          pairs of a value and a condition: tuples with the brackets "cases"
label               its text                   -                 a left side that is not in the grammar
mod                 -                          number, modulus
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from postrl.rewards.math.tokens import NotMath
from postrl.rewards.math.words import PARTS, POWERS, SCALES

LARGEST_EXPONENT = 10_000
"""Of a number written as 1e5."""
BINDING = frozenset({"sum", "prod", "int"})
"""Kinds of nodes with a variable of their own."""
CLOSING = {"(": ")", "[": "]", r"\{": r"\}", "{": "}", r"\langle": r"\rangle"}


@dataclass(frozen=True, slots=True)
class Node:
    kind: str
    args: tuple[Node, ...] = ()
    value: Any = None
    text: str = ""


def number(text: str) -> Node:
    """A literal as an exact number. Raises NotMath for an exponent out of all proportion."""
    if text.endswith(")"):
        head, _, period = text[:-1].partition("(")
        whole, _, digits = head.partition(".")
        fixed = Fraction(int(whole + digits or 0), 10 ** len(digits))
        tail = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(digits))
        return Node("num", value=fixed + tail, text=text)
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > LARGEST_EXPONENT:
        raise NotMath
    return Node("num", value=Fraction(mantissa.rstrip(".")) * Fraction(10) ** int(exponent or 0), text=text)


def counted(quantity: Node, word: str, *, last: bool) -> Node | None:
    """What a word for a number makes of the quantity in front of it: 5 million, 2 thirds, 5 pi, 5 squared; None for any
    other word.

    Args:
        last: whether no other word follows: "squared" does not count in "squared feet".
    """
    if word in SCALES or word in PARTS:
        if quantity.kind == "unit":  # \\$5 million
            number = counted(quantity.args[0], word, last=last)
            return None if number is None else Node("unit", (number,), quantity.value)
        value = SCALES.get(word) or PARTS[word]
        kind = "*" if word in SCALES else "/"
        return Node(kind, (quantity, Node("num", value=Fraction(value), text=str(value))), "scale")
    if word == "pi":
        return Node("*", (quantity, Node("sym", value=r"\pi")))
    if quantity.kind == "unit" or not last:
        return None
    if word in POWERS:
        return Node("^", (quantity, Node("num", value=Fraction(POWERS[word]), text=str(POWERS[word]))), "scale")
    return Node("!", (quantity,), "scale") if word == "factorial" else None


def unit_words(node: Node) -> str:
    """The unit that a tree of nothing but words, powers of them and fractions is: \\frac{"km"}{"h"}; else ""."""
    if node.kind == "word" or (node.kind == "sym" and node.text):
        return str(node.value)
    if node.kind == "unit" and node.args[0].kind == "word":
        return f"{unit_words(node.args[0])} {node.value}"
    if node.kind == "^" and node.args[0].kind in ("word", "sym") and unit_words(node.args[0]):
        power = node.args[1]
        sign, power = ("-", power.args[0]) if power.kind == "neg" else ("", power)
        return f"{node.args[0].value}^{sign}{power.text}" if power.kind == "num" and power.text.isdigit() else ""
    parts = [unit_words(arg) for arg in node.args] if node.kind in ("*", "/") else []
    return (" per " if node.kind == "/" else " ").join(parts) if all(parts) else ""


def is_proper(node: Node) -> bool:
    """Whether it is a fraction of two written integers, below 1: what a mixed number ends with."""
    if node.kind != "/" or not all(arg.kind == "num" and arg.text.isdigit() for arg in node.args):
        return False
    return bool(node.args[0].value < node.args[1].value)


def in_brackets(opening: str, closing: str, node: Node) -> Node:
    """What brackets make of what stands in them: a set, a tuple or interval, or nothing."""
    items = node.args if node.kind == "list" else (node,)
    if opening == r"\{" or (opening == "{" and node.kind == "list" and node.value == ","):
        return node if node.kind == "such" else Node("set", items)
    if node.kind == "list":
        return Node("tuple", items, ("[" if opening == "[" else "(") + ("]" if closing == "]" else ")"))
    if opening in ("(", "[") and closing != CLOSING[opening]:
        raise NotMath
    return node


def to_wire(node: Node) -> list[Any]:
    """A tree as JSON values."""
    value = str(node.value) if node.kind == "num" else node.value
    return [node.kind, value, *map(to_wire, node.args)]
