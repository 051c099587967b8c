"""The shipped cases of the code verifier, each as it must be scored, at the levels and for the users that grade.

Run as a script it grades those that attack the sandbox, at one level, and prints a line for each that is scored
otherwise: so the tests can run it as another user.
"""

from __future__ import annotations

import json
from pathlib import Path

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "cases" / "code.jsonl").read_text(encoding="utf-8").splitlines()
]
ENDLESS = {
    "limit/ignore-signals",
    "limit/catch-all",
    "limit/import-time-loop",
    "limit/sleep",
    "limit/stack-overflow",
    "stdio/hang-on-input",
}
