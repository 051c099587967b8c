from __future__ import annotations

import pytest

from postrl.rewards.arithmetic import arithmetic_reward
from postrl.rewards.score import Score


@pytest.mark.parametrize(
    ("completion", "integer"),
    [
        ("7", 7),
        ("3+4=7.", 7),
        ("The sum of 3 and 4 is 7!", 7),
        ("5 - 8 = -3", -3),
        ("It is \u22123.", -3),
        ("(-3)", -3),
        ("10-3", 3),
        ("10 - 3", 3),
        ("(4) -3", 3),
        ("12\n-3", -3),
        ("12--3", -3),
        ("about 1,234,567", 1234567),
        ("1,2", 2),
        ("12,3456", 3456),
        ("007", 7),
        ("7.0", 7),
        ("**7**", 7),
    ],
)
def test_the_last_integer_is_the_answer(completion, integer):
    assert arithmetic_reward([completion], [str(integer)]) == [Score(1.0, "correct")]
    assert arithmetic_reward([completion], [str(integer + 1)]) == [Score(0.0, "wrong")]


def test_earlier_integers_do_not_count():
    assert arithmetic_reward(["5 6 7 8"], [7]) == [Score(0.0, "wrong")]


@pytest.mark.parametrize("completion", ["7.5", "9" * 5000])
def test_a_decimal_or_endless_number_is_wrong(completion):
    assert arithmetic_reward([completion], ["7"]) == [Score(0.0, "wrong")]


@pytest.mark.parametrize("completion", ["", "seven", "-"])
def test_a_completion_without_a_number_has_no_answer(completion):
    assert arithmetic_reward([completion], ["7"]) == [Score(0.0, "no_answer")]


def test_a_whole_number_among_numbers_is_an_integer():
    """As in a column of pandas where one is missing."""
    assert arithmetic_reward(["7"], [7.0]) == [Score(1.0, "correct")]


@pytest.mark.parametrize("gold", ["seven", "", None, "7.5", 7.5])
def test_a_gold_that_is_no_integer_scores_nothing(gold):
    assert arithmetic_reward(["7"], [gold]) == [Score(None, "gold_unscorable")]


def test_conversational_completions_are_read():
    assert arithmetic_reward([[{"role": "assistant", "content": "7"}]], [7]) == [Score(1.0, "correct")]
