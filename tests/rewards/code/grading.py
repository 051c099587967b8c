"""Short ways to grade a program in the strongest sandbox that works here."""

from __future__ import annotations

from typing import Any

from postrl.rewards.code import verify
from postrl.rewards.score import Score

SOON = 3.0
"""Seconds for programs that never end."""


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def grade(code: str, *tests: str, **options: Any) -> Score:
    """A program against asserts."""
    return verify(fenced(code), list(tests), **{"test_timeout": 20.0, **options})


def passes(code: str, *tests: str, **options: Any) -> bool:
    score = grade(code, *tests, **options)
    assert score.value in (0.0, 1.0), score
    return score.value == 1.0


def grade_script(code: str, *examples: tuple[str, str], **options: Any) -> Score:
    """A script against inputs and outputs."""
    tests = [{"input": given, "output": expected} for given, expected in examples]
    return verify(fenced(code), tests, "stdio", **{"test_timeout": 20.0, **options})
