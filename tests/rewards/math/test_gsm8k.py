from __future__ import annotations

import json
from pathlib import Path

import pytest

from postrl.rewards.math import math_reward, scorable

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"

pytestmark = pytest.mark.skipif(not GSM8K.is_dir(), reason=f"the GSM8K rows are not at {GSM8K}")


@pytest.fixture(scope="module")
def golds():
    lines = [line for name in ("train", "test") for line in (GSM8K / f"{name}.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == 8792
    return [json.loads(line)["answer"] for line in lines]


def statuses(completions, golds):
    return {score.status for score in math_reward(completions, golds)}


def test_all_golds_are_scorable(golds):
    assert all(map(scorable, golds))


def test_all_golds_verify_against_themselves_however_they_are_given(golds):
    numbers = [gold.rpartition("####")[2].strip() for gold in golds]
    assert statuses(golds, golds) == {"correct"}
    for way in (r"\boxed{%s}", "#### %s", "The answer is %s.", r"So \boxed{\$%s.00}", "Answer: **%s**"):
        assert statuses([way % number for number in numbers], golds) == {"correct"}


def test_the_successor_of_every_gold_is_wrong(golds):
    numbers = [int(gold.rpartition("####")[2].strip().replace(",", "")) for gold in golds]
    for way in (r"\boxed{%d}", "#### %d", "The answer is %d."):
        assert statuses([way % (number + 1) for number in numbers], golds) == {"wrong"}
