"""Shaping rewards against values worked out by hand from their formulas."""

from __future__ import annotations

import math

import pytest

from postrl.errors import UsageError
from postrl.rewards.score import Score
from postrl.rewards.shaping import (
    cosine_length_reward,
    format_reward,
    repetition_penalty,
    soft_overlong_punishment,
)

# -- format ------------------------------------------------------------------------------------------------------------

KEPT = [
    "<think>3 and 4 are 7</think>7",
    "<think>\nline one\nline two\n</think>\n\nThe answer is 7.",
    "  <think>why</think> because <|im_end|>",
]
BROKEN = {
    "no tags": "7",
    "never closed": "<think>3 and 4",
    "never opened": "3 and 4</think>7",
    "the wrong way round": "</think>3<think>7",
    "text before": "Well, <think>3 and 4</think>7",
    "no answer": "<think>3 and 4</think>",
    "only an end of turn": "<think>3 and 4</think> <|im_end|><|endoftext|>",
    "blank reasoning": "<think> \n </think>7",
    "opened twice": "<think><think>3</think>7",
    "closed twice": "<think>3</think>4</think>7",
    "a second thought": "<think>3</think>7<think>4</think>7",
    "another case": "<THINK>3</THINK>7",
    "nothing": "",
}


@pytest.mark.parametrize("text", KEPT)
def test_reasoning_between_tags_and_then_an_answer_is_the_format(text):
    assert format_reward([text]) == [Score(1.0, "correct")]


@pytest.mark.parametrize("kind", BROKEN)
def test_anything_else_is_a_format_error(kind):
    assert format_reward([BROKEN[kind]]) == [Score(0.0, "format_error")]


def test_messages_are_read_like_text():
    assert format_reward([[{"role": "assistant", "content": KEPT[0]}]]) == format_reward([KEPT[0]])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>a</think><answer>7</answer>", 1.0),
        ("<think>a</think>\n<answer>\n7\n</answer>\n", 1.0),
        ("<think>a</think>7", 0.0),
        ("<think>a</think><answer></answer>", 0.0),
        ("<think>a</think>so <answer>7</answer>", 0.0),
        ("<think>a</think><answer>7</answer> I am sure", 0.0),
        ("<think>a<answer>7</answer></think>", 0.0),
        ("<answer>7</answer><think>a</think>", 0.0),
        ("<think>a</think><answer>7</answer><answer>8</answer>", 0.0),
    ],
)
def test_answer_tags_may_be_asked_for(text, value):
    (score,) = format_reward([text], answer_open="<answer>", answer_close="</answer>")
    assert score.value == value


def test_the_opening_tag_may_be_in_the_prompt_already():
    assert [score.value for score in format_reward(["a</think>7", "<think>a</think>7"], opened=True)] == [1.0, 0.0]


def test_other_tags_may_be_chosen():
    assert format_reward(["[THINK]a[/THINK]7"], think_open="[THINK]", think_close="[/THINK]")[0].value == 1.0


@pytest.mark.parametrize(
    "tags",
    [
        {"think_open": ""},
        {"answer_open": "<answer>"},
        {"think_close": "<think>"},
        {"answer_open": "a", "answer_close": "a"},
    ],
)
def test_tags_that_cannot_be_told_apart_are_refused(tags):
    with pytest.raises(UsageError, match="are empty or the same"):
        format_reward(["x"], **tags)


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 200_000,
        "<" * 1_000_000,
        "</think>" * 100_000 + "<think>",
        "<think>" + "a </think " * 100_000,
        "</s> " * 200_000,
    ],
)
def test_hostile_text_is_read_in_one_pass(text):
    """A pattern with `.*?` and a lookahead takes minutes here: the suite's time limit is the assertion."""
    assert format_reward([text])[0].value == 0.0


# -- soft overlong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "value"),
    [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1.0), (101, -1.0), (500, -1.0)],
)
def test_the_punishment_grows_over_the_last_tokens(length, value):
    """L_max = 100, L_cache = 20: free up to 80, then a twentieth a token."""
    (found,) = soft_overlong_punishment([[7] * length], max_completion_length=100, cache=20)
    assert found == pytest.approx(value, abs=1e-12)


def test_the_cache_is_a_fifth_unless_given():
    assert soft_overlong_punishment([[7] * 90], max_completion_length=100) == [-0.5]


