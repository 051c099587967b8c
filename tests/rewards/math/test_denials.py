"""Sentences around an answer: reasons leave it as it is; denials, withdrawals and alternatives do not."""

from __future__ import annotations

import pytest

from rewards.math.verdicts import status

ANSWERS_42 = [
    "The answer is 42 since 43 fails.",
    "The answer is 42, because 43 isn't prime.",
    "The answer is 42, as 43 is wrong.",
    "The answer is $42$, so 43 cannot be right.",
    "The answer is 42, not 43.",
    "The answer is 42, but not 43.",
    "The answer is 42 but 43 fails.",
    "The answer is 42 rather than 43.",
    "The answer is 42, which she could split into 6 groups of 7.",
    "The answer is 42, although it looks odd.",
    "It is not hard to see that the answer is 42.",
    r"It is not difficult to see that it is \boxed{42}.",
    r"Whether we like it or not, it is \boxed{42}.",
    r"It is \boxed{42}, not \boxed{43}.",
    r"So \boxed{42}. It cannot be \boxed{41}.",
    r"\boxed{42} is the answer.",
    r"\boxed{42} is correct, 43 is wrong.",
    r"Since 41 is not possible, the answer is \boxed{42}.",
    r"I was not sure at first, but the answer is \boxed{42}.",
]
ANSWERS_NOTHING = [
    "The answer is 42, but it might be 43.",
    "The answer is 42, although 43 is equally possible.",
    "The answer is 42, maybe 43.",
    "The answer is 42, or possibly 43.",
    "The answer is 42, alternatively 43.",
    "The answer is 42, though 43 also works.",
    "The answer is 42, but 43 is possible too.",
    "The answer is 42; it could also be 43.",
    "The answer is 42. Or maybe 43.",
    "The answer is 42 as well as 43.",
    "It is not the case that the answer is 42.",
    r"The answer is certainly not \boxed{42}.",
    r"The answer is never \boxed{42}.",
    r"\boxed{42} is wrong.",
    r"It isn't \boxed{42}.",
    r"$\boxed{42}$ cannot be right.",
    r"The answer can't be $\boxed{42}$.",
    r"I don't think \boxed{42} is right.",
    r"It is \boxed{42}, but that is wrong.",
    r"It is \boxed{42}, which is incorrect.",
    r"It is false that the answer is \boxed{42}.",
]


@pytest.mark.parametrize("completion", ANSWERS_42)
def test_a_reason_or_a_remark_leaves_the_answer_as_it_is(completion):
    assert status("42", completion) == "correct"
    assert status("43", completion) == "wrong"


@pytest.mark.parametrize("completion", ANSWERS_NOTHING)
def test_an_answer_that_is_denied_taken_back_or_one_of_several_is_none(completion):
    assert status("42", completion) == "no_answer"
    assert status("43", completion) == "no_answer"


def test_a_denied_box_is_passed_over():
    assert status("41", r"First \boxed{41}. The value is not \boxed{42}.") == "correct"


@pytest.mark.parametrize(
    ("completion", "right", "wrong"),
    [
        (r"\boxed{-\boxed{5}}", "-5", "5"),
        (r"\boxed{\frac{1}{\boxed{5}}}", r"\frac15", "5"),
        (r"\boxed{41, \boxed{42}}", "41, 42", "42"),
        (r"\boxed{\{1, \boxed{2}\}}", r"\{1, 2\}", "2"),
        (r"\boxed{x + \fbox{5}}", "x+5", "5"),
        (r"\boxed{\boxed{\boxed{5}}}", "5", "-5"),
        (r"\boxed{4 \text{ or } \boxed{5}}", "4, 5", "5"),
        (r"\boxed{12} and then \boxed{ \boxed{13}", "13", "12"),
    ],
)
def test_the_outermost_complete_box_is_the_answer(completion, right, wrong):
    assert status(right, completion) == "correct"
    assert status(wrong, completion) == "wrong"
