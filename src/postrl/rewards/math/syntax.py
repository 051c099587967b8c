"""From the small notation of `normalise` to a tree: the one parser for golds and answers.

It reads all of a text or nothing, builds plain data and computes nothing, so that it is safe on any text. What it
does not know (limits, integrals without bounds) it refuses with NotMath.
"""

from __future__ import annotations

from functools import lru_cache

from postrl.rewards.math.labels import has_unknown, is_label_text, split_label, without_words
from postrl.rewards.math.names import asked_for, name_of
from postrl.rewards.math.primaries import Primaries
from postrl.rewards.math.tokens import CURRENCIES, FUNCTIONS, NotMath, Token, tokenize
from postrl.rewards.math.tree import Node, counted, is_proper, unit_words
from postrl.rewards.math.units import LETTERS
from postrl.rewards.math.words import ABOUT, REMARKS, SEPARATING, SIGNS, names

_RELATIONS = names(r"= == < > <= >= != ≈ ∈ \equiv")
_STARTS_NO_FACTOR = names(r"\cup \cap \setminus \rangle \rfloor \rceil \} \pm \mp \endmatrix \equiv \pmod \bmod \mod")


@lru_cache(maxsize=10_000)
def parse(text: str) -> Node | None:
    """The tree of a tidied text; None when it is not wholly in the grammar.

    Letters next to each other are words first and products second: `apples`, but `abcd + 1`.
    """
    text = _without_outer_parentheses(text)
    for split in (False, True):
        try:
            return _Parser(tokenize(text, split)).whole()
        except (NotMath, RecursionError):
            continue
    return _labelled(text)


def _labelled(text: str) -> Node | None:
    """`label = value` with a label that is not in the grammar: \\lim_{x \\to 0} f(x) = 6, "area" "of" \\triangle ABC = 12."""
    label, value = split_label(text)
    tree = parse(value) if is_label_text(label) and _is_no_equation(label) else None
    if tree is None or tree.kind == "list":
        return None
    sides, operators = (tree.args, tree.value) if tree.kind == "relation" else ((tree,), ())
    return Node("relation", (Node("label", value=label), *sides), ("=", *operators))


def _without_outer_parentheses(text: str) -> str:
    """Without the parentheses around all of it, however many: reading them one by one would nest too deep."""
    partner: dict[int, int] = {}
    stack: list[int] = []
    for place, character in enumerate(text):
        if character == "(":
            stack.append(place)
        elif character == ")" and stack:
            partner[stack.pop()] = place
    first, last = 0, len(text) - 1
    while last - first > 2 and partner.get(first) == last and partner.get(first + 1) == last - 1:
        first, last = first + 1, last - 1
    return text[first : last + 1]


def _is_no_equation(label: str) -> bool:
    """Whether what stands beside the words of a label is a name or was asked for: the value of x, not "so" x^2."""
    formula = without_words(label)
    tree = parse(formula) if formula else None
    if tree is None:
        return not has_unknown(formula)
    return name_of(tree) is not None or asked_for(tree, computed=False)


# -- the grammar -------------------------------------------------------------------------------------------------------


