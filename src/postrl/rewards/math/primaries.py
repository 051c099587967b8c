"""The innermost level of the grammar: numbers, letters, words, brackets, commands."""

from __future__ import annotations

from fractions import Fraction

from postrl.rewards.math.tokens import CURRENCIES, FUNCTIONS, LETTERS, Cursor, NotMath, Token
from postrl.rewards.math.tree import CLOSING, Node, in_brackets, number
from postrl.rewards.math.units import LETTERS as UNIT_LETTERS
from postrl.rewards.math.words import CONDITIONAL, NUMBERS, PARTS, PHRASES, SCALES, names

_HALF_OPEN = {"(": ")]", "[": ")]"}
_ROUNDED = {r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")}
_DECORATIONS = names(r"\vec \hat \overline \bar \tilde \overrightarrow \widehat \overparen \overset")
_BIG = {r"\sum": "sum", r"\prod": "prod", r"\int": "int"}
_COMMUTATIVE = names("max min gcd lcm")
_PREFIXES = names(r"\angle \triangle \measuredangle")
_CONSTANTS = {r"\infty": "inf", r"\ldots": "dots", r"\emptyset": "empty"}


class Primaries(Cursor):
    """What a factor can be. The levels above it are the parser's."""

    def items(self) -> Node:
        raise NotImplementedError

    def relation(self) -> Node:
        raise NotImplementedError

    def read(self, tokens: list[Token]) -> Node:
        raise NotImplementedError

    def sum(self) -> Node:
        raise NotImplementedError

    def product(self, *, in_function: bool = False) -> Node:
        raise NotImplementedError

    def exponent(self) -> Node:
        raise NotImplementedError

    def starts_factor(self) -> bool:
        raise NotImplementedError

    def primary(self) -> Node:
        kind, text = self.kind(), self.peek()
        if kind in ("num", "repeat"):
            return self.number()
        if kind == "digits":
            digits = self.take()
            self.take("_")
            return Node("based", (self.base_of_digits(),), digits)
        if kind == "sym":
            self.take()
            return self.subscripted(text)
        if kind == "word":
            return self.word()
        if text in CURRENCIES:
            self.take()
            sign = self.found("-")
            amount = Node("unit", (self.number(),), text)
            return Node("neg", (amount,)) if sign else amount
        if text in CLOSING:
            return self.bracketed()
        if text == "|":
            return self.absolute()
        if kind == "command":
            self.take()
            return self.command(text)
        raise NotMath

    def number(self) -> Node:
        if self.kind() not in ("num", "repeat"):
            raise NotMath
        node = number(self.take())
        if self.peek() == "_" and node.text.isdigit():
            self.take()
            return Node("based", (self.base_of_digits(),), node.text.lstrip("0") or "0")
        return node

    def base_of_digits(self) -> Node:
        """2 in 101_2, 101_{"two"}."""
        base = self.argument()
        value = NUMBERS.get(str(base.value)) if base.kind == "word" else None
        return base if value is None else Node("num", value=Fraction(value), text=str(value))

    def word(self) -> Node:
        """A word alone, or several; a letter in a text command is a symbol, as is a single word before `(`."""
        words = [self.take()[1:]]
        while self.word_at():
            words.append(self.take()[1:])
        words = words[words[0].lower() in ("a", "an", "the") and len(words) > 1 :]
        if len(words) == 1 and (len(words[0]) == 1 or words[0].lower() in FUNCTIONS):
            name = words[0]
            if name.lower() in FUNCTIONS:
                return self.function(name.lower())
            return Node("sym", value=name, text="text") if name in UNIT_LETTERS else self.subscripted(name)
        phrase = " ".join(words).lower()
        if phrase in PHRASES and not self.starts_factor():
            return _meaning(PHRASES[phrase])
        if words[0].lower() in SCALES or words[0].lower() in PARTS or (self.kind() == "num" and len(words) > 2):
            raise NotMath
        if self.starts_factor():  # "June 20", "Room 4"
            raise NotMath
        return Node("word", value=phrase)

    def subscripted(self, name: str) -> Node:
        if self.found("_"):
            start = self.place
            if self.peek() == "{":
                self.skip_group()
            else:
                self.take()
            inside = [token.text for token in self.tokens[start : self.place] if token.text not in "{}"]
            name = f"{name}_{''.join(inside)}"
        return Node("sym", value=name)

    def skip_group(self) -> None:
        """What stands in braces, whatever it is: a_{2k}, x_{\\max}, S_{"total"}."""
        depth = 0
        while True:
            depth += {"{": 1, "}": -1}.get(self.take(), 0)
            if depth == 0:
                return

    def argument(self) -> Node:
        """The argument of a command: a group, or one digit, letter or command, as TeX has it."""
        if self.peek() == "{":
            return self.bracketed()
        if self.peek() == "(":
            return self.bracketed()
        if self.kind() == "num":
            return self.digit()
        if self.peek() == "-":
            self.take()
            return Node("neg", (self.argument(),))
        return self.primary()

    def digit(self) -> Node:
        """The first digit of the next number; the others stay."""
        token = self.tokens[self.place]
        if token.text.isdigit() and len(token.text) > 1:
            self.tokens[self.place] = Token("num", token.text[1:])
            return number(token.text[0])
        return number(self.take())

    def bracketed(self) -> Node:
        """What stands in brackets: one expression, a tuple, an interval, a set."""
        self.deeper()
        opening = self.take()
        closings = (*_HALF_OPEN.get(opening, ""), CLOSING[opening])
        if closing := self.found(*closings):
            if opening == r"\{":
                return self.shallower(Node("empty"))
            raise NotMath
        bars, self.bars = self.bars, int(opening == r"\{" or self.bars)
        node = self.items()
        self.bars = bars
        if opening in ("{", r"\{"):
            node = self.such_that(node)
        closing = self.take(*closings)
        return self.shallower(in_brackets(opening, closing, node))

    def such_that(self, node: Node) -> Node:
        """{x | x > 3}, and {x : x > 3}, which was read as a relation between the ratio x : x and 3."""
        if self.found("|"):
            return Node("such", (node, self.items()))
        sides = node.args if node.kind == "relation" else ()
        for i, side in enumerate(sides):
            if side.kind == "ratio" and len(side.args) == 2:
                before, condition = (*sides[:i], side.args[0]), (side.args[1], *sides[i + 1 :])
                variable = Node("relation", before, node.value[:i]) if i else side.args[0]
                return Node("such", (variable, Node("relation", condition, node.value[i:])))
        return node

    def absolute(self) -> Node:
        self.deeper()
        self.take("|")
        self.bars += 1
        inside = self.sum()
        self.bars -= 1
        self.take("|")
        return self.shallower(Node("call", (inside,), "abs"))

    def command(self, name: str) -> Node:
        if name in _CONSTANTS:
            return Node(_CONSTANTS[name])
        if name == r"\frac":
            return Node("/", (self.argument(), self.argument()))
        if name == r"\binom":
            return Node("call", (self.argument(), self.argument()), "binom")
        if name == r"\matrix":
            return self.matrix()
        if name in _BIG:
            return self.big_operator(_BIG[name])
        if name == r"\cases":
            return self.cases()
        if name in _ROUNDED:
            closing, function = _ROUNDED[name]
            inside = self.items()
            self.take(closing)
            return Node("call", (inside,), function)
        if name in _DECORATIONS or name in _PREFIXES:
            return self.decorated(name)
        if name[1:] in FUNCTIONS:
            return self.function(name[1:])
        if name in LETTERS or name.startswith(r"\bb"):
            return self.subscripted(name)
        raise NotMath

    def decorated(self, name: str) -> Node:
        """\\vec{v}, \\overline{AB}, \\angle ABC: one symbol."""
        start = self.place
        if self.peek() == "{":
            self.bracketed()
        else:
            while self.kind() == "sym":
                self.take()
        inside = "".join(token.text for token in self.tokens[start : self.place] if token.text not in "{}")
        if not inside.isalpha():
            raise NotMath
        return self.subscripted(f"{name} {inside}")

    def function(self, name: str) -> Node:
        """sin x, sin^2 x, \\sin(2x), \\log_2 8, \\sqrt[3]{8}, max(1, 2)."""
        self.deeper()
        power = base = None
        if name == "sqrt":
            return self.shallower(self.root())
        while mark := self.found("^", "_"):
            if mark == "^":
                power = self.exponent() if self.peek() == "-" else self.argument()
            else:
                base = self.base()
        args = self.arguments()
        if name in _COMMUTATIVE:
            args = tuple(sorted(args, key=repr))
        if name in ("log", "lg"):
            args = (*args, base if base is not None else Node("num", value=Fraction(10), text="10"))
        elif base is not None:
            raise NotMath
        if f"arc{name}" in FUNCTIONS and power is not None and power.kind == "neg" and power.args[0].text == "1":
            return self.shallower(Node("call", args, f"arc{name}"))
        node = Node("call", args, name)
        return self.shallower(node if power is None else Node("^", (node, power)))

    def base(self) -> Node:
        """Of a logarithm: 10 in log_10 x, 2 in \\log_28."""
        whole = self.kind() == "num" and (self.kind(1) in ("num", "sym", "command") or self.peek(1) in ("(", "{"))
        return self.number() if whole else self.argument()

    def arguments(self) -> tuple[Node, ...]:
        if self.peek() in ("(", "{", "[", r"\{"):
            inside = self.bracketed()
            if inside.kind == "tuple" and inside.value != "()":
                raise NotMath
            return inside.args if inside.kind in ("tuple", "set") else (inside,)
        negative = self.found("-")
        inside = self.product(in_function=True)
        return (Node("neg", (inside,)) if negative else inside,)

    def root(self) -> Node:
        degree = Node("num", value=Fraction(2), text="2")
        if self.found("["):
            degree = self.items()
            self.take("]")
        return Node("call", (self.argument(), degree), "root")

    def matrix(self) -> Node:
        self.deeper()
        rows, row = [], [self.sum()]
        while mark := self.found("&", "⏎"):
            if mark == "⏎":
                rows.append(Node("list", tuple(row)))
                row = []
            if self.peek() != r"\endmatrix":
                row.append(self.sum())
        self.take(r"\endmatrix")
        rows += [Node("list", tuple(row))] if row else []
        return self.shallower(Node("matrix", tuple(rows)))

    def big_operator(self, kind: str) -> Node:
        """\\sum_{k=1}^{n} k^2, \\int_0^1 f(x) dx. Without both limits it is not read."""
        self.deeper()
        if not self.found("_"):
            raise NotMath
        if kind == "int":
            low = self.argument()
        else:
            self.take("{")
            variable = self.variable()
            self.take("=")
            low = self.sum()
            self.take("}")
        self.take("^")
        high = self.negative_argument()
        if kind != "int":
            return self.shallower(Node(kind, (variable, low, high, self.product())))
        self.integrals += 1
        body = Node("num", value=Fraction(1), text="1") if self.at_differential() else self.sum()
        if not self.at_differential():
            raise NotMath
        self.integrals -= 1
        self.take("d")
        return self.shallower(Node(kind, (self.variable(), low, high, body)))

    def negative_argument(self) -> Node:
        """+\\infty, -1, or an argument."""
        sign = self.found("+", "-")
        return Node("neg", (self.argument(),)) if sign == "-" else self.argument()

    def variable(self) -> Node:
        if self.kind() != "sym" and self.peek() not in LETTERS:
            raise NotMath
        return self.subscripted(self.take())

    def at_differential(self) -> bool:
        return self.integrals > 0 and self.peek() == "d" and (self.kind(1) == "sym" or self.peek(1) in LETTERS)

    def cases(self) -> Node:
        """Values with their conditions, or the equations of a system as a list."""
        self.deeper()
        rows: list[Node] = []
        while self.peek() != r"\endmatrix":
            row = self.relation()
            self.found(",", ";", ".")
            if self.found("&"):
                row = Node("tuple", (row, self.condition()), "cases")
            rows.append(row)
            if not self.found("⏎"):
                break
        self.take(r"\endmatrix")
        conditional = {row.value == "cases" for row in rows}
        if len(conditional) != 1:
            raise NotMath
        return self.shallower(Node("cases", tuple(rows)) if True in conditional else Node("list", tuple(rows), ","))

    def condition(self) -> Node:
        """What stands behind a value in \\cases: a relation if it can be read as one, else its words."""
        tokens: list[Token] = []
        while self.kind() and self.peek() not in ("⏎", r"\endmatrix"):
            if self.word_at() not in CONDITIONAL:
                tokens.append(self.tokens[self.place])
            self.place += 1
        while tokens and tokens[-1].text in (",", ".", ";"):
            tokens.pop()
        try:
            return self.read(tokens)
        except NotMath:
            return Node("word", value=" ".join(token.text for token in tokens).lower())


def _meaning(phrase: str) -> Node:
    """What a phrase of `words.PHRASES` stands for."""
    if phrase == "empty":
        return Node("empty")
    return Node("sym", value=phrase) if phrase.startswith("\\") else Node("word", value=phrase)
