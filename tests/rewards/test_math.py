from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postrl.rewards.math import find_answer, last_boxed, math_reward, read_number, scorable
from postrl.rewards.score import Score

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k" / "train.jsonl"


def verdict(completion, gold):
    (score,) = math_reward([completion], [gold])
    return score.status


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{10}, no: that forgets two, so \boxed{12}", "12"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {5} or \fbox{6}", "6"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"a } stray and a { open brace, \boxed{3}", "3"),
        (r"\boxed{12} and then \boxed{13", "12"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{42} ... #### 7", "42"),
        ("first #### 5\n\nthen\n####72\nmore", "72"),
        ("The answer is 5. No, the answer is **73** in all.", "**73"),
        ("Answer: $18", "$18"),
        ("**Final Answer:** 3/4", "3/4"),
        (r"The final answer is \(\frac{3}{4}\).", r"\(\frac{3}{4}"),
        ("The answer is -7, altogether.", "-7"),
        ("the ANSWER IS 1,234.5 metres", "1,234.5"),
        (r"<think>\boxed{1}</think>\boxed{2}<|im_end|>", "2"),
    ],
)
def test_the_answer_is_found(completion, answer):
    assert find_answer(completion).strip("*") == answer.strip("*")


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "42",
        "There were 73 of them",
        r"\boxed{}",
        r"\boxed{5} and finally \boxed{ }",
        r"the answer is 42, \boxed{42",
        r"<think>It is \boxed{42}, but",
        r"<think>\boxed{42}</think> ...",
        "The answer is definitely not 42.",
        "The answer is 42 or 43.",
        "The answer is 42, 43",
        "The answer is 9**9",
        "####",
    ],
)
def test_no_answer_is_guessed(completion):
    assert verdict(completion, "42") == "no_answer"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("004", "4"),
        ("72.00", "72"),
        ("100.", "100"),
        ("1,234", "1234"),
        (r"14{,}916", "14916"),
        (r"10,\!080", "10080"),
        (r"1\,234\,567", "1234567"),
        (r"\$1,250", "1250"),
        ("$5$", "5"),
        ("\u22125", "-5"),
        ("- 5", "-5"),
        (".5", "1/2"),
        (r"\dfrac{3}{-4}", r"-\frac34"),
        (r"-1\frac{2}{3}", "-5/3"),
        ("2 2/3", "8/3"),
        ("0.5/2", "1/4"),
        ("1.5e3", "1500"),
        (r"1.5 \times 10^{6}", "1500000"),
        ("x = 5", "5"),
        (r"\text{13}", "13"),
        (r"5\text{ cm}", "5"),
        ("72 clips", "72"),
        (r"60^\circ", "60\u00b0"),
        (r"28\%", "28"),
        ("10 percent", "0.1"),
    ],
)
def test_ways_to_write_one_number_are_equal(text, same):
    assert verdict(rf"\boxed{{{text}}}", same) == "correct"
    assert verdict(rf"\boxed{{{same}}}", text) == "correct"


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("5", "-5"),
        ("1,2", "12"),
        ("2 1/3", "7"),
        (r"2\frac{1}{3}", "7"),
        ("0.5", "50"),
        ("5000", "50"),
        ("0.5%", "50%"),
        ("5 m", "5 cm"),
        ("72 or 71", "72"),
        ("41=42", "42"),
        (r"17 \times 23", "391"),
        ("5 million", "5"),
        (r"4\sqrt{2}", "4"),
        ("1/0", "0"),
        ("0.3333333333333333", "1/3"),
        ("9^{9^{9}}", "5"),
        ("__import__('os').getpid()", "0"),
    ],
)
def test_what_is_not_the_number_is_wrong(answer, gold):
    assert verdict(rf"\boxed{{{answer}}}", gold) == "wrong"


@pytest.mark.parametrize("answer", ["7" * 5000, "1e999999999", r"1 \times 10^{99999999}", "(" * 5000, "9" * 1001])
def test_an_enormous_answer_is_wrong_without_being_computed(answer):
    assert verdict(rf"\boxed{{{answer}}}", "7") == "wrong"


@pytest.mark.parametrize("gold", [r"\boxed{42}", "48 and 24=<<48-6=42>>42\n#### 42", "$42$", 42, 42.0])
def test_golds_are_read(gold):
    assert scorable(gold)
    assert verdict(r"\boxed{42}", gold) == "correct"


@pytest.mark.parametrize(
    "gold", ["", r"\boxed{}", r"\frac{3}{", "x+1", "red", None, float("nan"), [1, 2], "He walks 5 floors."]
)
def test_a_gold_that_is_no_number_scores_nothing(gold):
    assert not scorable(gold)
    assert math_reward([r"\boxed{5}", "x"], [gold, gold]) == [Score(None, "gold_unscorable")] * 2


def test_conversational_completions_are_read():
    assert math_reward([[{"role": "assistant", "content": "#### 7"}]], ["7"]) == [Score(1.0, "correct")]


@given(st.fractions(max_denominator=10**6))
def test_any_fraction_equals_itself_and_not_its_successor(number):
    written = rf"\boxed{{{number}}}"
    assert verdict(written, str(number)) == "correct"
    assert verdict(written, str(number + 1)) == "wrong"


@given(st.text(alphabet=list("\\{}[]()$%# boxedfracanswris:0123456789.,-/*\n")))
def test_no_text_makes_it_raise(text):
    assert verdict(text, "7") in ("correct", "wrong", "no_answer")
    read_number(text)


@pytest.mark.parametrize("piece", [r"\boxed{", "{", "}", r"\boxed ", "answer: ", "answer is - ", "1,234", r"\frac{1"])
def test_long_junk_is_read_in_one_pass(piece):
    assert verdict(piece * (300_000 // len(piece)), "7") in ("wrong", "no_answer")


def test_the_last_box_of_many_nested_ones_is_found():
    assert last_boxed(r"\boxed{" * 1000 + "5" + "}" * 1000) == "5"


@pytest.mark.skipif(not GSM8K.is_file(), reason=f"the GSM8K rows are not at {GSM8K}")
def test_all_gsm8k_golds_are_scorable_verify_themselves_and_refuse_their_successor():
    golds = [json.loads(line)["answer"] for line in GSM8K.read_text(encoding="utf-8").splitlines()]
    numbers = [gold.rpartition("####")[2].strip() for gold in golds]
    assert len(golds) == 7473
    assert all(map(scorable, golds))
    successors = [f"The answer is {int(number.replace(',', '')) + 1}." for number in numbers]
    for ways, status in [(golds, "correct"), ([rf"\boxed{{{n}}}" for n in numbers], "correct"), (successors, "wrong")]:
        assert {score.status for score in math_reward(ways, golds)} == {status}