def test_without_a_cache_only_what_is_beyond_the_limit_is_punished():
    assert soft_overlong_punishment([[7] * 10, [7] * 11], max_completion_length=10, cache=0) == [0.0, -1.0]


@pytest.mark.parametrize("cache", [-1, 101])
def test_a_cache_outside_the_length_is_refused(cache):
    with pytest.raises(UsageError, match=f"cache = {cache}, and max_completion_length = 100"):
        soft_overlong_punishment([[7]], max_completion_length=100, cache=cache)


# -- repetition --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "n", "value"),
    [
        ([1, 2, 3, 4], 2, 0.0),  # 12 23 34
        ([5, 5, 5, 5, 5], 2, -0.75),  # 55 four times: 1 of 4 is distinct
        ([1, 2, 1, 2, 1], 2, -0.5),  # 12 21 12 21
        ([1, 2, 3, 1, 2, 3], 3, -0.25),  # 123 231 312 123
        ([1, 1, 2], 1, -1 / 3),
        ([1, 2], 3, 0.0),
        ([], 3, 0.0),
    ],
)
def test_the_share_of_repeated_ngrams_is_the_penalty(ids, n, value):
    (found,) = repetition_penalty([ids], ngram_size=n)
    assert found == pytest.approx(value)
    assert math.copysign(1, found) == (1 if value == 0 else -1), "no negative zero"


def test_the_largest_penalty_scales_it():
    assert repetition_penalty([[5, 5, 5, 5, 5]], ngram_size=2, max_penalty=-0.2) == [pytest.approx(-0.15)]


@pytest.mark.parametrize("options", [{"ngram_size": 0}, {"max_penalty": 0.5}, {"max_penalty": float("nan")}])
def test_a_reward_for_repetition_is_refused(options):
    with pytest.raises(UsageError, match="ngram_size ="):
        repetition_penalty([[1]], **options)


# -- cosine length -----------------------------------------------------------------------------------------------------


def cosine(length: int, correct: bool | None, **options) -> float | None:
    (score,) = cosine_length_reward(["x"], [[7] * length], max_completion_length=100, correct=[correct], **options)
    return score.value


@pytest.mark.parametrize(
    ("length", "right", "wrong"),
    [
        (0, 1.0, -1.0),
        (50, 0.75, -0.75),  # half-way: the middle
        (100, 0.5, -0.5),
        (200, 0.5, -0.5),  # it does not swing back
        (25, 0.5 + 0.25 * (1 + math.sqrt(0.5)), -0.5 - 0.25 * (1 + math.sqrt(0.5))),
    ],
)
def test_short_is_better_when_right_and_worse_when_wrong(length, right, wrong):
    assert cosine(length, True) == pytest.approx(right)
    assert cosine(length, False) == pytest.approx(wrong)


def test_the_values_of_the_paper():
    """r0c = 2, rLc = 1, r0w = -10, rLw = 0, re = -10."""
    values = {
        "max_value_correct": 2,
        "min_value_correct": 1,
        "min_value_wrong": -10,
        "max_value_wrong": 0,
        "exceeded": -10,
    }
    assert [cosine(length, True, **values) for length in (0, 50, 100)] == pytest.approx([2, 1.5, -10])
    assert [cosine(length, False, **values) for length in (0, 50, 100)] == pytest.approx([-10, -5, -10])


def test_what_cannot_be_scored_stays_unscored():
    assert cosine(10, None) is None


def test_the_verdict_is_that_of_its_verifier():
    completions, ids = ["It is 7", "It is 8", "no idea", "7"], [[1] * 50] * 4
    scores = cosine_length_reward(
        completions, ids, max_completion_length=100, verifier="arithmetic", answer=[7, 7, 7, "seven"], tests=[None] * 4
    )
    assert [score.status for score in scores] == ["correct", "wrong", "no_answer", "gold_unscorable"]
    assert [score.value for score in scores] == [pytest.approx(0.75), pytest.approx(-0.75), pytest.approx(-0.75), None]


def test_an_unknown_verifier_lists_those_there_are():
    with pytest.raises(UsageError, match="no verifier 'format'") as error:
        cosine_length_reward(["x"], [[1]], max_completion_length=9, verifier="format")
    assert "arithmetic|math|code" in error.value.hint
