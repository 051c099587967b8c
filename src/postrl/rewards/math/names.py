"""What stands left of an equals sign: a name for what stands right of it, or an equation that is still to be solved.

kinds of names    value            arguments
variable          x, x_1, \\theta  -
function          f, f', \\det     what it is applied to      f(1), P(A), \\sin A
segment           its letters      -                          AB, ABC, m\\angle ABC
label             its words        -                          Area, and what the grammar cannot read
tuple, ratio, /   -                names                      (x, y), a : b, x/y
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from fractions import Fraction
from itertools import permutations

from postrl.rewards.math.tree import BINDING, Node
from postrl.rewards.math.values import CONSTANTS, exact, symbols
from postrl.rewards.math.words import NO_LABEL

_FUNCTION_NAMES = frozenset("fghpqrstuvFGHPQSTVELMRXWCDNA")
LABEL_FUNCTIONS = frozenset({r"\det", r"\Pr", r"\dim", r"\deg", r"\ker", r"\bbE", r"\bbP"})
"""Commands that name something, without a value of their own."""
_UNKNOWN_FUNCTIONS = frozenset("fgh")
_STRUCTURES = frozenset({"tuple", "list", "set", "matrix", "union", "cases"})
_ANGLES = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})
_THINGS = frozenset("zw")
"""Letters of complex numbers: |z| is asked for more often than solved."""
ONE = Node("num", value=Fraction(1), text="1")


def name_of(node: Node) -> Node | None:
    """The name that a left side is; None where it is not a name, such as `x^2`, `-x` and `2x`."""
    if node.kind == "label":
        return node
    if node.kind == "word":
        return None if any(word in NO_LABEL for word in node.value.split()) else Node("label", value=node.value)
    if node.kind == "sym":
        return None if node.value in CONSTANTS else Node("variable", value=node.value)
    if node.kind == "*":
        return _applied(*node.args, brackets=node.text == "(") or _segment(node)
    if node.kind == "call":
        return _called(node)
    if (node.kind == "/" and _is_derivative(node)) or (
        node.kind in BINDING and frozenset() < symbols(node) <= _UNKNOWN_FUNCTIONS
    ):
        return Node("label", value=node.kind if node.kind in BINDING else "derivative")
    if node.kind in ("ratio", "/") or (node.kind == "tuple" and node.value == "()"):
        names = [name_of(arg) for arg in node.args]
        return None if None in names else Node(node.kind, tuple(name for name in names if name is not None))
    return None


def _applied(head: Node, inside: Node, *, brackets: bool) -> Node | None:
    """f(1), P(A), f'(x), f^{-1}(3), \\det A, the derivative of something."""
    if _is_derivative(head):
        return Node("label", value="derivative")
    inverse = head.kind == "^" and exact(head.args[1]) == -1
    head = head.args[0] if inverse else head
    letter = str(head.value).partition("_")[0].rstrip("'") if head.kind == "sym" else ""
    if letter in LABEL_FUNCTIONS or (brackets and letter in _FUNCTION_NAMES):
        if inside.kind == "tuple" and inside.value != "()":
            return None
        arguments = inside.args if inside.kind == "tuple" else (inside,)
        return Node("function", arguments, f"{head.value}{'^-1' if inverse else ''}")
    return None


def _segment(node: Node) -> Node | None:
    """AB, ABC, m\\angle ABC."""
    letters: list[str] = []
    while node.kind == "*" and node.args[1].kind == "sym":
        letters.append(node.args[1].value)
        node = node.args[0]
    if node.kind != "sym" or not letters:
        return None
    if node.value == "m" and letters[0].startswith("\\"):
        return Node("segment", value=letters[0])
    letters = [node.value, *reversed(letters)]
    return Node("segment", value="".join(letters)) if all(map(_is_point, letters)) else None


def _called(node: Node) -> Node | None:
    """|AB|, |z|, \\sin A: of what is a thing by its letter, not an unknown."""
    inside = node.args[0]
    if node.value in ("max", "min") and len(node.args) == 1:  # \\max f
        return Node("label", value=node.value)
    if node.value == "abs":
        thing = inside.kind == "sym" and (_is_point(inside.value) or inside.value in _THINGS)
        return Node("function", (inside,), "abs") if thing or _segment(inside) else None
    if node.value in _ANGLES and inside.kind == "sym" and _is_point(inside.value):
        return Node("function", (inside,), node.value)
    return None


def _is_point(name: str) -> bool:
    """Whether a letter is upper case or decorated: A, A_1, \\vec v, \\angle ABC."""
    return name[0].isupper() or " " in name


def _is_derivative(node: Node) -> bool:
    """dy/dx, d/dx."""
    return node.kind == "/" and all(_first(arg) == "d" for arg in node.args) and node.args[1].kind == "*"


def _first(node: Node) -> str:
    while node.kind in ("*", "^"):
        node = node.args[0]
    return str(node.value)


def asked_for(left: Node, *, computed: bool) -> bool:
    """Whether a left side that is no name is an expression whose value was asked for: of several letters, x + y, and
    without numbers unless its value is computed in front of the reader. With one letter it is to be solved."""
    return left.kind not in _STRUCTURES and len(symbols(left)) > 1 and (computed or not _has_coefficients(left))


