"""One change makes a right answer wrong. Exceptions are by rule, not by case."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from postrl.rewards.math import verify
from postrl.rewards.math.extract import find_answer, read_gold
from rewards.math import test_equivalence, test_rules
from rewards.math.mutations import mutants
from rewards.math.test_cases import ROWS
from rewards.math.verdicts import boxed

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"


def says_the_same(kind, text):
    """Changes without a meaning: the sign of zero and of plus-minus, the factor 1 at the start of a product."""
    if kind == "sign":
        return r"\pm" in text or text == "0"
    return kind == "digit" and r"\prod_{k=1}" in text


def surviving(gold, text):
    return [
        (kind, gold, changed)
        for kind, changed in mutants(text)
        if not says_the_same(kind, text) and boxed(gold, changed) == "correct"
    ]


def golds_of(table):
    return [gold for rows in table.values() for gold, _ in rows]


def test_a_change_of_a_gold_of_the_shipped_cases_is_wrong():
    golds = dict.fromkeys(read_gold(row["gold"]) for row in ROWS if row["expected"] is not None)
    assert [found for gold in golds for found in surviving(gold, gold)] == []


def test_a_change_of_a_gold_of_the_other_tables_is_wrong():
    tables = (test_equivalence.SAME, test_equivalence.DIFFERENT, test_rules.ACCEPTED, test_rules.REFUSED)
    golds = dict.fromkeys(gold for table in tables for gold in golds_of(table))
    assert sum(len(list(mutants(gold))) for gold in golds) > 1000
    assert [found for gold in golds for found in surviving(gold, gold)] == []


def test_a_change_of_a_right_answer_of_the_shipped_cases_is_wrong():
    """Where it has nothing that the gold does not say: no label, no unit, no text of an option, no parts of a union."""
    answers = [(row["gold"], find_answer(row["completion"])) for row in ROWS if row["expected"] == 1]
    found = []
    for gold, answer in answers:
        if answer and len(answer) < 200 and not re.search(r"=|text|mathrm|≈|\\approx|\\cup|\\\\\[|pmod", answer):
            found += surviving(gold, answer)
    assert found == []


def test_swapped_values_of_two_names_are_wrong_and_a_swapped_order_is_right():
    for one, other in (
        ("x", "y"),
        ("f(1)", "f(2)"),
        ("a_3", "a_{37}"),
        ("AB", "CD"),
        (r"\text{length}", r"\text{width}"),
    ):
        gold = f"{one} = 4, {other} = 5"
        assert boxed(gold, f"{other} = 5, {one} = 4") == "correct"
        assert boxed(gold, f"{one} = 5, {other} = 4") == "wrong"


@pytest.mark.skipif(not GSM8K.is_dir(), reason=f"the GSM8K rows are not at {GSM8K}")
def test_a_changed_digit_or_sign_of_a_real_gold_is_wrong():
    lines = [line for name in ("train", "test") for line in (GSM8K / f"{name}.jsonl").read_text("utf-8").splitlines()]
    golds = dict.fromkeys(json.loads(line)["answer"].rpartition("####")[2].strip() for line in lines)
    assert len(golds) > 900
    for gold in golds:
        for kind, changed in mutants(gold):
            if not says_the_same(kind, gold):
                assert verify(gold, f"#### {changed}").value == 0, (gold, changed)
