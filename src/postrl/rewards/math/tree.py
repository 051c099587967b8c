"""The trees that texts are parsed to: plain data that computes nothing.

kinds of nodes      value                      arguments
num                 Fraction                   -                 `text`: how it was written
sym                 its name                   -                 x, x_1, \\alpha, f'
word                the word, lower case       -
inf, dots, empty    -                          -
+ * / ^ neg ! % °   -                          operands          `/` of two integers: also a fraction
mixed               -                          integer, fraction
pm                  + or -                     left?, right      `\\pm`; - for `\\mp`
call                sin, log, root, abs ...    arguments
unit                its words                  quantity
based               the digits                 base              2516_8
list                and, or, ","               items             nothing around them
set, tuple          brackets                   items             {1,2}, (1,2), [0,1)
union, minus, meet  -                          sets
such                -                          variable, condition
relation            operators                  sides             a < x <= b
ratio               -                          parts             1:2:3
matrix              -                          rows, each a list
mod                 -                          number, modulus
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from postrl.rewards.math.tokens import NotMath

LARGEST_EXPONENT = 10_000
"""Of a number written as 1e5."""
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


def scaled(quantity: Node, scale: int) -> Node:
    """A quantity times a number in words: 5 million."""
    if quantity.kind == "unit":  # \\$5 million
        return Node("unit", (scaled(quantity.args[0], scale),), quantity.value)
    return Node("*", (quantity, Node("num", value=Fraction(scale), text=str(scale))), "scale")


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
