"""Vectors and matrices: a number times a matrix, and i, j, k as the directions of space."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from postrl.rewards.math.tree import Node
from postrl.rewards.math.values import exact, symbols

BASIS = (r"\vec i", r"\vec j", r"\vec k")
_ZERO = Node("num", value=Fraction(0), text="0")


def multiplied_out(node: Node) -> Node:
    """A number times, or over, a matrix or a tuple, and sums of these, element by element; anything else as it is."""
    if node.kind not in ("neg", "*", "/", "+"):
        return node
    args = list(map(multiplied_out, node.args))
    whole = [arg.kind == "matrix" or arg.value == "()" for arg in args]
    if not any(whole):
        return node
    if node.kind == "+":
        return _sum(args) if all(whole) else node
    if sum(whole) > 1 or (node.kind == "/" and whole[1]):
        return node
    place = whole.index(True)
    others = args[:place] + args[place + 1 :]
    if args[place].kind == "tuple" and any(map(symbols, others)):  # f(1, 2)
        return node
    return _each(args[place], lambda entry: Node(node.kind, (*args[:place], entry, *args[place + 1 :])))


def _sum(parts: list[Node]) -> Node:
    left, right = parts
    if left.kind != right.kind or len(left.args) != len(right.args):
        return Node("+", (left, right))
    if left.kind == "matrix":
        rows = [_sum([Node("tuple", a.args, "()"), Node("tuple", b.args, "()")]) for a, b in zip(left.args, right.args)]
        return Node("matrix", tuple(Node("list", row.args) for row in rows))
    return Node("tuple", tuple(_computed(Node("+", pair)) for pair in zip(left.args, right.args)), "()")


def _each(whole: Node, change: Callable[[Node], Node]) -> Node:
    if whole.kind == "tuple":
        return Node("tuple", tuple(_computed(change(entry)) for entry in whole.args), whole.value)
    return Node("matrix", tuple(Node("list", tuple(_computed(change(e)) for e in row.args)) for row in whole.args))


def _computed(node: Node) -> Node:
    value = exact(node)
    return node if value is None else Node("num", value=value, text=str(value))


def has_directions(node: Node) -> bool:
    return bool(symbols(node) & set(BASIS))


def as_tuple(node: Node, size: int) -> Node | None:
    """A column as a tuple, and i + 2j + 3k as (1, 2, 3); None for anything else.

    Args:
        size: how many elements the other side has; that it has directions tells vectors from complex numbers.
    """
    if node.kind == "matrix" and all(len(row.args) == 1 for row in node.args):
        return Node("tuple", tuple(row.args[0] for row in node.args), "()")
    names = symbols(node)
    if size not in (2, 3) or not names:
        return None
    basis = BASIS if names & set(BASIS) else ("i", "j", "k")
    if not names & set(basis) or (basis != BASIS and not names <= {"j", "k"}):
        return None
    parts = [_coefficient(node, name, basis) for name in basis]
    if None in parts or _coefficient(node, "", basis) != _ZERO or (size == 2 and parts[2] != _ZERO):
        return None
    return Node("tuple", tuple(_computed(part) for part in parts[:size] if part is not None), "()")


def _coefficient(node: Node, name: str, basis: tuple[str, ...]) -> Node | None:
    """What stands with one direction in a sum, or with none for the name ""; None when it is no linear combination."""
    if not _has(node, basis):
        return node if not name else _ZERO
    if node.kind == "sym":
        return Node("num", value=Fraction(1), text="1") if node.value == name else _ZERO
    if node.kind == "*" and _has(node.args[0], basis) and _has(node.args[1], basis):
        return None
    if node.kind == "/" and _has(node.args[1], basis):
        return None
    if node.kind not in ("+", "neg", "*", "/"):
        return None
    args = [
        _coefficient(arg, name, basis) if node.kind in ("+", "neg") or _has(arg, basis) else arg for arg in node.args
    ]
    if any(arg is None for arg in args):
        return None
    present = [arg for arg in args if arg is not None]
    if node.kind == "+":
        present = [arg for arg in present if arg != _ZERO]
        return present[0] if len(present) == 1 else Node("+", tuple(present)) if present else _ZERO
    return _ZERO if _ZERO in present[:1] or (node.kind == "*" and _ZERO in present) else Node(node.kind, tuple(present))


def _has(node: Node, basis: tuple[str, ...]) -> bool:
    return (node.kind == "sym" and node.value in basis) or any(_has(arg, basis) for arg in node.args)
