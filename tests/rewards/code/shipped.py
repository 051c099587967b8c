"""The shipped cases of the code verifier, and which of them are scored otherwise than they must be.

Run as a script it tries them at one level and prints a line for each that is: `python shipped.py LEVEL`. It needs only the
standard library and postrl, so that the tests can run it as another user by an interpreter that this user can read.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

from postrl.errors import UsageError
from postrl.rewards.code import code_reward
from postrl.rewards.code.sandbox import choose

FILE = Path(__file__).parents[2] / "cases" / "code.jsonl"
CASES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
ENDLESS = {
    "limit/ignore-signals", "limit/catch-all", "limit/import-time-loop", "limit/sleep", "limit/stack-overflow",
    "stdio/hang-on-input",
}  # fmt: skip
"""Kinds that run until their time is over: they get little of it."""
DEPENDS = ("contain", "escape", "limit", "stdio")
"""Kinds whose verdict may depend on the level, and on who grades."""


def of_the_sandbox() -> list[dict]:
    """The cases of these kinds; those with numpy where this interpreter has it."""
    numpy = importlib.util.find_spec("numpy") is not None
    return [case for case in CASES if case["kind"].startswith(DEPENDS) and (numpy or "numpy" not in case["completion"])]


def misjudged(cases: list[dict], level: str = "auto") -> list[str]:
    """The cases that are scored otherwise at a level, a line each."""
    found = []
    for endless, timeout in ((True, 1.0), (False, None)):
        some = [case for case in cases if (case["kind"] in ENDLESS) is endless]
        columns = [[case.get(name) for case in some] for name in ("completion", "tests", "test_type")]
        scores = code_reward(*columns, sandbox=level, test_timeout=timeout) if some else []
        found += [
            f"{case['id']} {case['kind']}: {score}, expected {case['expected']} ({case['note']})"
            for case, score in zip(some, scores)
            if score.value != case["expected"]
        ]
    return found


if __name__ == "__main__":
    try:
        print(choose(sys.argv[1]).about)
    except UsageError as error:
        sys.exit(f"unavailable: {error}")
    print("\n".join(misjudged(of_the_sandbox(), sys.argv[1])))
