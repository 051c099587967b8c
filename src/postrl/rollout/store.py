"""Stored rollouts: RUN/rollouts/step_000001.parquet, enough to read, to rescore and to replay.

Columns are fixed, and those of the rewards follow: reward/<name>, status/<name>, reward_version/<name>, and extra/<column>
(JSON) for what reward functions gave to `log_extra`. A row is a completion; `dropped` is null where it is trained on. A
prompt's greedy completion, where the algorithm has one, is a row with sample_index -1 and "greedy" in `dropped`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from postrl.errors import DataError, UsageError
from postrl.types import GREEDY, Group, Rollout, VersionSpan


def schema(names: Sequence[str], extra: Sequence[str] = ()) -> Any:
    """The columns of a rollouts file whose rewards are called `names`, with columns `extra` of theirs."""
    import pyarrow as pa

    spans = pa.list_(pa.struct([("version", pa.int32()), ("start", pa.int32()), ("end", pa.int32())]))
    columns = [
        ("step", pa.int32()), ("split", pa.string()), ("prompt_id", pa.string()), ("group_id", pa.int64()),
        ("sample_index", pa.int32()), ("messages", pa.string()), ("prompt", pa.string()), ("completion", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())), ("completion_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())), ("logps", pa.list_(pa.float32())), ("version_spans", spans),
        ("weight_version_first", pa.int32()), ("weight_version_last", pa.int32()), ("staleness", pa.int32()),
        ("finish_reason", pa.string()), ("prompt_tokens", pa.int32()), ("completion_tokens", pa.int32()),
        ("reward", pa.float64()), ("correct", pa.bool_()), ("advantage", pa.float32()), ("dropped", pa.string()), ("dataset_columns", pa.string()),
        ("rewards", pa.list_(pa.string())), ("support", pa.list_(pa.list_(pa.int32()))),
    ]  # fmt: skip
    for name in names:
        columns += [
            (f"reward/{name}", pa.float64()),
            (f"status/{name}", pa.string()),
            (f"reward_version/{name}", pa.string()),
        ]
    return pa.schema(columns + [(f"extra/{column}", pa.string()) for column in extra])


def write_rollouts(folder: Path, step: int, split: str, groups: Sequence[Group]) -> Path:
    """Write the groups of one step beside their place and rename; `split` is "train" or "eval"."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    completions = [(group, rollout) for group in groups for rollout in group.completions]
    names = sorted({name for _, rollout in completions for name in rollout.statuses})
    extra = sorted({column for _, rollout in completions for column in rollout.extra})
    rows = [_row(step, split, group, rollout, names) for group, rollout in completions]
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / (f"step_{step:06d}.parquet" if split == "train" else f"{split}_{step:06d}.parquet")
    temporary = target.with_suffix(".writing")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema(names, extra)), temporary)
    os.replace(temporary, target)
    return target


def _row(step: int, split: str, group: Group, rollout: Rollout, names: Sequence[str]) -> dict[str, Any]:
    row = {
        "step": step,
        "split": split,
        "prompt_id": group.prompt_id,
        "group_id": group.group_id,
        "sample_index": rollout.sample_index,
        "messages": None if group.messages is None else json.dumps(group.messages),
        "prompt": group.prompt,
        "completion": rollout.completion,
        "prompt_ids": rollout.prompt_ids,
        "completion_ids": rollout.completion_ids,
        "loss_mask": rollout.loss_mask,
        "logps": rollout.logps,
        "version_spans": [{"version": s.version, "start": s.start, "end": s.end} for s in rollout.version_spans],
        "weight_version_first": rollout.oldest_version,
        "weight_version_last": rollout.newest_version,
        "staleness": rollout.staleness,
        "finish_reason": rollout.finish_reason,
        "prompt_tokens": len(rollout.prompt_ids),
        "completion_tokens": len(rollout.completion_ids),
        "reward": rollout.reward,
        "correct": rollout.correct,
        "advantage": rollout.advantage,
        "dropped": rollout.dropped,
        "dataset_columns": json.dumps(group.columns),
        "rewards": list(group.rewards),
        "support": rollout.support,
        **{f"extra/{column}": json.dumps(value) for column, value in rollout.extra.items()},
    }
    for name in names:
        row[f"reward/{name}"] = rollout.rewards.get(name)
        row[f"status/{name}"] = rollout.statuses.get(name)
        row[f"reward_version/{name}"] = group.reward_versions.get(name) if name in rollout.statuses else None
    return row


def read_rollouts(path: Path) -> list[Group]:
    """The groups of one file, as they were scored.

    Raises:
        DataError: the file is not a rollouts file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
        groups: dict[int, Group] = {}
        for row in rows:
            group = groups.setdefault(row["group_id"], _group(row))
            if row["sample_index"] == GREEDY:
                group.greedy = _rollout(row)
            else:
                group.rollouts.append(_rollout(row))
            group.reward_versions.update(_by_name(row, "reward_version/"))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(
            f"{path} is not a file of stored rollouts: {error}", hint="give the folder of a postrl run"
        ) from error
    return list(groups.values())


def _group(row: dict[str, Any]) -> Group:
    messages = None if row["messages"] is None else json.loads(row["messages"])
    columns, rewards = json.loads(row["dataset_columns"]), tuple(row.get("rewards") or ())
    return Group(row["prompt_id"], row["group_id"], row["prompt"], messages, columns, [], rewards)


def _rollout(row: dict[str, Any]) -> Rollout:
    statuses = _by_name(row, "status/")
    return Rollout(
        prompt_id=row["prompt_id"],
        sample_index=row["sample_index"],
        prompt_ids=row["prompt_ids"],
        completion_ids=row["completion_ids"],
        logps=row["logps"],
        version_spans=[VersionSpan(**span) for span in row["version_spans"]],
        finish_reason=row["finish_reason"],
        loss_mask=row["loss_mask"],
        completion=row["completion"],
        rewards={name: row[f"reward/{name}"] for name in statuses},
        statuses=statuses,
        reward=row["reward"],
        correct=row.get("correct"),
        extra={name: json.loads(value) for name, value in _by_name(row, "extra/").items()},
        advantage=row["advantage"],
        staleness=row["staleness"],
        dropped=row["dropped"],
        support=row.get("support"),
    )


def _by_name(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The columns `prefix`<name> of a row that hold something, by name."""
    return {name.removeprefix(prefix): row[name] for name in row if name.startswith(prefix) and row[name] is not None}


def stored_steps(run: str | Path) -> list[Path]:
    """The training files of a run, in the order of their steps.

    Raises:
        UsageError: the folder holds no stored rollouts.
    """
    files = sorted((Path(run) / "rollouts").glob("step_*.parquet"))
    if not files:
        raise UsageError(
            f"{run} holds no stored rollouts (rollouts/step_*.parquet)",
            hint="--replay takes the folder of an earlier run",
        )
    return files
