"""One verdict in few words, for the tests of the math reward."""

from __future__ import annotations

from postrl.rewards.math import verify


def status(gold, completion, **options) -> str:
    return verify(gold, completion, **options).status


def boxed(gold, answer, **options) -> str:
    """The status of an answer in a box."""
    return status(gold, rf"So it is \boxed{{{answer}}}.", **options)
