"""Answers in words, and the letters of multiple choice. And what a text must be to be a gold."""

from __future__ import annotations

import re

from postrl.rewards.math.tree import Node
from postrl.rewards.math.units import read_unit
from postrl.rewards.math.words import names

LONGEST_LABEL = 3
"""Words of a gold with numbers among them: June 20."""
LONGEST_SENTENCE = 300
"""Characters of a gold that is a sentence in quotes or in a text command."""
LONGEST_PHRASE = 6
"""Words of a gold in words; a longer one is prose, and no answer may be guessed from it."""

_OPTION = re.compile(r"^\(?([A-Za-z])\)?[.:)]*$")
_OPTION_AND_TEXT = re.compile(r"^(?:\(([A-Z])\)|([A-Z])[.:)])(?P<rest>.+)$")
_ANOTHER_OPTION = re.compile(r"\([A-Z]\)|\b[A-Z][.:)]|\b(?:or|and)\b|(?:^|[,;/&])\s*[A-J]\b")
_OPTIONS = re.compile(r"\(?[A-J]\)?(?:\s*(?:,|;|&|and)?\s*\(?[A-J]\)?)+")
_LABEL = re.compile(r"^(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?:?\s+(?=\(?[A-Z]\b)", re.IGNORECASE)
_QUOTED = re.compile(r"[\"“](?P<double>[^\"“”]+)[\"”]|\\(?:text|mbox)\{(?:``|\"|“)?(?P<text>[^{}\\$]+?)(?:''|\"|”)?\}")
_WORDS = re.compile(r"[\w .,'/-]*[^\W\d_]{2}[\w .,'/-]*")


def same_words(gold: str, answer: str) -> bool:
    """Whether two tidied texts are the same words, whatever their case, blanks and final dot."""
    texts = [re.sub(r"[\s.,'-]+", " ", text.replace('"', " ")).strip().casefold() for text in (gold, answer)]
    return texts[0] == texts[1] and bool(_WORDS.fullmatch(texts[0]))


_ARITHMETIC = names("+ * / ^ neg ! call")
_PLACEHOLDERS = frozenset({"proof", "notfound", "not found", "nan", "null", "n/a", "see solution"})
"""What data sets hold instead of an answer."""
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_UNSAFE = re.compile(r"!|\^\s*\{[^{}]*\^|\^\s*\{?\s*[0-9]{4}|[0-9]{40}")
MOST_LATEX = 300


def is_latex(tidied: str) -> bool:
    """Whether a text that `syntax` cannot read may be shown to the LaTeX parser of a computer algebra system."""
    balanced = tidied.count("{") == tidied.count("}")
    return "\\" in tidied and balanced and len(tidied) <= MOST_LATEX and not _UNSAFE.search(tidied)


def is_formula(tidied: str) -> bool:
    """Whether a text that `syntax` cannot read may be a formula: LaTeX with at most one word."""
    return len(_WORD.findall(tidied)) <= 1 and is_latex(tidied)


def is_sentence(gold: str) -> bool:
    """Whether all of a gold is in quotes or in one text command: words that only the same words are equal to."""
    match = _QUOTED.fullmatch(gold.strip())
    words = (match["double"] or match["text"] or "") if match else ""
    return bool(_WORDS.fullmatch(words)) and len(words.split()) > LONGEST_LABEL and len(gold) <= LONGEST_SENTENCE


def is_label(tidied: str) -> bool:
    """Whether it is a few words with numbers among them."""
    return bool(_WORDS.fullmatch(tidied.replace('"', ""))) and len(tidied.split()) <= LONGEST_LABEL


def is_gold(node: Node) -> bool:
    """Whether a tree is an answer: no prose, no placeholder, no words that are calculated with."""
    if node.kind == "word":
        return len(node.value.split()) <= LONGEST_PHRASE and node.value not in _PLACEHOLDERS
    if node.kind == "unit" and read_unit(node.value) is None:
        return False
    if node.kind in _ARITHMETIC and any(arg.kind == "word" for arg in node.args):
        return False
    return all(map(is_gold, node.args))


def option(tidied: str) -> str | None:
    """The one letter of an answer to a multiple choice question: B, (B), B., (B) 42; None for anything else."""
    text = _LABEL.sub("", tidied.replace('"', "")).strip()
    if match := _OPTION.fullmatch(text.replace(" ", "")):
        return match[1].upper()
    match = _OPTION_AND_TEXT.match(text)
    if match is None or _ANOTHER_OPTION.search(match["rest"]):
        return None
    return match[1] or match[2]


def options(tidied: str) -> list[str] | None:
    """The letters of an answer that chooses several: A, C or AC or (A) and (C)."""
    text = tidied.replace('"', "")
    return sorted(re.findall("[A-J]", text)) if _OPTIONS.fullmatch(text) else None
