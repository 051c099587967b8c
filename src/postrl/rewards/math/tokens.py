"""The tokens of the small notation, and which letters are words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from postrl.rewards.math.units import AMBIGUOUS, KNOWN_WORDS
from postrl.rewards.math.words import SEPARATING, names

DEEPEST = 50
"""Nested brackets; matching outer parentheses do not count."""
MOST_TOKENS = 600
FUNCTIONS = names(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp gcd lcm max min sqrt abs floor ceil "
    "arg Re Im cis"
)
LETTERS = names(
    r"\pi \alpha \beta \gamma \delta \epsilon \zeta \eta \theta \iota \kappa \lambda \mu \nu \xi \rho \sigma "
    r"\tau \upsilon \phi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Upsilon \Phi \Psi \Omega "
    r"\ell \hbar \reals \det \Pr \dim \deg \ker"
)
CURRENCIES = frozenset("¤£€¥")
_PLAIN = {"pi": r"\pi", "infinity": r"\infty", "inf": r"\infty", "oo": r"\infty", "theta": r"\theta"}
_TOKEN = re.compile(
    r"""\s*(?:(?P<repeat>[0-9]*\.[0-9]*\([0-9]+\))
    |(?P<digits>[0-9A-F]*[A-F][0-9A-F]*(?=_\{?\s*(?:1[1-6])\s*\}?))
    |(?P<num>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+(?![0-9.a-zA-Z^]))?)
    |"(?P<word>[^"]*)"
    |(?P<command>\\[a-zA-Z]+|\\[{}])
    |(?P<letters>[A-Za-z]+)
    |(?P<op><=|>=|!=|==|!!|.))""",
    re.VERBOSE,
)
_APPLIED = re.compile(r"\s*[({^_\\]|\s+[a-z0-9]\b")
_GLUED = re.compile(r"(and|or)([A-Z]+)$")
_WORDLIKE = re.compile(r"(?<![\\a-zA-Z])(?=[a-zA-Z]*[aeiouyAEIOUY])[a-zA-Z]{3,}(?![a-zA-Z])")


class NotMath(ValueError):
    """The text is not wholly in the grammar."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """num, repeat (0.(3)), digits (of a base beyond ten), word, command, sym (one letter) or op."""
    text: str
    spaced: bool = False
    """Whether a blank stands before it."""


NOTHING = Token("", "")
T = TypeVar("T")


def tokenize(text: str, split: bool) -> list[Token]:
    """The tokens of a tidied text; with `split` no letters are taken for a word that is not marked as one.

    Raises:
        NotMath: there are none, or too many.
    """
    if split and len(_WORDLIKE.findall(text)) > 1:
        raise NotMath
    tokens: list[Token] = []
    for match in _TOKEN.finditer(text.strip()):
        kind = match.lastgroup or ""
        spaced = match.start(kind) > match.start()
        if kind == "letters":
            previous = tokens[-1] if tokens else NOTHING
            if (
                match[kind] in ("min", "sec")
                and previous.kind == "num"
                and not _APPLIED.match(text.strip(), match.end())
            ):
                tokens.append(Token("word", match[kind], spaced))  # not the functions
                continue
            first, *others = _letters(match[kind], split, previous)
            tokens += [Token(first.kind, first.text, spaced), *others]
        else:
            tokens.append(Token(kind, match[kind], spaced))
    if not tokens or len(tokens) > MOST_TOKENS:
        raise NotMath
    return tokens


def _letters(run: str, split: bool, previous: Token) -> list[Token]:
    """A run of letters as a function, a constant, a word, or letters that are multiplied."""
    lower = run.lower()
    after_value = previous.kind in ("num", "repeat", "word") or previous.text in ("}", ")", "°", "%")
    if run in _PLAIN:
        return [Token("command", _PLAIN[run])]
    if run in FUNCTIONS:
        return [Token("command", "\\" + run)]
    known = len(run) > 1 and run not in AMBIGUOUS and (lower in KNOWN_WORDS or lower.removesuffix("s") in KNOWN_WORDS)
    if lower in SEPARATING or (after_value and known):
        return [Token("word", run)]
    if glued := _GLUED.match(run):  # "1orW(x)"
        return [Token("word", glued[1]), *_letters(glued[2], split, NOTHING)]
    vowels = any(letter in "aeiouy" for letter in lower)
    if vowels and not split and len(run) > (2 if after_value else 3):
        return [Token("word", run)]
    for name in ("sin", "cos", "tan", "log", "ln", "sqrt"):  # "xsin"
        if run.endswith(name):
            return [*_letters(run.removesuffix(name), split, previous), Token("command", "\\" + name)]
    return [Token("sym", letter) for letter in run]


class Cursor:
    """A place among tokens, and how deep in brackets it is."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.place, self.depth = tokens, 0, 0
        self.integrals = 0
        """Integrals of which the differential is still to come."""
        self.bars = 0
        """Open `|` and set braces, in which a `|` is not the start of an absolute value."""

    def peek(self, ahead: int = 0) -> str:
        """The next token's text; "" at the end. Words come with a quote, so that no word is an operator."""
        place = self.place + ahead
        if place >= len(self.tokens):
            return ""
        token = self.tokens[place]
        return f'"{token.text}' if token.kind == "word" else token.text

    def word_at(self, ahead: int = 0) -> str:
        """The next token as a word, lower case; "" when it is not a word, or one that separates."""
        word = self.peek(ahead)[1:].lower() if self.kind(ahead) == "word" else ""
        return "" if word in SEPARATING else word

    def kind(self, ahead: int = 0) -> str:
        place = self.place + ahead
        return self.tokens[place].kind if place < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        text = self.peek()
        if not text or (expected and text not in expected):
            raise NotMath
        self.place += 1
        return text

    def found(self, *texts: str) -> str:
        """The next token if it is one of these, taken; else ""."""
        text = self.peek()
        if text and text in texts:
            self.place += 1
            return text
        return ""

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotMath

    def shallower(self, node: T) -> T:
        self.depth -= 1
        return node
