"""Every shipped case: the verdict it expects, by the default options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from postrl.rewards.math import math_reward

CASES = Path(__file__).parents[2] / "cases" / "math.jsonl"
ROWS = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("case", ROWS, ids=[f"{row['id']}-{row['kind']}" for row in ROWS])
def test_the_verdict_is_the_expected_one(case):
    (score,) = math_reward([case["completion"]], [case["gold"]])
    assert score.value == case["expected"], f"{score.status}: {case['note']}"
    if case["expected"] is None:
        assert score.status == "gold_unscorable"


def test_no_verdict_depends_on_the_order_of_the_batch_or_on_what_was_asked_before():
    forwards = math_reward([row["completion"] for row in ROWS], [row["gold"] for row in ROWS])
    backwards = math_reward([row["completion"] for row in ROWS[::-1]], [row["gold"] for row in ROWS[::-1]])
    assert forwards == backwards[::-1]
    assert [score.value for score in forwards] == [row["expected"] for row in ROWS]


def test_no_case_ran_its_code():
    assert not Path("/tmp/postrl_pwned").exists()
