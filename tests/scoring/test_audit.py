"""Hostile completions and the verdicts that they deserve."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from postrl.errors import DataError
from postrl.rewards import Score, resolve
from postrl.scoring.audit import (
    ACCEPTED_HACK,
    AS_EXPECTED,
    FAILED,
    GUESSED,
    KINDS,
    NO_SCORE,
    REFUSED,
    Case,
    audit,
    kind_of,
    read_cases,
    shipped_cases,
    verdict,
    without_dangerous,
)
from rewards.groups import runner


def write(path, *lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


CASE = {"id": "a", "gold": "7", "completion": "7", "expected": 1}


@pytest.mark.parametrize(
    ("expected", "score", "found"),
    [
        (1, Score(1.0, "correct"), AS_EXPECTED),
        (1, Score(0.51, "scored"), AS_EXPECTED),
        (1, Score(0.5, "scored"), REFUSED),
        (1, Score(None, "none"), NO_SCORE),
        (0, Score(0.0, "wrong"), AS_EXPECTED),
        (0, Score(-3.0, "scored"), AS_EXPECTED),
        (0, Score(0.5, "scored"), AS_EXPECTED),
        (0, Score(0.6, "scored"), ACCEPTED_HACK),
        (0, Score(None, "gold_unscorable"), NO_SCORE),
        (None, Score(None, "gold_unscorable"), AS_EXPECTED),
        (None, Score(None, "none"), AS_EXPECTED),
        (None, Score(0.0, "wrong"), GUESSED),
        (None, Score(1.0, "correct"), GUESSED),
        (None, Score(None, "infra_error"), FAILED),
        (0, Score(None, "infra_error"), FAILED),
        (1, Score(None, "timeout"), FAILED),
        (0, Score(0.0, "timeout"), AS_EXPECTED),
    ],
)
def test_a_score_above_a_half_is_a_reward_and_a_failure_is_no_verdict(expected, score, found):
    assert verdict(expected, score) == found


# -- cases -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_cases_are_read_whole(kind):
    cases = shipped_cases(kind)
    assert len(cases) > 50
    assert len({case.id for case in cases}) == len(cases)
    assert {case.expected for case in cases} >= {0, 1}
    column = "answer" if kind == "math" else "tests"
    assert all(case.kind and case.note and column in case.columns for case in cases)


def test_what_a_case_says_becomes_columns(tmp_path):
    line = {**CASE, "kind": "k", "note": "n", "policy": "p", "source": "s", "unit": "cm", "prompt": "3 + 4?"}
    (case,) = read_cases(write(tmp_path / "c.jsonl", line))
    assert case == Case("a", "k", "7", 1, {"unit": "cm", "answer": "7"}, prompt="3 + 4?", note="n", policy="p")
    group = case.group()
    assert group.messages == [{"role": "user", "content": "3 + 4?"}]
    assert (group.columns, group.rollouts[0].completion) == ({"unit": "cm", "answer": "7"}, "7")
    assert case.group(chat=False).messages is None


def test_separators_inside_a_completion_do_not_end_its_line(tmp_path):
    text = "a\u2028b\x85c"
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({**CASE, "completion": text}, ensure_ascii=False) + "\n\n", encoding="utf-8")
    assert [case.completion for case in read_cases(path)] == [text]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{\n", "line 2 is not JSON"),
        ("[1]\n", "line 2: a list, expected an object"),
        ({"id": "a", "expected": 1}, "line 2: it has no completion"),
        ({**CASE, "expected": 2}, "line 2: expected is 2"),
        ({**CASE, "completion": 7}, "line 2: its completion is a int"),
    ],
)
def test_a_line_that_is_no_case_is_named(tmp_path, line, says):
    with pytest.raises(DataError, match=says) as caught:
        read_cases(write(tmp_path / "c.jsonl", CASE, line))
    assert caught.value.hint


def test_a_file_that_is_missing_or_empty_is_one_error(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the cases .*none\.jsonl: No such file"):
        read_cases(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="holds no case"):
        read_cases(write(tmp_path / "empty.jsonl", "\n"))


def test_the_arguments_of_a_function_tell_which_cases_suit_it(tmp_path):
    source = """
from math import sqrt
def m(completions, answer, **columns): ...
async def c(completions, *, tests, answer=None): ...
def n(completions, **columns): ...
raise SystemExit("read, not run")
"""
    file = write(tmp_path / "r.py", source)
    assert [kind_of(resolve(f"{file}:{name}")) for name in ("m", "c", "n", "sqrt")] == ["math", "code", None, None]
    assert [kind_of(resolve(name)) for name in ("math", "arithmetic")] == ["math", "math"]


def test_dangerous_cases_can_be_left_out():
    cases = shipped_cases("code")
    kept = without_dangerous(cases)
    assert 0 < len(kept) < len(cases)
    assert not any(case.dangerous for case in kept)


# -- an audit ----------------------------------------------------------------------------------------------------------


def naive(completions, answer):
    """What many begin with: the answer somewhere in the text."""
    if "die" in completions[0][0]["content"]:
        os._exit(3)
    return [1.0 if gold in completion[0]["content"] else 0.0 for completion, gold in zip(completions, answer)]


def test_an_audit_finds_what_a_naive_reward_is_fooled_by_and_goes_on_after_a_crash():
    cases = [
        Case("right", "k", "It is 42.", 1, {"answer": "42"}),
        Case("denied", "k", "The answer is definitely not 42.", 0, {"answer": "42"}),
        Case("crash", "k", "die", 0, {"answer": "42"}),
        Case("formatted", "k", "It is 1,000.", 1, {"answer": "1000"}),
        Case("no gold", "k", "5", None, {"answer": "see above"}),
    ]
    seen = []
    with runner(naive) as rewards:
        findings = asyncio.run(audit(rewards, cases, done=lambda: seen.append(1)))
        assert "exit code 3" in rewards.failures["naive"].first
    assert [finding.case.id for finding in findings] == [case.id for case in cases]
    assert [finding.verdict for finding in findings] == [AS_EXPECTED, ACCEPTED_HACK, FAILED, REFUSED, GUESSED]
    assert len(seen) == len(cases)


def plain_text(completions, answer):
    return [float(completion == gold) for completion, gold in zip(completions, answer)]


def test_completions_may_be_given_as_text():
    with runner(plain_text) as rewards:
        (finding,) = asyncio.run(audit(rewards, [Case("a", "k", "7", 1, {"answer": "7"})], chat=False))
    assert finding.verdict == AS_EXPECTED
