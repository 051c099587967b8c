"""Classes of English words, for what stands before and behind numbers and instead of them."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """The words of a text, for tables."""
    return frozenset(text.split())


SEPARATING = frozenset({"and", "or"})

NUMBERS = {
    word: value
    for value, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
            "twenty",
        ]
    )
} | {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
SCALES = {
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "lakh": 10**5, "crore": 10**7,
}  # fmt: skip
"""What a number in front of them is multiplied by."""
PARTS = {
    word + ending: value
    for word, value in {
        "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10,
        "twelfth": 12, "hundredth": 100, "thousandth": 1000, "millionth": 10**6,
    }.items()
    for ending in ("", "s")
} | {"half": 2, "halves": 2}  # fmt: skip
"""What a number in front of them is divided by. Not quarters: they are coins, too."""
POWERS = {"squared": 2, "cubed": 3}
SIGNS = {"negative": "-", "minus": "-", "positive": "+", "plus": "+"}
"""Words in front of a number."""
ABOUT = names("approximately approx about roughly around exactly precisely simply just only")
"""Words in front of a number that leave it as it is."""

_OPERATORS = names(
    "plus minus over divided multiplied added subtracted increased decreased reduced raised modulo mod choose power "
    "factorial squared cubed root sqrt log logarithm inverse reciprocal opposite twice thrice double triple doubled tripled "
    "halved sum difference product quotient pi prime reversed backwards by negative positive base"
)
_COMPARATIVES = names(
    "than least most below above under over short beyond up down exceeding greater larger bigger smaller lower higher "
    "minimum maximum minimal maximal between from until within nearly almost before after onwards upwards plus off"
)
_DENIALS = names(
    "not isn't aren't wasn't no never neither nor none nothing without false wrong incorrect invalid undefined impossible "
    "indeterminate infinite infinity unknown"
)
_CONJUNCTIONS = names(
    "if unless but because so then though although however instead versus vs when whenever where while whereas except "
    "besides since as"
)
_HEDGES = names("maybe perhaps possibly probably likely might may could should would either alternatively also else")
_VERBS = names("is are was were be been being equals equal becomes makes has have had does do did can will must fails")
_OTHERS = names("approximately about roughly answer it this that these those which what who they he she we you")
NO_NOUNS = (
    _OPERATORS | _COMPARATIVES | _DENIALS | _CONJUNCTIONS | _HEDGES | _VERBS | _OTHERS
    | frozenset(NUMBERS) | frozenset(SCALES) | frozenset(PARTS)
)  # fmt: skip
"""Words that make what stands behind a number no unit and no counted noun."""
NO_LABEL = (
    _DENIALS | _CONJUNCTIONS | _HEDGES | frozenset(NUMBERS) | frozenset(SCALES) | frozenset(POWERS)
    | names("twice thrice double triple half times plus minus over divided log root")
)  # fmt: skip
"""Words that make a left side no label of the right one."""
REMARKS = names("only exactly required as desired shown above answer final approx approximately")
"""Words of a remark in parentheses that says nothing of a number."""
GENERIC = names("unit total way different more number each left all altogether")
"""Nouns that count anything."""
FUNCTION_WORDS = names("of for on at to per a an the with by and")
PLURALS = names(
    "people men women children teeth geese mice sheep fish deer dice data series species aircraft cattle oxen "
    "ohm hp kwh kw mw gb mb kb tb rpm psi atm mol cal kcal rs inr cny rmb yuan won pa kpa ev fps dpi cans kids"
)
"""Plurals without an s, and what is written the same in the singular."""


def is_plural(word: str) -> bool:
    """Whether a noun behind a number other than one can be this word."""
    return word in PLURALS or (len(word) > 2 and word.endswith("s") and not word.endswith(("ss", "us", "is")))


CONDITIONAL = names("if when for is are where as in case and")
"""Words that only introduce a condition."""
PHRASES = {
    **dict.fromkeys(
        ("no solution", "no solutions", "there is no solution", "there are no solutions", "there are no real solutions",
         "no real solution", "no real solutions", "no such solution", "empty set"), "empty"
    ),
    **dict.fromkeys(
        ("all real numbers", "all reals", "real numbers", "any real number", "every real number", "set of real numbers",
         "set of all real numbers", "all real values", "reals"),
        r"\reals",
    ),
    **dict.fromkeys(("all integers", "integers", "set of integers", "set of all integers", "any integer"), r"\bbZ"),
    **dict.fromkeys(("dne", "doesn't exist"), "does not exist"),
}  # fmt: skip
"""Words for mathematics, and words for words."""
