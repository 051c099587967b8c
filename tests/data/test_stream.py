"""The order of prompts: a permutation an epoch, resumable to the prompt, mixed by weight."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postrl.data.prompts import PromptStream, steps_for_epochs
from postrl.errors import DataError, UsageError
from postrl.rows.plain import plain_row
from postrl.types import Prompt


def prompts(n: int, name: str = "rows") -> list[Prompt]:
    return [Prompt(f"{name}:{i}", None, "", [1]) for i in range(n)]


def ids(drawn) -> list[str]:
    return [prompt.prompt_id for _, prompt in drawn]


def test_an_epoch_gives_each_prompt_once_and_the_next_one_another_order():
    stream = PromptStream(prompts(20), seed=1, shuffle=True)
    first, second = ids(stream.next(20)), ids(stream.next(20))
    assert sorted(first) == sorted(second) == sorted(p.prompt_id for p in prompts(20))
    assert first != second


def test_the_seed_rules_the_order():
    def order(seed):
        return ids(PromptStream(prompts(20), seed=seed, shuffle=True).next(20))

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_without_shuffling_the_rows_come_in_their_order_again_and_again():
    stream = PromptStream(prompts(3), seed=1, shuffle=False)
    assert ids(stream.next(5)) == ["rows:0", "rows:1", "rows:2", "rows:0", "rows:1"]


def test_every_draw_is_a_group_of_its_own_also_of_the_same_prompt():
    stream = PromptStream(prompts(2), seed=1, shuffle=False)
    assert [(group, p.prompt_id) for group, p in stream.next(3)] == [(0, "rows:0"), (1, "rows:1"), (2, "rows:0")]


def test_position_and_epoch_say_how_far_it_is():
    stream = PromptStream(prompts(4), seed=1, shuffle=True)
    stream.next(6)
    assert (stream.position, stream.epoch) == (6, 1.5)


@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    weighted=st.booleans(),
    before=st.integers(0, 40),
    after=st.integers(1, 20),
)
def test_a_resumed_stream_goes_on_as_if_nothing_had_happened(sizes, weighted, before, after):
    rows = [prompt for i, size in enumerate(sizes) for prompt in prompts(size, f"set{i}")]
    weights = {f"set{i}": i + 0.5 for i in range(len(sizes))} if weighted else None
    stream = PromptStream(rows, seed=3, shuffle=True, weights=weights)
    stream.next(before)
    state = json.loads(json.dumps(stream.state()))
    resumed = PromptStream(rows, seed=3, shuffle=True, weights=weights)
    resumed.load_state(state)
    assert resumed.next(after) == stream.next(after)


def test_a_checkpoint_of_other_prompts_is_refused():
    state = PromptStream(prompts(3), seed=1, shuffle=True).state()
    with pytest.raises(DataError, match="it has 4 usable rows, and had 3"):
        PromptStream(prompts(4), seed=1, shuffle=True).load_state(state)


# -- the rows of a checkpoint ------------------------------------------------------------------------------------------


def row(text: str, i: int, **columns) -> Prompt:
    return Prompt(f"rows:{i}", None, text, [1], columns)


def rows(*texts: str, **columns) -> list[Prompt]:
    return [row(text, i, **columns) for i, text in enumerate(texts)]


def resumed(before: list[Prompt], now: list[Prompt]) -> str:
    """What is said when a stream of `before` goes on with the rows `now`."""
    stream = PromptStream(before, seed=1, shuffle=True)
    stream.next(2)
    state = json.loads(json.dumps(stream.state()))
    try:
        return PromptStream(now, seed=1, shuffle=True).load_state(state)
    except DataError as error:
        return error.message


def test_the_same_rows_in_another_order_are_refused():
    said = resumed(rows("a", "b", "c", "d"), rows("a", "c", "b", "d"))
    assert "the rows are in another order, from rows:1 (now 'c') on" in said


def test_another_row_is_named():
    assert "the first row that differs is rows:2 (now 'C')" in resumed(rows("a", "b", "c"), rows("a", "b", "C"))


def test_what_rewards_see_counts_as_well():
    assert "rows:0" in resumed(rows("a", "b", answer="1"), rows("a", "b", answer="2"))
    assert resumed(rows("a", "b", answer="1"), rows("a", "b", answer="1")) == ""


def test_a_number_of_rows_is_named():
    assert "it has 2 usable rows, and had 3" in resumed(rows("a", "b", "c"), rows("a", "b"))


def test_of_a_large_set_it_is_said_between_which_rows_they_differ():
    many = [str(i) for i in range(3000)]
    said = resumed(rows(*many), rows(*many[:2000], "x", *many[2001:]))
    assert "the first row that differs is between rows:1998 and rows:2000" in said


def test_a_conversation_is_its_messages_because_its_text_may_have_todays_date_in_it():
    def on(day: str, question: str = "1+1?") -> list[Prompt]:
        return [Prompt("rows:0", [{"role": "user", "content": question}], f"Today is {day}. {question}", [1])]

    assert resumed(on("Monday"), on("Tuesday")) == ""
    assert "rows:0" in resumed(on("Monday"), on("Monday", "2+2?"))


def test_columns_of_any_kind_are_the_same_in_another_process():
    import datetime

    import numpy as np

    columns = {"a": np.arange(3), "d": datetime.date(2026, 1, 1), "s": {3, 1}, "u": 0.5}

    def row(**changes):
        return rows("a", **plain_row({**columns, **changes}, "rows:0"))

    assert resumed(row(), row()) == ""
    assert "rows:0" in resumed(row(), row(a=np.arange(1, 4)))


def test_a_checkpoint_of_an_older_version_goes_on_and_says_what_was_not_compared():
    stream = PromptStream(rows("a", "b"), seed=1, shuffle=True)
    state = {name: value for name, value in stream.state().items() if name != "rows"}
    assert "older version" in PromptStream(rows("b", "a"), seed=1, shuffle=True).load_state(state)
    with pytest.raises(DataError, match="names or numbers"):
        PromptStream(rows("a", "b", "c"), seed=1, shuffle=True).load_state(state)


@given(n=st.integers(1, 60), a=st.floats(0.1, 10), b=st.floats(0.1, 10))
def test_weights_are_shares_of_what_is_drawn_to_within_one_prompt(n, a, b):
    stream = PromptStream(prompts(3, "a") + prompts(50, "b"), seed=1, shuffle=True, weights={"a": a, "b": b})
    drawn = ids(stream.next(n))
    assert abs(sum(name.startswith("a:") for name in drawn) - n * a / (a + b)) <= 1


def test_a_small_data_set_in_a_mix_runs_through_its_own_epochs():
    stream = PromptStream(prompts(2, "a") + prompts(50, "b"), seed=1, shuffle=True, weights={"a": 1, "b": 1})
    a = [name for name in ids(stream.next(12)) if name.startswith("a:")]
    assert [set(a[i : i + 2]) for i in (0, 2, 4)] == [{"a:0", "a:1"}] * 3


def test_a_step_of_more_prompts_than_rows_is_told_and_one_of_far_more_is_refused():
    stream = PromptStream(prompts(80), seed=1, shuffle=True)
    assert stream.repeats(80) == []
    (line,) = stream.repeats(100)
    assert line.startswith("prompts_per_step asks for 100 prompts, and there are 80: a step takes each 1.25 times")
    with pytest.raises(UsageError, match="asks for 1000000 prompts, and there are 80") as error:
        stream.repeats(1_000_000)
    assert error.value.hint.startswith("set --prompts-per-step to 80 or less")


def test_a_small_data_set_with_a_large_share_is_told_by_name():
    stream = PromptStream([*prompts(90, "a"), *prompts(10, "b")], seed=1, shuffle=True, weights={"a": 1, "b": 1})
    (line,) = stream.repeats(40)
    assert line.startswith("prompts_per_step asks for 20 prompts of b, and there are 10: a step takes each 2 times")
    with pytest.raises(UsageError, match="of b, and there are 10") as error:
        stream.repeats(6000)
    assert error.value.hint.startswith("lower the weight of b in --dataset")


def test_there_must_be_something_to_draw_from():
    with pytest.raises(DataError):
        PromptStream([], seed=1, shuffle=True)


@pytest.mark.parametrize(
    ("num_prompts", "per_step", "epochs", "steps"),
    [(80, 8, 1, 10), (81, 8, 1, 11), (80, 8, 0.5, 5), (3, 8, 1, 1), (10, 1, 0.7, 7)],
)
def test_steps_of_an_epoch_cover_every_prompt(num_prompts, per_step, epochs, steps):
    assert steps_for_epochs(num_prompts, per_step, epochs) == steps
