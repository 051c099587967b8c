"""Left sides of an equals sign that the grammar does not know and that only say what the right side is."""

from __future__ import annotations

import re

from postrl.rewards.math.words import NO_LABEL

LONGEST_LABEL = 80
_OPENING, _CLOSING = "([{", ")]}"
_SAYS_WHAT = re.compile(
    r'"[a-zA-Z]{2,}|\\lim|\\nabla|\\partial|\\(?:sup|inf|max|min|lim(?:sup|inf))(?![a-zA-Z])|^#|^\|.*\\c[au]p|\|_|[PE][(\[].*\|'
)
"""What marks a text as a label: words, limits, conditional probabilities."""
_EXTREMUM = re.compile(r"\\(?:lim|max|min|sup|inf|nabla|partial)(?![a-zA-Z])")
_NO_LABEL = re.compile(r"[<>≠≈,;]|!=|\\pm|\\ge|\\le")


def split_label(text: str) -> tuple[str, str]:
    """A tidied text before and behind its first equals sign outside of brackets; two empty ones without."""
    depth = 0
    for place, character in enumerate(text):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "=" and depth == 0:
            if text[place - 1 : place] in ("<", ">", "!", "=") or text[place + 1 : place + 2] == "=":
                return "", ""
            return text[:place].strip(), text[place + 1 :].strip()
    return "", ""


def without_words(label: str) -> str:
    """The formula of a label."""
    return re.sub(r'"[^"]*"', " ", label).strip(" :,")


def has_unknown(formula: str) -> bool:
    """Whether a formula that cannot be read has a lower case letter of its own, outside of brackets; limits and
    extrema do not count."""
    if _EXTREMUM.search(formula):
        return False
    return bool(re.search(r"(?<![\\a-zA-Z])[a-z](?![a-zA-Z(])", _outside(formula)))


def _outside(text: str) -> str:
    """What stands outside of brackets and indices."""
    return re.sub(r"[(\[{][^()\[\]{}]*[)\]}]", "", re.sub(r"_\s*(?:[0-9]|\{[^{}]*\})", "", text))


def is_label_text(text: str) -> bool:
    """Whether a text says what is computed: it has words or a limit in it, no number outside of brackets, and no word
    that denies, doubts or calculates."""
    outside = _outside(text)
    return (
        0 < len(text) <= LONGEST_LABEL
        and bool(_SAYS_WHAT.search(text))
        and not _NO_LABEL.search(outside)
        and not re.search("[0-9]", re.sub(r"\\frac.*", "", outside) if r"\lim" in text else outside)
        and not any(word in NO_LABEL for word in re.findall(r'"([^"]*)"', outside.lower()))
    )
