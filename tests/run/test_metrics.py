"""Names of metrics, metrics.jsonl, trackers."""

from __future__ import annotations

import json
import math

import pytest

from postrl.errors import DataError
from postrl.run.metrics import METRICS, MetricsWriter, meaning, read_metrics


@pytest.mark.parametrize(
    "name",
    [
        "reward/mean",
        "reward/math/mean",
        "reward/my_function/status/wrong",
        "reward/my_function/logged/by it",
        "eval/gsm8k/reward",
        "policy/kl_ref",
        "time/wait_for_rollouts",
    ],
)
def test_a_documented_metric_has_a_meaning(name):
    assert meaning(name)


@pytest.mark.parametrize("name", ["reward/median", "policy/looss", "policy/loss/mean", "eval/gsm8k", "xreward/mean"])
def test_a_name_that_no_row_describes_has_none(name):
    assert meaning(name) is None


def test_meanings_are_sentences():
    assert [name for name, text in METRICS.items() if not text.endswith(".")] == []


# -- metrics.jsonl -----------------------------------------------------------------------------------------------------


def test_a_line_a_step_reads_back(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write(1, {"reward/mean": 0.5, "weights/version": 0})
    writer.write(2, {"reward/mean": 0.25})
    assert read_metrics(writer.path) == [
        {"step": 1, "reward/mean": 0.5, "weights/version": 0},
        {"step": 2, "reward/mean": 0.25},
    ]


def test_what_is_not_finite_is_null_and_the_file_stays_json(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    row = writer.write(1, {"policy/loss": math.nan, "policy/grad_norm": math.inf, "reward/mean": None})
    assert row == {"step": 1, "policy/loss": None, "policy/grad_norm": None, "reward/mean": None}
    assert "NaN" not in writer.path.read_text() and "Infinity" not in writer.path.read_text()


def test_numbers_of_torch_and_numpy_are_written_as_numbers(tmp_path):
    import numpy as np
    import torch

    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write(1, {"a": torch.tensor(0.5), "b": np.float32(0.25), "c": np.int64(3)})
    assert json.loads(writer.path.read_text()) == {"step": 1, "a": 0.5, "b": 0.25, "c": 3}


def test_resuming_drops_the_lines_of_later_steps(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3, 4):
        writer.write(step, {"reward/mean": step / 10})
    assert writer.cut_after(2) == 2
    writer.write(3, {"reward/mean": 0.9})
    assert [(row["step"], row["reward/mean"]) for row in read_metrics(writer.path)] == [(1, 0.1), (2, 0.2), (3, 0.9)]


def test_resuming_drops_a_line_that_a_killed_run_left_unfinished(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write(1, {"reward/mean": 0.1})
    with writer.path.open("a") as file:
        file.write('{"step": 2, "rew')
    assert len(read_metrics(writer.path)) == 1
    assert writer.cut_after(5) == 1
    assert writer.path.read_text() == '{"step": 1, "reward/mean": 0.1}\n'


def test_there_is_nothing_to_drop_before_the_first_step(tmp_path):
    assert MetricsWriter(tmp_path / "metrics.jsonl").cut_after(0) == 0


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(DataError, match="line 2"):
        read_metrics(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        read_metrics(tmp_path / "metrics.jsonl")
