"""`pytest` runs these: what a reward is right about, it should be right about for a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reward import score

ROWS = [json.loads(line) for line in Path(__file__).with_name("data.jsonl").read_text(encoding="utf-8").splitlines()]


def scores(*texts: str, answer: str = "Paris") -> list[float | None]:
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    return score(completions=completions, answer=[answer] * len(texts), log_extra=lambda column, values: None)


def test_the_answer_alone_is_worth_most_and_every_word_costs() -> None:
    alone, sentence, chatter = scores("Paris", "It is Paris.", "Well, I think that it is Paris, as far as I know.")
    assert alone == 1.0
    assert 0.0 < chatter < sentence < alone


def test_a_completion_without_the_answer_is_worth_nothing() -> None:
    assert scores("London", "", "Parisian") == [0.0, 0.0, 0.0]


def test_a_question_without_an_answer_cannot_be_scored() -> None:
    assert scores("Paris", "?", answer="?") == [None, None]


def test_plain_completions_are_texts() -> None:
    logged: dict[str, list[Any]] = {}
    assert score(completions=["Paris"], answer=["Paris"], log_extra=logged.__setitem__) == [1.0]
    assert logged == {"words": [1]}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["prompt"])
def test_every_answer_in_the_data_scores_its_own_row(row: dict[str, str]) -> None:
    assert scores(row["answer"], answer=row["answer"]) in ([1.0], [None])
