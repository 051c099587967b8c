"""What follows an answer to say of its letters that they may be anything: for all x, n ∈ Z, where c is a constant.

It changes nothing about the answer, and tells which letters may as well be others.
"""

from __future__ import annotations

import re

_LETTERS = r"(?:[A-Za-z](?:_[A-Za-z0-9])?|\\(?:alpha|beta|gamma|theta|lambda|mu|phi))"
_SEVERAL = rf"(?P<letters>{_LETTERS}(?:\s*,\s*{_LETTERS})*)"
_DOMAIN = r"∈\s*(?:\\bb[ZNQCR]|\\reals|\\bbZ)\s*(?:[\^_]\s*\{?\s*[+*0-9>=]*\s*\}?)*(?:\\setminus\s*\\\{\s*0\s*\\\})?"
_KIND = (
    r'(?:"?(?:real|complex|rational|positive|negative|natural|non-?negative|non-?zero|fixed|constants?|integers?|'
    r'numbers?|values?|arbitrary|any|some|of)"?\s*)'
)
_QUANTIFIER = r'(?:"?(?:all|any|every|each|some|arbitrary)"?\s*)'
_IS = r'(?:"?(?:is|are|being)"?\s*)(?:"?an?"?\s*)?'
_FOR = rf'"?for"?\s+{_QUANTIFIER}+{_KIND}*{_SEVERAL}?\s*(?:{_DOMAIN}|{_IS}?{_KIND}+)?'
_WHERE = rf'"?(?:where|with)"?\s+{_KIND}*{_SEVERAL}\s*(?:{_DOMAIN}|{_IS}?{_KIND}+)'
_MEMBER = rf"{_SEVERAL}\s*(?:{_DOMAIN}|{_IS}{_KIND}+)"
_ENDINGS = tuple(
    re.compile(pattern + r"$")
    for pattern in (
        rf"(?<=[\w)}}\]\"°'])\s*[,;]?\s*\(?\s*{_FOR}\s*\)?\s*",
        rf"(?<=[\w)}}\]\"°'])\s*[,;]?\s*\(?\s*{_WHERE}\s*\)?\s*",
        rf"(?:[,;]|(?<=[\w)}}\]])\s*\()\s*{_MEMBER}\s*\)?\s*",
    )
)

_HINT = re.compile(r"∈|for|where|with|is|are|being")
_CONSTANT = re.compile(r"[+] *C$")
"""Of an indefinite integral."""


def without_qualifier(tidied: str) -> tuple[str, frozenset[str]]:
    """A tidied text without what says that its letters may be anything, and these letters."""
    for ending in _ENDINGS if _HINT.search(tidied) else ():
        match = ending.search(tidied)
        if match and match.start():
            letters = re.findall(_LETTERS, match["letters"] or "")
            core = tidied[: match.start()].rstrip(" ,;")
            if _balanced(core) and (
                not letters or any(re.search(rf"(?<![a-zA-Z]){re.escape(x)}|[a-z]{x}", core) for x in letters)
            ):
                return core, frozenset(letters)
    return tidied, frozenset("C" if _CONSTANT.search(tidied) else "")


def _balanced(text: str) -> bool:
    return text.count("(") == text.count(")") and text.count("{") == text.count("}")
