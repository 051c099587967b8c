from __future__ import annotations

import pytest

from postrl.rewards import Score
from postrl.rewards import math as math_package
from postrl.rewards.math import math_reward, scorable, verify
from rewards.math.verdicts import boxed, status


def test_a_batch_has_one_score_a_completion_in_its_order():
    completions = [r"\boxed{1}", r"\boxed{2}", "none", r"\boxed{3}"]
    assert math_reward(completions, ["1", "3", "1", ""]) == [
        Score(1.0, "correct"), Score(0.0, "wrong"), Score(0.0, "no_answer"), Score(None, "gold_unscorable"),
    ]  # fmt: skip
    assert math_reward([], []) == []


def test_a_batch_with_a_gold_missing_is_refused():
    with pytest.raises(ValueError, match="argument 2"):
        math_reward(["1", "2"], ["1"])


def test_conversational_completions_are_read():
    assert math_reward([[{"role": "assistant", "content": "#### 7"}]], ["7"]) == [Score(1.0, "correct")]


@pytest.mark.parametrize("gold", [42, 42.0, "42", r"\boxed{42}", "$42$", "6*7=<<6*7=42>>42\n#### 42"])
def test_golds_of_many_kinds_are_scorable(gold):
    assert scorable(gold)
    assert status(gold, r"\boxed{42}") == "correct"


@pytest.mark.parametrize(
    "gold", ["x+1", "red", "(1,2)", r"\pm 3", r"9^{9^{9}}", r"\int_0^1 f(x)\,dx", r"\text{June 20}"]
)
def test_golds_that_are_no_numbers_are_scorable(gold):
    assert scorable(gold)


@pytest.mark.parametrize("gold", ["", None, float("nan"), r"\boxed{}", r"\frac{3}{", "He walks 5 floors.", [1, 2]])
def test_golds_that_are_no_answers_are_not(gold):
    assert not scorable(gold)
    assert math_reward([r"\boxed{5}", "x"], [gold, gold]) == [Score(None, "gold_unscorable")] * 2


def test_the_fallback_can_be_switched_off():
    assert status("5", "The answer is 5.") == "correct"
    assert status("5", "The answer is 5.", anchored=False) == "no_answer"


def test_the_reasoning_tags_are_an_option():
    text = r"<reason>\boxed{5}</reason>\boxed{6}"
    assert status("6", text, reasoning=[["<reason>", "</reason>"]]) == "correct"
    assert status("5", r"<reason>\boxed{5}", reasoning=[["<reason>", "</reason>"]]) == "no_answer"


def test_an_answer_of_more_than_a_thousand_characters_is_wrong():
    assert boxed("1", "1" + "+0" * 500) == "wrong"


@pytest.mark.parametrize(
    "answer", ["7" * 5000, "7" * 900, "1e999999999", r"1 \times 10^{99999999}", "(" * 5000, "9" * 999]
)
def test_an_enormous_answer_is_wrong_without_being_computed(answer):
    assert boxed("7", answer) == "wrong"


def test_a_verdict_is_remembered(monkeypatch):
    assert boxed("x^2-1", "(x-1)(x+1)") == "correct"
    monkeypatch.setattr(math_package, "_compare", lambda *_: pytest.fail("asked again"))
    assert boxed("x^2-1", "(x-1)(x+1)") == "correct"


def test_the_memory_of_verdicts_is_bounded(monkeypatch):
    monkeypatch.setattr(math_package, "LARGEST_CACHE", 10)
    memory = math_package._Verdicts()
    for number in range(100):
        assert memory.get(str(number), str(number), False) == Score(1.0, "correct")
    assert len(memory._known) == 10


def test_the_version_names_the_verifier_and_its_library():
    assert math_reward.version().startswith("math 2, math-verify ")


def test_one_completion_gets_one_score():
    assert verify("1/2", r"\boxed{0.5}") == Score(1.0, "correct")


@pytest.mark.parametrize(
    ("gold", "why"),
    [
        ("41=42", "a chain that is not true"),
        (r"\frac{1}{0}", "division by zero"),
        ("He walks 5 floors.", "prose"),
        (r"\text{proof}", "prose or a placeholder"),
        (r"\frac{3}{", "LaTeX that is broken or not known"),
        ("", "no answer, or more than 1000 characters"),
        ("7", ""),
        (r"\text{Yes, because 2 is an even prime}", ""),
    ],
)
def test_a_gold_that_cannot_be_scored_is_named_by_kind(gold, why):
    assert math_package.why_unscorable(gold) == why


def test_only_the_same_words_equal_a_sentence():
    gold = r"\text{Yes, because 2 is an even prime}"
    assert boxed(gold, r"\text{yes, because 2 is an even prime.}") == "correct"
    assert boxed(gold, r"\text{yes, because 3 is an even prime.}") == "wrong"
    assert boxed(gold, "yes") == "wrong"