class _Parser(Primaries):
    """Recursive descent, a method for each level: items, relation, ratio, union, sum, product, power, primary."""

    def whole(self) -> Node:
        node = self.items()
        if self.place < len(self.tokens):
            raise NotMath
        return node

    def read(self, tokens: list[Token]) -> Node:
        if not tokens:
            raise NotMath
        return _Parser(tokens).whole()

    # lists and relations

    def items(self) -> Node:
        """One item, or several separated by commas, semicolons, and, or."""
        groups: list[list[Node]] = [[self.relation()]]
        separators: list[str] = []
        while True:
            token = self.peek()
            if token in (",", ";"):
                self.place += 1
                separators.append(self.separating_word() or token)
            elif word := self.separating_word():
                separators.append(word)
            else:
                break
            if separators[-1] in (";", "or"):
                groups.append([])
            groups[-1].append(self.relation())
        if not separators:
            return groups[0][0]
        words = [separator for separator in separators if separator in SEPARATING]
        items = [item for group in groups for item in group]
        if len(groups) > 1 and len(items) > len(groups):  # p = 5, q = 2; p = 7, q = 2
            items = [Node("list", tuple(group), ",") for group in groups]
        return Node("list", tuple(items), words[-1] if words else ",")

    def separating_word(self) -> str:
        word = self.peek()[1:].lower() if self.kind() == "word" else ""
        if word in SEPARATING:
            self.place += 1
            return word
        return ""

    def relation(self) -> Node:
        self.found("≈")  # "\\approx 5"
        if self.word_at() in ABOUT and self.at_number(1):
            self.take()
        sides, operators = [self.ratio()], []
        while self.peek() in _RELATIONS:
            operators.append(self.take().replace("==", "="))
            sides.append(self.ratio())
        node = Node("relation", tuple(sides), tuple(operators)) if operators else sides[0]
        if self.peek() in (r"\pmod", r"\bmod", r"\mod"):
            self.take()
            node = Node("mod", (node, self.argument()))
        return node

    def ratio(self) -> Node:
        parts = [self.union()]
        while self.peek() == ":":
            self.take()
            parts.append(self.union())
        if len(parts) == 1:
            return parts[0]
        node = Node("ratio", tuple(parts))
        return self.units(node)

    def union(self) -> Node:
        left = self.sum()
        kinds = {r"\cup": "union", r"\setminus": "minus", r"\cap": "meet"}
        while self.peek() in kinds:
            kind = kinds[self.take()]
            left = Node(kind, (left, self.sum()))
        return left

    # arithmetic

    def sum(self) -> Node:
        left = self.signed()
        while operator := self.found("+", "-", r"\pm", r"\mp"):
            right = self.signed()
            if operator in (r"\pm", r"\mp"):
                left = Node("pm", (left, right), "+" if operator == r"\pm" else "-")
            else:
                left = Node("+", (left, Node("neg", (right,)) if operator == "-" else right))
        return left

    def signed(self) -> Node:
        sign = self.found("+", "-", r"\pm", r"\mp")
        if self.word_at() in SIGNS and self.at_number(1):
            sign = SIGNS[self.take()[1:].lower()]
        if not sign:
            return self.product()
        right = self.signed()
        if sign in (r"\pm", r"\mp"):
            return Node("pm", (right,), "+" if sign == r"\pm" else "-")
        return Node("neg", (right,)) if sign == "-" else right

    def at_number(self, ahead: int = 0) -> bool:
        return self.kind(ahead) in ("num", "repeat") or self.peek(ahead) in (r"\frac", r"\sqrt", "-", *CURRENCIES)

    def product(self, *, in_function: bool = False) -> Node:
        """Factors with `*`, `/` or nothing between them. Words behind a quantity are its unit."""
        left = self.power()
        bare = left.kind == "num"  # the factor before is a number as written
        while True:
            if self.peek() in ("*", "/") and not in_function:
                operator = self.take()
                right = self.negative_power()
                left = Node(operator, (left, right))
            elif self.word_at() or (left.kind != "sym" and self.at_remark()):
                return self.mixed_units(self.units(left))
            elif not self.starts_factor() or (in_function and self.at_function()):
                return left
            else:
                left, right = self.beside(left, bare)
            bare = right.kind == "num"

    def beside(self, left: Node, bare: bool) -> tuple[Node, Node]:
        """What two things side by side are: a mixed number, a product, or nothing at all ("2 3")."""
        whole = left.kind == "num" and left.text.isdigit()
        if bare and self.kind() in ("num", "repeat"):
            right = self.power()
            if not (whole and right.text.isdigit() and self.found("/")):
                raise NotMath
            bottom = self.power()
            right = Node("/", (right, bottom))
            if not is_proper(right):
                raise NotMath
            return Node("mixed", (left, right)), right
        before = "(" if self.peek() == "(" else " " if self.tokens[self.place].spaced else ""
        if whole and bare and self.peek() == r"\frac":
            fraction = self.primary()
            if is_proper(fraction):
                return self.postfix(Node("mixed", (left, fraction))), fraction
            right = self.power(fraction)
        else:
            right = self.power()
        if left.value == "C" and before == "(" and right.value == "()" and len(right.args) == 2:
            return Node("call", right.args, "binom"), right
        if right.kind == "/" and (unit := unit_words(right)):  # 60 \\frac{"km"}{"h"}
            return Node("unit", (left,), unit), right
        return Node("*", (left, right), text=before), right

    def starts_factor(self) -> bool:
        kind, text = self.kind(), self.peek()
        if kind == "op":
            return text in ("(", "[", "{") or text in CURRENCIES or (text == "|" and not self.bars)
        if kind == "command":
            return text not in _STARTS_NO_FACTOR
        return kind in ("num", "repeat", "digits", "sym") and not self.at_differential()

    def at_function(self) -> bool:
        return self.kind() == "command" and self.peek()[1:] in FUNCTIONS

    def negative_power(self) -> Node:
        if self.found("-"):
            return Node("neg", (self.negative_power(),))
        self.found("+")
        return self.power()

    def power(self, base: Node | None = None) -> Node:
        """A primary, or the one that was just read, with what stands behind and above it."""
        base = self.postfix(self.primary() if base is None else base)
        while self.found("^"):
            base = self.postfix(Node("^", (base, self.exponent())))
        return base

    def exponent(self) -> Node:
        """All digits of a number: models write 2^10 for what TeX wants as 2^{10}."""
        if self.peek() in ("-", "+"):
            return self.negative_power()
        if self.peek() == "{":  # 2^{3}!: the factorial of the power
            return self.bracketed()
        exponent = self.postfix(self.primary())
        return Node("^", (exponent, self.exponent())) if self.found("^") else exponent

    def postfix(self, node: Node) -> Node:
        while mark := self.found("!", "!!", "%", "°", "'"):
            if mark == "°" and self.kind() == "num" and self.peek(1) == "'":
                node = self.minutes(Node("°", (node,)))
            elif mark == "'":
                if node.kind != "sym":
                    raise NotMath
                node = Node("sym", value=f"{node.value}'")
            else:
                node = Node(mark, (node,))
        return node

    def units(self, quantity: Node) -> Node:
        """The words behind a quantity, with their powers and "per". A word for a number is not one of them: 5 million."""
        words: list[str] = []
        while True:
            word = self.word_at()
            by = self.peek() in ("/", "*") and (self.kind(1) == "word" or self.peek(1) in LETTERS)
            if word and not words and (number := counted(quantity, word, last=not self.word_at(1))):
                self.take()
                quantity = number
            elif word in ("only", "exactly"):
                self.take()
            elif word:
                self.take()
                words.append(word + self.unit_power())
            elif words and by:
                words += ["per"] if self.take() == "/" else []
                if self.kind() == "sym":  # km/h
                    words.append(self.take() + self.unit_power())
            elif remark := self.at_remark():
                self.place += len(remark) + 2
                words += [] if set(remark) <= REMARKS else remark
            else:
                return Node("unit", (quantity,), " ".join(words)) if words else quantity

    def at_remark(self) -> list[str]:
        """The words of a remark in parentheses, if one is next: 12 (ways)."""
        words: list[str] = []
        while self.peek() == "(" and self.word_at(len(words) + 1):
            words.append(self.word_at(len(words) + 1))
        return words if words and self.peek(len(words) + 1) == ")" else []

    def mixed_units(self, first: Node) -> Node:
        """5 feet 6 inches."""
        while first.kind == "compound" or (first.kind == "unit" and first.args[0].kind in ("num", "mixed", "/")):
            if self.kind() != "num":
                break
            second = self.power()
            if self.peek() in LETTERS:  # 5 kg 200 g
                second = Node("unit", (second,), self.take())
            second = self.units(second)
            if second.kind != "unit":
                raise NotMath
            first = Node("compound", (first, second))
        return first

    def minutes(self, degrees: Node) -> Node:
        """30° 15' 20''."""
        degrees = Node("compound", (degrees, Node("unit", (self.number(),), "arcminute")))
        self.take("'")
        if self.kind() == "num" and self.peek(1) == self.peek(2) == "'":
            degrees = Node("compound", (degrees, Node("unit", (self.number(),), "arcsecond")))
            self.place += 2
        return degrees

    def unit_power(self) -> str:
        if not self.found("^"):
            return ""
        power = self.exponent()
        sign, digits = ("-", power.args[0]) if power.kind == "neg" else ("", power)
        if digits.kind != "num":
            raise NotMath
        return f"^{sign}{digits.text}"