def _has_coefficients(node: Node) -> bool:
    """Whether there is a number in it other than an exponent."""
    below = node.args[:1] if node.kind == "^" else node.args
    return node.kind == "num" or any(map(_has_coefficients, below))


# -- two names ---------------------------------------------------------------------------------------------------------


def differ(gold: Node, answer: Node) -> bool:
    """Whether two names are of the same kind and name different things. Other kinds are other labels: y and f(x)."""
    if gold == answer or gold.kind != answer.kind:
        return False
    if gold.kind == "variable":
        return _variables_differ(gold.value, answer.value)
    if gold.kind == "function":
        bound = renaming(gold, answer)
        return gold.value.count("'") != answer.value.count("'") or (bound is None and not _same_function(gold, answer))
    if gold.kind == "segment":
        return sorted(gold.value) != sorted(answer.value)
    if gold.kind == "label":
        return not set(gold.value.split()) & set(answer.value.split())
    return not _same_names(gold, answer) and (
        len(gold.args) != len(answer.args) or any(map(differ, gold.args, answer.args))
    )


def _same_names(gold: Node, answer: Node) -> bool:
    return sorted(map(repr, gold.args)) == sorted(map(repr, answer.args))


def _variables_differ(gold: str, answer: str) -> bool:
    """x_1 and x may be the same, x_1 and x_2 are not."""
    (letter, _, index), (other, _, other_index) = gold.partition("_"), answer.partition("_")
    return letter.casefold() != other.casefold() or bool(index and other_index and index != other_index)


def _same_function(gold: Node, answer: Node) -> bool:
    return (
        gold.value == answer.value
        and len(gold.args) == len(answer.args)
        and all(map(_same_tree, gold.args, answer.args))
    )


def _same_tree(left: Node, right: Node) -> bool:
    return left == right or (exact(left) is not None and exact(left) == exact(right))


def renaming(gold: Node, answer: Node) -> dict[str, str] | None:
    """Which letter of an answer's function is which of the gold's, as in f(x) and g(n); None where they are no letters."""
    letters = [[_bound_letter(arg) for arg in name.args] for name in (gold, answer)]
    if gold.kind != "function" or not all(map(all, letters)) or len(letters[0]) != len(letters[1]):
        return None
    new = dict(zip(letters[1], letters[0]))
    return {letter: f"{letter}?" for letter in new.values()} | new  # g(t) = x is not f(x) = x


def own_letter(name: Node, gold: Node, value: Node) -> dict[str, str]:
    """The letter of f(t) = t^2 as that of a gold without a name, x^2, where each has one that the other has not."""
    new = symbols(gold) - symbols(value)
    old = {_bound_letter(arg) for arg in name.args} if name.kind == "function" else set()
    return (
        {old.pop(): next(iter(new))} if len(new) == len(old) == 1 and "" not in old and not old & symbols(gold) else {}
    )


def _bound_letter(node: Node) -> str:
    lower = node.kind == "sym" and node.value not in CONSTANTS and not _is_point(node.value)
    return str(node.value) if lower else ""


def renamed(node: Node, letters: dict[str, str]) -> Node:
    """The tree with these letters instead of those."""
    if node.kind == "sym":
        return Node("sym", value=letters.get(node.value, node.value), text=node.text)
    return Node(node.kind, tuple(renamed(arg, letters) for arg in node.args), node.value, node.text)


def rearranged(gold: Node, answer: Node, value: Node) -> Node:
    """The value of an answer in the order of the gold's names: (y, x) = (2, 1) for (x, y), y/x = 1/2 for x/y."""
    if gold.kind not in ("tuple", "ratio", "/") or gold == answer or not _same_names(gold, answer):
        return value
    order = [answer.args.index(name) for name in gold.args]
    if value.kind == gold.kind and value.kind in ("tuple", "ratio") and len(value.args) == len(order):
        return Node(value.kind, tuple(value.args[i] for i in order), value.value)
    if gold.kind == "tuple" or len(order) != 2:
        return Node("false")
    number = exact(value)
    return Node("/", (ONE, value)) if not number else Node("num", value=1 / number, text=str(1 / number))


MOST_RENAMED = 3


def in_letters_of(gold: Node, answer: Node, free: Set[str], others: Set[str]) -> Iterator[Node]:
    """The answer as it is, and with its free letters as the gold has them.

    Args:
        free: letters of the gold that may be any: for all c, n \\in Z.
        others: those of the answer.
    """
    yield answer
    old = sorted(x for x in symbols(answer) - symbols(gold) if free or x in others)
    new = sorted(x for x in symbols(gold) - symbols(answer) if others or x in free)
    if (free or others) and 0 < len(new) <= MOST_RENAMED and len(new) <= len(old) <= MOST_RENAMED:
        for letters in permutations(old, len(new)):
            yield renamed(answer, dict(zip(letters, new)))


def without_bound_names(node: Node, depth: int = 0) -> Node:
    """The tree with the variables of sums and integrals by their depth, and without how it was written."""
    if node.kind in BINDING:
        node = renamed(node, {str(node.args[0].value): f"#{depth}"})
        depth += 1
    return Node(node.kind, tuple(without_bound_names(arg, depth) for arg in node.args), node.value)
