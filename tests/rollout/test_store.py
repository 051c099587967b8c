"""Rollouts in parquet files: complete, readable by others, and back."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from postrl.errors import DataError, UsageError
from postrl.rollout.store import read_rollouts, stored_steps, write_rollouts
from postrl.types import GREEDY, Group, Rollout, Segment, VersionSpan

COLUMNS = [
    "step", "split", "prompt_id", "group_id", "messages", "prompt", "completion", "completion_ids", "loss_mask", "logps",
    "version_spans", "weight_version_first", "weight_version_last", "staleness", "finish_reason", "prompt_tokens",
    "completion_tokens", "reward", "reward/math", "status/math", "reward_version/math", "advantage", "dropped",
    "dataset_columns", "rewards",
]  # fmt: skip
"""What design and documentation promise to those who read the files."""


def made_up() -> list[Group]:
    first = Rollout(
        prompt_id="gsm8k:17",
        sample_index=0,
        prompt_ids=[1, 2, 3],
        completion_ids=[4, 5, 6],
        logps=np.array([-0.1, -2.5, -30.0], "<f4").tolist(),
        version_spans=[VersionSpan(3, 0, 1), VersionSpan(4, 1, 3)],
        finish_reason="stop",
        loss_mask=[1, 0, 1],
        completion="The answer is 7 \u2603 \x00",
        rewards={"math": 1.0, "length": None},
        statuses={"math": "correct", "length": "timeout"},
        reward=1.0,
        extra={"parsed": {"value": 7}, "note": None},
        advantage=0.5,
        staleness=2,
        support=[[4], [5, 9], [6, 7, 8]],
    )
    dropped = replace(
        first,
        sample_index=1,
        finish_reason="abort",
        dropped="stale",
        rewards={},
        statuses={},
        reward=None,
        extra={},
        advantage=0.0,
    )
    plain = replace(
        first,
        prompt_id="plain:0",
        sample_index=0,
        rewards={"math": 0.0},
        statuses={"math": "wrong"},
        reward=0.0,
        extra={},
    )
    messages = [{"role": "user", "content": "3 + 4?"}]
    versions = {"math": "math 1, postrl 0.1.0", "length": "sha256 0123456789ab"}
    columns = {"answer": "7", "tags": ["a", None]}
    return [
        Group("gsm8k:17", 5, "<user>3 + 4?", messages, columns, [dropped, first], ("math", "length"), versions),
        Group("plain:0", 9, "3 + 4 =", None, {}, [plain], (), {"math": "math 2, postrl 0.2.0"}),
    ]


def test_what_is_written_reads_back(tmp_path):
    path = write_rollouts(tmp_path / "rollouts", 1, "train", made_up())
    assert read_rollouts(path) == made_up()


def test_every_field_of_a_rollout_is_stored(tmp_path):
    """One that is added to the dataclass is stored by what its metadata says of it, or this fails."""
    (group, _) = made_up()
    sent = replace(
        group.rollouts[1], correct=True, dropped="stale", finish_reason="length", sample_index=3,
        segments=[Segment("policy", 0, 1), Segment("tool", 1, 2), Segment("policy", 2, 3)],
    )  # fmt: skip
    assert [f.name for f in fields(Rollout) if getattr(sent, f.name) == f.default] == []
    assert read_rollouts(write_rollouts(tmp_path, 1, "train", [replace(group, rollouts=[sent])]))[0].rollouts == [sent]


def test_a_greedy_completion_is_a_row_of_its_own_that_nobody_takes_for_one_to_train_on(tmp_path):
    (group, plain) = made_up()
    group.greedy = replace(
        group.rollouts[1], sample_index=GREEDY, dropped="greedy", rewards={"greedy_only": 0.5},
        statuses={"greedy_only": "scored"}, extra={"note": "g"},
    )  # fmt: skip
    path = write_rollouts(tmp_path, 1, "train", [group, plain])
    assert read_rollouts(path) == [group, plain]
    rows = pq.read_table(path).to_pylist()
    assert [(row["group_id"], row["sample_index"], row["dropped"]) for row in rows] == [
        (5, 1, "stale"), (5, 0, None), (5, -1, "greedy"), (9, 0, None),
    ]  # fmt: skip


def test_a_missing_log_prob_stays_missing(tmp_path):
    (group, _) = made_up()
    group.rollouts[1].logps[1] = math.nan
    (found,) = read_rollouts(write_rollouts(tmp_path, 1, "train", [group]))
    assert [math.isnan(x) for x in found.rollouts[1].logps] == [False, True, False]


def test_files_of_a_version_that_stored_less_are_read(tmp_path):
    path = write_rollouts(tmp_path, 1, "train", made_up())
    pq.write_table(pq.read_table(path).drop_columns(["rewards", "support", "segments", "correct"]), path)
    assert [group.rewards for group in read_rollouts(path)] == [(), ()]
    assert read_rollouts(path)[0].rollouts[0].support is None


def test_the_columns_are_those_that_are_promised(tmp_path):
    table = pq.read_table(write_rollouts(tmp_path, 7, "train", made_up()))
    assert [name for name in COLUMNS if name not in table.column_names] == []
    dropped, first, plain = table.to_pylist()
    assert (first["step"], first["split"], first["group_id"], first["sample_index"]) == (7, "train", 5, 0)
    assert (first["weight_version_first"], first["weight_version_last"], first["staleness"]) == (3, 4, 2)
    assert first["version_spans"] == [{"version": 3, "start": 0, "end": 1}, {"version": 4, "start": 1, "end": 3}]
    assert (first["prompt_tokens"], first["completion_tokens"], first["loss_mask"]) == (3, 3, [1, 0, 1])
    assert json.loads(first["messages"]) == [{"role": "user", "content": "3 + 4?"}]
    assert json.loads(first["dataset_columns"]) == {"answer": "7", "tags": ["a", None]}
    assert (first["reward"], first["reward/math"], first["status/math"]) == (1.0, 1.0, "correct")
    assert (first["reward/length"], first["status/length"]) == (None, "timeout")
    assert (first["reward_version/math"], plain["reward_version/math"]) == (
        "math 1, postrl 0.1.0",
        "math 2, postrl 0.2.0",
    )
    assert (first["rewards"], plain["rewards"]) == (["math", "length"], [])
    assert json.loads(first["extra/parsed"]) == {"value": 7}
    assert (first["extra/note"], plain["extra/parsed"]) == ("null", None)
    assert (dropped["dropped"], dropped["reward"], dropped["status/math"]) == ("stale", None, None)
    assert (plain["messages"], plain["status/length"], plain["dropped"]) == (None, None, None)


def test_training_and_evaluation_of_a_step_are_two_files_and_only_training_is_replayed(tmp_path):
    for step in (2, 10, 1):
        write_rollouts(tmp_path / "rollouts", step, "train", made_up())
    write_rollouts(tmp_path / "rollouts", 1, "eval", made_up()[:1])
    assert [path.name for path in stored_steps(tmp_path)] == [
        "step_000001.parquet",
        "step_000002.parquet",
        "step_000010.parquet",
    ]
    assert sorted(path.suffix for path in (tmp_path / "rollouts").iterdir()) == [".parquet"] * 4
    assert len(read_rollouts(tmp_path / "rollouts" / "eval_000001.parquet")) == 1


def test_a_step_without_rollouts_is_a_file_without_rows(tmp_path):
    assert read_rollouts(write_rollouts(tmp_path, 1, "train", [])) == []


def test_writing_again_replaces(tmp_path):
    write_rollouts(tmp_path, 1, "train", made_up())
    path = write_rollouts(tmp_path, 1, "train", made_up()[:1])
    assert len(read_rollouts(path)) == 1


def test_a_file_that_holds_something_else_is_one_error(tmp_path):
    import pyarrow as pa

    (tmp_path / "text.parquet").write_text("no parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for name in ("text", "other", "missing"):
        with pytest.raises(DataError, match=f"{name}.parquet is not a file of stored rollouts"):
            read_rollouts(tmp_path / f"{name}.parquet")


def test_a_folder_without_stored_rollouts_is_one_error(tmp_path):
    with pytest.raises(UsageError, match="holds no stored rollouts") as caught:
        stored_steps(tmp_path)
    assert "--replay" in caught.value.hint
