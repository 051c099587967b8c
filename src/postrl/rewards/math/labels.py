"""Left sides of an equals sign that the grammar does not know and that only say what the right side is."""

from __future__ import annotations

import re

from postrl.rewards.math.words import NO_LABEL

LONGEST_LABEL = 80
_OPENING, _CLOSING = "([{", ")]}"
_SAYS_WHAT = re.compile(r'"[a-zA-Z]{2,}|\\lim|\\nabla|\\partial|\\(?:sup|inf|lim(?:sup|inf))\b|[PE][(\[].*\|')
"""What marks a text as a label: words, limits, conditional probabilities."""
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


def is_label_text(text: str) -> bool:
    """Whether a text says what is computed: it has words or a limit in it, no number outside of brackets, and no word
    that denies, doubts or calculates."""
    outside = re.sub(r"[(\[{][^()\[\]{}]*[)\]}]", "", re.sub(r"_\s*(?:[0-9]|\{[^{}]*\})", "", text))
    return (
        0 < len(text) <= LONGEST_LABEL
        and bool(_SAYS_WHAT.search(text))
        and not _NO_LABEL.search(outside)
        and not re.search("[0-9]", re.sub(r"\\frac.*", "", outside) if r"\lim" in text else outside)
        and not any(word in NO_LABEL for word in re.findall(r'"([^"]*)"', outside.lower()))
    )
