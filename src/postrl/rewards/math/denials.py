"""What a sentence says about the answer that it gives: that it is not the answer, or that there may be another one.

`denied` is about the words before an answer, `taken_back` about those right behind it, `another` about alternatives
that the rest of its sentence offers. A reason ("since 43 fails") says nothing about the answer itself.
"""

from __future__ import annotations

import re

WINDOW = 200
"""Characters on either side that are looked at."""

_NEGATION = r"(?:\b(?:not|never|neither|nor|cannot|hardly)\b|n[’']t\b)"
_BETWEEN = (
    "be|equal|equals|to|the|an?|correct|right|true|final|answer|value|result|solution|is|it|necessarily|simply|just|"
    r"really|actually|in\s+fact|as"
)
_CLAUSE_STARTS = re.compile(r"[.!?,;:\n]")
_DENIED = re.compile(
    rf"{_NEGATION}(?:\s++(?:{_BETWEEN}))*+[\s$*(\[{{\\]*+$"  # "is certainly not 42"
    rf"|\b(?:rather\s+than|instead\s+of|anything\s+but|far\s+from|reject(?:s|ed)?|rul(?:e|es|ed|ing)\s+out|exclud(?:e|es|ed|ing)|"
    rf"discard(?:s|ed)?)\s*+[\s$*(\[{{\\]*+$"
    rf"|{_NEGATION}(?:\s+\w+){{0,2}}?\s+(?:think|believe|say|claim|agree|true|correct|right|the\s+case|likely|possible)\b"
    r"|\b(?:doubt|unlikely|whether)\b|\b(?:false|wrong|incorrect|untrue|impossible)\s+(?:that|to\s+say)\b",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(r"\b(?:if|unless|suppose|assume|assuming)(?:\s+that)?(?:\s+the)?(?:\s+\w+)?\s*$", re.IGNORECASE)
_SENTENCE_ENDS = re.compile(r"[.!?](?=\s|$)|\n\s*\n")
_REASONS = re.compile(r"\s(?:because|since|so|where|when|hence|thus|therefore|(?<!well )as(?! well))\s", re.IGNORECASE)
_IS_WRONG = (
    r"(?:(?:is|was|are|were|seems?|looks?|must\s+be|would\s+be|turns\s+out\s+to\s+be|clearly|obviously|certainly|"
    r"definitely|surely|also)\s+)*+(?:(?:wrong|incorrect|false|untrue|invalid|impossible|fails?)\b"
    r"|not\s+(?:right|correct|true|valid|possible|so|it\b|(?:the|an?)\s+(?:\w+\s+)?(?:answer|solution|result|value))"
    r"|(?:is|was|does|do|ca|could|would)n[’']t\b|cannot\s+be\b)"
)
_TAKEN_BACK = re.compile(rf"\b{_IS_WRONG}|n[’']t\b", re.IGNORECASE)
_AT_ONCE = re.compile(
    rf"[\s$*)\]}}\\]*+(?:,?\s*(?:which|but|and|though|however),?\s+)?(?:(?:that|this|it|the\s+answer)\s+)?{_IS_WRONG}",
    re.IGNORECASE,
)
_VALUE = r"[\s$\\(\[*]*(?:[-+]?[0-9]|\$|\\[a-z]|[A-J]\b)"
_REFUTED = rf"(?!\S*\s+{_IS_WRONG})"
_ANOTHER = re.compile(
    rf"(?:(?:\b(?:maybe|perhaps|possibly|alternatively|otherwise|or\s+else|either)\b|;\s+or\b),?(?:\s+(?:it|is|be|even|also)\b)*"
    r"|\b(?:might|may|could)(?:\s+(?:also|well|equally|just|even))*\s+be\b(?:\s+(?:also|even))?"
    r"|\b(?:as\s+well\s+as|together\s+with|along\s+with|and\s+also)\b"
    r"|\b(?:but|however|though|although|yet|while)\b,?(?:\s+(?:it|the\s+answer|that|this|is|equals|also|really|actually)\b)*"
    rf"){_REFUTED}(?P<value>{_VALUE}){_REFUTED}",
    re.IGNORECASE,
)
_OTHER_REFUTED = re.compile(
    rf"(?:\b(?:but|and|while|though|although)\b|[,;])\s*{_VALUE}\S*\s+{_IS_WRONG}", re.IGNORECASE
)
_GOES_ON = re.compile(
    r"[.!?]\s+(?=(?:or|alternatively|maybe|perhaps|possibly|(?:it|that)\s+(?:might|may|could))\b)", re.I
)


def denied(before: str, *, supposed: bool = False) -> bool:
    """Whether the clause that ends where an answer begins denies it.

    Args:
        before: the text up to the answer.
        supposed: whether "if", "unless" and "suppose" deny, too.
    """
    clause = _CLAUSE_STARTS.split(before[-WINDOW:])[-1]
    return bool(_DENIED.search(clause) or (supposed and _SUPPOSED.search(clause)))


def taken_back_at_once(after: str) -> bool:
    """Whether the text behind an answer goes on with "is wrong" or the like."""
    return bool(_AT_ONCE.match(after[:WINDOW]))


def withdrawn(after: str) -> bool:
    """Whether the sentence of an answer, from the answer on, takes it back or offers another one besides."""
    sentence = _SENTENCE_ENDS.split(_GOES_ON.sub("; ", after), maxsplit=1)[0]
    _, _, rest = sentence.partition(" ")  # "The answer is false" is an answer
    claim = _OTHER_REFUTED.sub("", _REASONS.split(f" {rest}", maxsplit=1)[0])
    return bool(_TAKEN_BACK.search(claim) or _ANOTHER.search(claim))
