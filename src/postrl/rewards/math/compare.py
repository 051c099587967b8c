"""Whether an answer is the gold: the ladder of comparisons, the cheap and exact ones first.

    1. the same text, however it is written
    2. letters of multiple choice, words
    3. structure: lists, sets, tuples, intervals, matrices, element by element, all of them
    4. exact numbers, and decimals of at least six digits for what has no finite decimal
    5. expressions by their values at a few points, to many digits
    6. functions of several pieces, and LaTeX that the grammar does not know, by computer algebra outside of this process

Nothing of the answer is ever evaluated as code, and the work is bounded by counting it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from postrl.rewards.math.choices import (
    is_formula,
    is_gold,
    is_label,
    is_latex,
    is_sentence,
    option,
    options,
    same_words,
)
from postrl.rewards.math.guards import guarded
from postrl.rewards.math.names import (
    asked_for,
    differ,
    in_letters_of,
    own_letter,
    rearranged,
    renamed,
    renaming,
    without_bound_names,
)
from postrl.rewards.math.normalise import squashed, tidy
from postrl.rewards.math.points import compare_at_points
from postrl.rewards.math.qualifiers import without_qualifier
from postrl.rewards.math.quantities import (
    NO_NUMBERS,
    approximated,
    countable,
    read_quantity,
    same_decimal,
    with_units,
)
from postrl.rewards.math.shape import FALSE, as_inequality, shape
from postrl.rewards.math.syntax import parse
from postrl.rewards.math.tree import BINDING, Node, to_wire
from postrl.rewards.math.values import contains, contains_calls, exact, plain, symbols, undefined
from postrl.rewards.math.vectors import as_tuple, has_directions
from postrl.rewards.math.words import names

MOST_ITEMS = 60
HUNDRED = Node("num", value=Fraction(100), text="100")

Symbolic = Callable[[dict[str, Any]], bool]
"""Answers a question of `symbolic`: may take a second, and raises what it likes when it has no answer."""


@dataclass(frozen=True)
class Comparison:
    """The ladder with its options."""

    symbolic: Symbolic
    allow_unevaluated: bool = False
    """Whether `17 \\times 23` counts for 391."""

    def equal(self, gold: str, answer: str) -> bool:
        """Whether the text of an answer is the gold. Raises what `symbolic` raises."""
        gold, answer = tidy(gold), tidy(answer)
        if squashed(gold) == squashed(answer):
            return squashed(gold) != ""
        for choice in (option, options):
            if (wanted := choice(gold)) and (chosen := choice(answer)):
                return wanted == chosen
        (gold, free), (answer, others) = without_qualifier(gold), without_qualifier(answer)
        wanted_tree, tree = parse(gold), parse(answer)
        if wanted_tree is not None and tree is not None:
            wanted_shape = shape(wanted_tree)
            return any(self.same(wanted_shape, shape(each)) for each in in_letters_of(wanted_tree, tree, free, others))
        if same_words(gold, answer):
            return True
        exotic = wanted_tree is None and is_latex(gold) and is_latex(answer)
        return exotic and self.symbolic({"ask": "latex", "gold": gold, "answer": answer})

    def readable(self, gold: str) -> bool:
        """Whether the text of a gold is an answer at all: mathematics, a choice, or a few words."""
        tidied = without_qualifier(tidy(gold))[0]
        if is_sentence(gold):
            return True
        tree = parse(tidied)
        if tree is not None:
            return not _flaw(tree)
        if not is_formula(tidied):
            return is_label(tidied)
        return self.symbolic({"ask": "readable", "gold": tidied})

    def why_unreadable(self, gold: str) -> str:
        """What kind of text a gold is that cannot be read."""
        tidied = without_qualifier(tidy(gold))[0]
        tree = parse(tidied)
        if tree is not None:
            return _flaw(tree) or "does not equal itself"
        return "LaTeX that is broken or not known" if is_formula(tidied) or "\\" in tidied else "prose"

    # -- structure

    def same(self, gold: Node, answer: Node) -> bool:
        """Whether two shapes are equal."""
        if FALSE in (gold, answer):
            return False
        gold, answer = _single(gold, answer), _single(answer, gold)
        if gold.kind != answer.kind and {"tuple", "matrix"} & {gold.kind, answer.kind}:
            gold, answer = as_tuple(gold, len(answer.args)) or gold, as_tuple(answer, len(gold.args)) or answer
        if has_directions(gold) != has_directions(answer):  # 3i + 4j in bold on one side only
            gold, answer = as_tuple(gold, 3) or gold, as_tuple(answer, 3) or answer
        if {gold.kind, answer.kind} == {"tuple", "list"}:
            gold, answer = _as_point(gold), _as_point(answer)
        if "equation" in (gold.kind, answer.kind):
            return self._equations(gold, answer)
        if {gold.kind, answer.kind} == {"named", "inequality"}:
            gold, answer = as_inequality(gold) or gold, as_inequality(answer) or answer
        if "named" in (gold.kind, answer.kind):
            return self._named(gold, answer)
        if (gold.kind == "mod") != (answer.kind == "mod"):
            gold, answer = _residue(gold), _residue(answer)
            return "mod" not in (gold.kind, answer.kind) and self.same(gold, answer)
        for kinds, compare in _BY_KIND:
            if gold.kind in kinds or answer.kind in kinds:
                return gold.kind in kinds and answer.kind in kinds and compare(self, gold, answer)
        return self._quantities(gold, answer)

    def _named(self, gold: Node, answer: Node) -> bool:
        """Values with names. Names of the same kind must name the same thing; a name on one side only is a label."""
        values = [node.args[0] if node.kind == "named" else node for node in (gold, answer)]
        if gold.kind == answer.kind:
            if differ(gold.value, answer.value):
                return False
            values[1] = rearranged(gold.value, answer.value, values[1])
            values[1] = renamed(values[1], renaming(gold.value, answer.value) or {})
        elif answer.kind == "named":
            values[1] = renamed(values[1], own_letter(answer.value, *values))
        return self.same(*values)

    def _equations(self, gold: Node, answer: Node) -> bool:
        """Equations are equal when one is a multiple of the other. A gold that is not an equation takes what the answer says
        its left side is, where that was asked for: `x + y = 5` for 5, but not `2x = 5`."""
        if gold.kind == "equation" and gold.value == "computed":
            gold = gold.args[1]
        if gold.kind not in ("equation", "named"):
            left, right = answer.args
            said = not symbols(right) and asked_for(left, computed=answer.value == "computed")
            return said and self.same(gold, shape(right))
        sides = [_as_equation(node) for node in (gold, answer)]
        if sides[0] is None or sides[1] is None:
            return False
        return self._relations(sides[0], sides[1], "=")

    def _inequalities(self, gold: Node, answer: Node) -> bool:
        return gold.value == answer.value and self._relations(gold, answer, gold.value)

    def _relations(self, gold: Node, answer: Node, operator: str) -> bool:
        differences = [Node("+", (node.args[0], Node("neg", (node.args[1],)))) for node in (gold, answer)]
        if symbols(differences[0]) != symbols(differences[1]) or not all(map(guarded, differences)):
            return False
        return compare_at_points(*differences, proportional=True, signed=operator != "=") == "agree"

    def _lists(self, gold: Node, answer: Node) -> bool:
        """Bare lists and sets: in any order, all elements and no other. A list may repeat an element, a set not."""
        golds, answers = list(gold.args), list(answer.args)
        if "set" in (gold.kind, answer.kind):
            golds, answers = self._distinct(golds), self._distinct(answers)
        if len(golds) != len(answers) or len(golds) > MOST_ITEMS:
            return False
        names = [node.value for node in golds if node.kind == "named"]
        ordered = contains(gold, {"dots"}) or (
            len(set(names)) == len(golds) and not any(node.kind == "named" for node in answers)
        )
        return self._in_order(golds, answers) if ordered else self._in_any_order(golds, answers)

    def _distinct(self, items: Sequence[Node]) -> list[Node]:
        distinct: list[Node] = []
        for item in items[: MOST_ITEMS + 1]:
            if not any(item == other or self.same(other, item) for other in distinct):
                distinct.append(item)
        return distinct

    def _in_order(self, golds: Sequence[Node], answers: Sequence[Node]) -> bool:
        return len(golds) == len(answers) and all(map(self.same, golds, answers))

    def _in_any_order(self, golds: Sequence[Node], answers: Sequence[Node]) -> bool:
        left = list(answers)
        for item in golds:
            found = next((i for i, other in enumerate(left) if self.same(item, other)), None)
            if found is None:
                return False
            del left[found]
        return not left

    def _tuples(self, gold: Node, answer: Node) -> bool:
        return gold.value == answer.value and self._in_order(gold.args, answer.args)

    def _unions(self, gold: Node, answer: Node) -> bool:
        return gold.kind == answer.kind and len(gold.args) <= MOST_ITEMS and self._in_any_order(gold.args, answer.args)

    def _matrices(self, gold: Node, answer: Node) -> bool:
        rows = zip(gold.args, answer.args)
        return len(gold.args) == len(answer.args) and all(self._in_order(g.args, a.args) for g, a in rows)

    def _parts(self, gold: Node, answer: Node) -> bool:
        return gold.value == answer.value and self._in_order(gold.args, answer.args)

    def _ratios(self, gold: Node, answer: Node) -> bool:
        """1:2 is 2:4; but 1:15 and 2:30 are times of the day."""
        if self._in_order(gold.args, answer.args):
            return True
        parts = [[exact(part) for part in node.args] for node in (gold, answer)]
        if any(_is_time(node) for node in (gold, answer)) or len(parts[0]) != len(parts[1]):
            return False
        golds, answers = parts
        if not all(golds) or not all(answers):
            return False
        return len({g / a for g, a in zip(golds, answers) if g is not None and a is not None}) == 1

    def _based(self, gold: Node, answer: Node) -> bool:
        """The same digits in the same base. A base that the answer leaves out is taken for granted."""
        if gold.kind != "based":
            return False
        if answer.kind == "num":
            return bool(answer.text == gold.value)
        return answer.kind == "based" and self._parts(gold, answer)

    # -- numbers and expressions

    def _quantities(self, gold: Node, answer: Node) -> bool:
        """Numbers and expressions with what stands behind them: a unit, a percent sign."""
        if "based" in (gold.kind, answer.kind):
            return self._based(gold, answer)
        gold, answer = with_units(gold, answer)
        if plain(gold) and not plain(answer) and not self.allow_unevaluated:
            return False
        wanted, got = read_quantity(gold), read_quantity(answer)
        if wanted is None or got is None:
            return False
        (left, unit, percent), (right, other, other_percent) = wanted, got
        if other and not (countable(other, unit, right) and (unit is None or unit.agrees(other))):
            return False
        if left.kind in _STRUCTURES or right.kind in _STRUCTURES:  # 12:00 p.m.
            return self.same(left, right)
        if unit and other and unit.measures == other.measures and unit.factor != other.factor:
            factor = Node("num", value=other.factor / unit.factor, text="factor")
            return self._scalars(left, Node("*", (right, factor)))
        if self._scalars(left, right):
            return True
        if percent == other_percent:
            return False
        hundredth = Node("/", (left if percent else right, HUNDRED))
        return self._scalars(hundredth, right) if percent else self._scalars(left, hundredth)

    def _scalars(self, gold: Node, answer: Node) -> bool:
        values = exact(gold), exact(answer)
        if values[0] is not None and values[1] is not None:
            return values[0] == values[1] or same_decimal(gold, values[0], answer, values[1])
        if approximated(gold, answer):
            return True
        if contains(gold, BINDING) and without_bound_names(gold) == without_bound_names(answer):
            return True
        if contains(gold, NO_NUMBERS) or contains(answer, NO_NUMBERS):
            return gold == answer
        if not guarded(gold) or not guarded(answer):
            return False
        verdict = compare_at_points(gold, answer)
        if verdict == "differ" or (symbols(gold) != symbols(answer) and verdict == "unknown"):
            return False
        if verdict == "agree" and not contains_calls(gold, STEPS) and not contains_calls(answer, STEPS):
            return True
        return gold == answer or self.symbolic({"ask": "equal", "gold": to_wire(gold), "answer": to_wire(answer)})


STEPS = names("abs floor ceil max min gcd lcm arg Re Im")
"""Functions of several pieces: agreeing at some points proves nothing there."""
_STRUCTURES = ("list", "set", "tuple", "ratio", "matrix", "union")
_BY_KIND: tuple[tuple[frozenset[str], Callable[[Comparison, Node, Node], bool]], ...] = (
    (names("list set"), Comparison._lists),
    (names("tuple"), Comparison._tuples),
    (names("union cases"), Comparison._unions),
    (names("matrix"), Comparison._matrices),
    (names("inequality"), Comparison._inequalities),
    (names("ratio"), Comparison._ratios),
    *((frozenset({kind}), Comparison._parts) for kind in ("mod", "minus", "meet", "such", "relation")),
)


# -- pieces ------------------------------------------------------------------------------------------------------------


def _single(node: Node, other: Node) -> Node:
    """The element of a set of one, where the other is no set."""
    is_single = node.kind == "set" and len(node.args) == 1 and other.kind not in ("set", "list", "named")
    return node.args[0] if is_single else node


def _as_point(node: Node) -> Node:
    """x = 1, y = 2 as (1, 2), when the names are in their order."""
    names = [repr(item.value) for item in node.args if item.kind == "named"]
    if node.kind != "list" or len(names) != len(node.args) or names != sorted(set(names)):
        return node
    return Node("tuple", tuple(item.args[0] for item in node.args), "()")


def _flaw(tree: Node) -> str:
    """Why a tree is no gold; "" when it is one."""
    if shape(tree) is FALSE:
        return "a chain that is not true"
    if undefined(tree):
        return "division by zero"
    return "" if tree.kind != "dots" and is_gold(tree) else "prose or a placeholder"


def _residue(node: Node) -> Node:
    """3 of 3 (mod 7); 10 (mod 7) is no number."""
    values = [exact(arg) for arg in node.args] if node.kind == "mod" else []
    reduced = len(values) == 2 and values[0] is not None and values[1] is not None and 0 <= values[0] < values[1]
    return node.args[0] if reduced else node


def _as_equation(node: Node) -> Node | None:
    if node.kind == "named" and node.value.kind == "variable":
        return Node("equation", (Node("sym", value=node.value.value), node.args[0]))
    return node if node.kind == "equation" else None


def _is_time(node: Node) -> bool:
    """Whether every part after the first is written with two digits below 60."""
    return all(re.fullmatch("[0-5][0-9]", part.text) for part in node.args[1:])
