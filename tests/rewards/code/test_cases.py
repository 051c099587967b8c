"""The shipped cases of the code verifier, each as it must be scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from postrl.rewards.code import verify

CASES = [json.loads(line) for line in (Path(__file__).parents[2] / "cases" / "code.jsonl").read_text().splitlines()]
ENDLESS = {
    "limit/ignore-signals",
    "limit/catch-all",
    "limit/import-time-loop",
    "limit/sleep",
    "limit/stack-overflow",
    "stdio/hang-on-input",
}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    timeout = 2.0 if case["kind"] in ENDLESS else None
    score = verify(case["completion"], case["tests"], case.get("test_type"), test_timeout=timeout)
    assert score.value == case["expected"], (case["note"], score)
