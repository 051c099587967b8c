"""Rows that nothing can score are found before anything is sampled."""

from __future__ import annotations

import pytest

from postrl.errors import DataError
from postrl.rewards.registry import resolve, with_options
from postrl.rewards.rows import hidden_columns, scorable_rows, why_left_out
from postrl.types import Prompt
from rewards.functions import length


def rows(*answers, data="rows", rewards=()):
    return [Prompt(f"{data}:{i}", None, "?", [1], {"answer": a}, rewards) for i, a in enumerate(answers)]


def left_out(prompts, *rewards, args=()):
    kept, ids = scorable_rows(prompts, with_options([resolve(reward) for reward in rewards], args))
    assert len(kept) + len(ids) == len(prompts)
    return ids


MIXED = rows("7", "", "#### 8", "\\boxed{}")


def test_a_row_whose_gold_the_verifier_cannot_read_is_left_out():
    assert left_out(MIXED, "math") == ["rows:1", "rows:3"]
    assert left_out(rows("7", "x", None), "arithmetic") == ["rows:1", "rows:2"]


def test_one_verifier_that_can_is_enough():
    assert left_out(rows("7", "#### 8", ""), "arithmetic", "math") == ["rows:2"]


def test_a_shaping_reward_alone_does_not_make_a_row_usable():
    assert left_out(MIXED, "math", "format", "repetition") == ["rows:1", "rows:3"]


def test_a_function_of_the_users_may_score_any_row():
    assert left_out(MIXED, "math", length) == []
    assert left_out(MIXED, length) == []


def test_without_a_verifier_every_row_will_do():
    assert left_out(MIXED, "format") == []


def test_cosine_needs_what_its_verifier_needs():
    assert left_out(MIXED, "cosine") == ["rows:1", "rows:3"]
    assert left_out(rows("7", "#### 8"), "cosine", args=["cosine.verifier=arithmetic"]) == ["rows:1"]


def test_each_row_is_judged_by_the_rewards_that_score_it():
    both = [
        *rows("#### 1", "", data="words", rewards=("math",)),
        *rows("1", "#### 2", data="sums", rewards=("arithmetic",)),
    ]
    assert left_out(both, "math", "arithmetic") == ["words:1", "sums:1"]


def test_a_data_set_of_which_nothing_is_left_is_an_error_that_shows_a_row():
    both = [*rows("1", data="good"), *rows("x", "y", data="bad")]
    with pytest.raises(DataError, match="no row of bad can be scored by arithmetic; bad:0 has answer = 'x'") as error:
        left_out(both, "arithmetic")
    assert "--answer-column" in error.value.hint


def test_the_kinds_of_golds_that_were_left_out_are_counted():
    golds = rows("7", "41=42", r"\frac{1}{0}", "He walks 5 floors.", "We get 5 because x is 3.", r"\frac{3}{", "")
    specs = [resolve("math")]
    _, ids = scorable_rows(golds, specs)
    said = why_left_out(golds, ids, specs)
    assert said.startswith("golds that cannot be scored: 2 prose")
    for kind in ("1 a chain that is not true", "1 division by zero", "1 LaTeX that is broken", "1 no answer"):
        assert kind in said
    assert why_left_out(golds, [], specs) == ""
    assert why_left_out(rows("x"), ["rows:0"], [resolve("arithmetic")]) == ""


def test_why_rows_of_code_are_left_out_is_said_with_what_their_tests_use():
    patched = "from unittest.mock import patch\nwith patch('os.system'):\n    assert f() == 1"
    tests = [["assert f() == 1"], [patched], [patched], [{"input": "1", "output": "1", "testtype": "functional"}]]
    prompts = [Prompt(f"rows:{i}", None, "?", [1], {"tests": each}) for i, each in enumerate(tests)]
    _, ids = scorable_rows(prompts, [resolve("code")])
    assert ids == ["rows:1", "rows:2", "rows:3"]
    said = why_left_out(prompts, ids, [resolve("code")])
    assert said == (
        "golds that cannot be scored: 2 tests that patch os.system, 1 call tests without the name of a function"
    )


def test_columns_that_every_call_fills_itself_are_named():
    prompts = [Prompt("rows:0", None, "?", [1], {"answer": "7", "completions": ["8"], "log_extra": 1})]
    assert hidden_columns(prompts).startswith("columns completions, log_extra are not given to rewards")
    assert hidden_columns(MIXED) == ""
