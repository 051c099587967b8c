"""What a tree says: a value, a named value, a list, a region of the real line, an equation.

`shape` undoes what is only a way to say it: `x = 5`, `2 + 3 = 5`, `\\pm 2`, `x \\in (0, 1)`, `0 < x < 1`,
`\\{x \\mid x > 3\\}`, unions of sets. Kinds of nodes that it adds to those of `syntax`:

    named        its name     value           a tree of `names`
    equation     -            left, right     with variables on at least one side; `computed` where a chain led to the right
    inequality   operator     left, right     < or <=, and no region of one variable
    false        -            -               a chain whose sides are not equal
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

from postrl.rewards.math.names import name_of
from postrl.rewards.math.points import approximate, compare_at_points
from postrl.rewards.math.regions import (
    INFINITY,
    LINE,
    MINUS_INFINITY,
    common,
    interval,
    is_interval,
    joined,
    without,
)
from postrl.rewards.math.sequences import without_dots
from postrl.rewards.math.tree import Node
from postrl.rewards.math.units import Unit, read_unit
from postrl.rewards.math.values import contains, digits_of, exact, symbols
from postrl.rewards.math.vectors import multiplied_out

FALSE = Node("false")
ANYTHING = Node("label", value="")
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
CLOSE = Fraction(1, 100)
"""How near the sides of an `\\approx` must be, relative to the larger."""


def shape(node: Node) -> Node:
    """The node in its plainest form; see above."""
    if node.kind == "relation":
        return _relation(node)
    if node.kind == "list":
        return _list([shape(item) for item in node.args], str(node.value))
    if node.kind == "set":  # \{1 \pm \sqrt{2}\} has two elements
        return Node("set", _list([shape(item) for item in node.args], ",").args)
    if contains(node, {"pm"}):
        return _list([shape(_with_sign(node, plus)) for plus in (True, False)], ",")
    if node.kind == "such":
        return _such_that(*node.args)
    if node.kind in ("union", "minus", "meet"):
        return _sets(node)
    if node.kind == "sym" and node.value == r"\reals":
        return LINE
    if node.kind == "+" and node.args[1].kind == "neg" and shape(node.args[0]) == LINE:  # R - {0}
        return shape(Node("minus", (node.args[0], node.args[1].args[0])))
    if node.kind == "compound":
        return _one_unit(node)
    if node.kind in ("tuple", "matrix", "cases"):
        return Node(node.kind, tuple(map(shape, node.args)), node.value)
    if node.kind == "mod" and node.args[0].kind == "relation" and len(node.args[0].args) == 2:  # x \equiv 3 \pmod 7
        left, right = node.args[0].args
        return Node("named", (Node("mod", (right, node.args[1])),), name_of(left) or ANYTHING)
    return multiplied_out(node)


def _with_sign(node: Node, plus: bool) -> Node:
    """The node with every plus-minus decided the same way."""
    args = tuple(_with_sign(arg, plus) for arg in node.args)
    if node.kind != "pm":
        return Node(node.kind, args, node.value, node.text)
    last = args[-1] if plus == (node.value == "+") else Node("neg", (args[-1],))
    return last if len(args) == 1 else Node("+", (args[0], last))


def _one_unit(node: Node) -> Node:
    """5 feet 6 inches in feet; as it is where that makes no sense."""
    parts: list[tuple[Fraction, Unit]] = []
    for part in _parts(node):
        value = exact(part.args[0])
        unit = read_unit("°" if part.kind == "°" else str(part.value))
        if value is None or unit is None:
            return node
        parts.append((value, unit))
    first = parts[0][1]
    smaller = all(a.factor > b.factor and a.measures == b.measures for (_, a), (_, b) in pairwise(parts))
    if not smaller or not first.measures:
        return node
    total = sum((value * unit.factor for value, unit in parts), Fraction(0)) / first.factor
    return Node("unit", (Node("num", value=total, text=str(total)),), next(_parts(node)).value or "°")


def _parts(node: Node) -> Iterator[Node]:
    for arg in node.args:
        yield from _parts(arg) if arg.kind == "compound" else (arg,)


def _list(items: list[Node], separator: str) -> Node:
    if sum_of_units := _added(items, separator):
        return sum_of_units
    if any(item.kind == "list" and not _is_point(item) for item in items):
        items = [part for item in items for part in (item.args if item.kind == "list" else (item,))]
    elif items[0].kind == "list":
        return Node("list", tuple(items), separator)
    flat: list[Node] = []
    for item in items:
        value = item.args[0] if item.kind == "named" else item
        if value.kind == "list":  # x = \pm 2
            flat += [Node("named", (part,), item.value) if item.kind == "named" else part for part in value.args]
        else:
            flat.append(item)
    if len(flat) > 2 and flat[0].kind == "named" and _is_range(flat):
        return Node(
            "named", (Node("list", tuple(without_dots([flat[0].args[0], *flat[1:]])), separator),), flat[0].value
        )
    flat = without_dots(flat)
    return _joined_regions(flat, separator) or Node("list", tuple(flat), separator)


def _is_range(items: list[Node]) -> bool:
    """Whether only the first item has a name, and there are dots: k = 1, 2, ..., n."""
    return any(item.kind == "dots" for item in items) and not any(item.kind == "named" for item in items[1:])


def _is_point(node: Node) -> bool:
    """Whether it is a list of different names with their values: p = 5, q = 2."""
    names = {item.value for item in node.args if item.kind == "named"}
    return len(names) == len(node.args) > 1


def _added(items: list[Node], separator: str) -> Node | None:
    """1 hour and 30 minutes."""
    if separator != "and" or not all(item.kind == "unit" for item in items):
        return None
    joined = _one_unit(Node("compound", tuple(items)))
    return None if joined.kind == "compound" else joined


# -- relations ---------------------------------------------------------------------------------------------------------


def _relation(node: Node) -> Node:
    sides, operators = list(node.args), list(node.value)
    while "≈" in operators:
        place = operators.index("≈")
        keep = _exact_side(sides[place], sides[place + 1])
        if keep is None:
            return FALSE
        sides[place : place + 2] = [keep]
        del operators[place]
    if not operators:
        return shape(sides[0])
    if set(operators) <= {"=", r"\equiv"}:
        return _equality(sides)
    if operators == ["∈"]:
        return Node("named", (shape(sides[1]),), name_of(sides[0]) or ANYTHING)
    if set(operators) <= set(_FLIPPED) | {"!="}:
        return _region(sides, operators) or _inequality(sides, operators) or node
    return node


def _exact_side(left: Node, right: Node) -> Node | None:
    """Of `2\\pi \\approx 6.28` the exact one, of `41.7 \\approx 42` the last; None when they are not close."""
    values = [approximate(side) for side in (left, right)]
    if None in values:
        return left if name_of(left) is None else right
    first, second = (Fraction(value) for value in values if value is not None)
    if abs(first - second) > CLOSE * max(abs(first), abs(second)):
        return None
    return right if digits_of(left) else left


def _equality(sides: list[Node]) -> Node:
    if len(sides) == 2 and symbols(sides[1]) and (_names_only(sides) or not symbols(sides[0])):
        sides = sides[::-1]  # 5 = x, 293 = m + n
    name = name_of(sides[0])
    while len(sides) > 1 and name_of(sides[0]) is not None:
        sides = sides[1:]
    value = _chain(sides)
    if value is FALSE and symbols(Node("list", tuple(sides))):
        return _equation(sides)
    return value if name is None or value is FALSE else Node("named", (value,), name)


def _names_only(sides: list[Node]) -> bool:
    name = name_of(sides[1])
    return name_of(sides[0]) is None and name is not None and name.kind == "variable"


def _equation(sides: list[Node]) -> Node:
    """left = right, or left = a chain of computations: m + n = 256 + 37 = 293."""
    if len(sides) == 2:
        return Node("equation", tuple(sides))
    value = _chain(sides[1:])
    return FALSE if value is FALSE or symbols(value) else Node("equation", (sides[0], value), "computed")


def _chain(sides: list[Node]) -> Node:
    """The last side of a true chain."""
    for left, right in pairwise(sides):
        if left != right and not _may_be_equal(left, right):
            return FALSE
    return shape(sides[-1])


def _may_be_equal(left: Node, right: Node) -> bool:
    values = exact(left), exact(right)
    if None not in values:
        return values[0] == values[1]
    return compare_at_points(left, right) == "agree"


# -- regions of the real line ------------------------------------------------------------------------------------------


def _region_name(node: Node) -> Node | None:
    """Of what is bounded by an inequality; |x| < 1 does not bound |x| itself."""
    return None if node.kind == "call" else name_of(node)


def _region(sides: list[Node], operators: list[str]) -> Node | None:
    """The interval of `a < x <= b`, the two of `x != a`; None when it is not about one variable alone."""
    variables = [i for i, side in enumerate(sides) if _region_name(side)]
    others = [i for i, side in enumerate(sides) if symbols(side) or side.kind in ("set", "tuple", "list", "word")]
    if len(variables) != 1 or others != variables:
        return None
    place, name = variables[0], _region_name(sides[variables[0]])
    if operators == ["!="]:
        bound = sides[1 - place]
        below, above = Node("tuple", (MINUS_INFINITY, bound), "()"), Node("tuple", (bound, INFINITY), "()")
        return Node("named", (Node("union", (below, above)),), name)
    if place > 1 or len(sides) - place > 2 or "!=" in operators:
        return None
    bounds = {}
    if place == 1:
        bounds[operators[0]] = sides[0]
    if place + 1 < len(sides):
        bounds[_FLIPPED[operators[place]]] = sides[place + 1]
    region = interval(bounds)
    return None if region is None else Node("named", (region,), name)


def _inequality(sides: list[Node], operators: list[str]) -> Node | None:
    """`left < right` or `left <= right`; None for chains."""
    if len(sides) != 2 or operators[0] == "!=":
        return None
    if operators[0] in (">", ">="):
        return Node("inequality", (sides[1], sides[0]), _FLIPPED[operators[0]])
    return Node("inequality", tuple(sides), operators[0])


def _joined_regions(items: list[Node], separator: str) -> Node | None:
    """`x < -1 or x > 1` is a union, `x > 1 and x < 3` an interval; with a comma, whichever makes sense."""
    if separator != "or" and len(items) > 1:  # x ∈ R, x != 1
        items = [item for item in items if item.kind != "named" or item.args[0] != LINE] or items[:1]
        if (
            len(items) == 1
            and items[0].kind == "named"
            and (is_interval(items[0].args[0]) or items[0].args[0].kind == "union")
        ):
            return items[0]
    if not all(item.kind == "named" and is_interval(item.args[0]) for item in items) or len(items) < 2:
        return None
    if len({item.value for item in items}) > 1:
        return None
    intervals = [item.args[0] for item in items]
    both = common(*intervals) if len(items) == 2 else None
    if separator in ("and", ",") and both is not None:
        return Node("named", (both,), items[0].value)
    return None if separator == "and" else Node("named", (Node("union", tuple(intervals)),), items[0].value)


def _such_that(element: Node, condition: Node) -> Node:
    """The region of {x | x > 3} and {x ∈ R : x > 3}; of {-x | x > 3} both parts stay."""
    region = shape(condition)
    real = element.kind == "relation" and element.value == ("∈",) and shape(element.args[1]) == LINE
    variable = element.args[0] if real else element
    if region.kind == "named" and region.value.kind == "variable" and name_of(variable) == region.value:
        return region.args[0]
    return Node("such", (element, region))


def _sets(node: Node) -> Node:
    if node.kind == "union":
        parts = list(_flat(node))
        if all(part.kind == "set" for part in parts):
            return Node("set", tuple(item for part in parts for item in part.args))
        parts = joined([part for part in parts if part.kind != "empty"])
        return parts[0] if len(parts) == 1 else Node("union", tuple(parts))
    left, right = map(shape, node.args)
    if node.kind == "minus" and left == LINE:
        return without(right) or Node("minus", (left, right))
    if node.kind == "meet" and is_interval(left) and is_interval(right):
        return common(left, right) or Node("meet", (left, right))
    return Node(node.kind, (left, right))


def _flat(node: Node) -> Iterator[Node]:
    for arg in node.args:
        part = shape(arg)
        yield from part.args if part.kind == "union" else (part,)


def as_inequality(node: Node) -> Node | None:
    """A ray as an inequality again, for comparison with one that is not solved: x < 1 with -x > -1."""
    ray = node.args[0] if node.kind == "named" and node.value.kind == "variable" else node
    if ray is node or not is_interval(ray) or (ray.args[0] == MINUS_INFINITY) == (ray.args[1] == INFINITY):
        return None
    variable = Node("sym", value=node.value.value)
    below = ray.args[0] == MINUS_INFINITY
    strict = ray.value[1 if below else 0] in "()"
    sides = (variable, ray.args[1]) if below else (ray.args[0], variable)
    return Node("inequality", sides, "<" if strict else "<=")
