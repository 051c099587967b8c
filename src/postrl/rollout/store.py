"""Stored rollouts: RUN/rollouts/step_000001.parquet, enough to read, to rescore and to replay.

Columns are fixed, and those of the rewards follow: reward/<name>, status/<name>, reward_version/<name>, and extra/<column>
(JSON) for what reward functions gave to `log_extra`. A row is a completion; `dropped` is null where it is trained on. A
prompt's greedy completion, where the algorithm has one, is a row with sample_index -1 and "greedy" in `dropped`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from postrl.errors import DataError, UsageError
from postrl.host.files import whole_file
from postrl.types import GREEDY, Group, Rollout

GROUP = {"messages": "text", "prompt": "text", "group_id": "id", "dataset_columns": "text", "rewards": "names"}
"""Columns of what a rollout shares with its group."""
READING = {
    "step": "int", "split": "text", "weight_version_first": "int", "weight_version_last": "int", "prompt_tokens": "int",
    "completion_tokens": "int",
}  # fmt: skip
"""Columns for those who read the file: nothing here reads them back."""
PLAIN = tuple(f for f in fields(Rollout) if f.metadata["kind"] != "by_name")
"""Fields that are a column of their name; the others have one for each name that they hold, such as reward/math."""


def _column(kind: str, item: type | None = None) -> Any:
    """The type of a column that holds a kind of field."""
    import pyarrow as pa

    if item is not None:
        return pa.list_(pa.struct([(f.name, pa.int32() if f.type == "int" else pa.string()) for f in fields(item)]))
    return {
        "text": pa.string(), "int": pa.int32(), "id": pa.int64(), "real": pa.float64(), "flag": pa.bool_(),
        "tokens": pa.list_(pa.int32()), "logps": pa.list_(pa.float32()), "mask": pa.list_(pa.int8()),
        "support": pa.list_(pa.list_(pa.int32())), "names": pa.list_(pa.string()),
    }[kind]  # fmt: skip


def schema(names: Sequence[str], extra: Sequence[str] = ()) -> Any:
    """The columns of a rollouts file whose rewards are called `names`, with columns `extra` of theirs."""
    import pyarrow as pa

    columns = [(name, _column(kind)) for name, kind in (READING | GROUP).items()]
    columns += [(f.name, _column(**f.metadata)) for f in PLAIN]
    for name in names:
        columns.append((f"reward/{name}", pa.float64()))
        columns += [(f"{of}/{name}", pa.string()) for of in ("status", "reward_version")]
    return pa.schema(columns + [(f"extra/{column}", pa.string()) for column in extra])


def write_rollouts(folder: Path, step: int, split: str, groups: Sequence[Group]) -> Path:
    """Write the groups of one step; `split` is "train" or "eval"."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    completions = [(group, rollout) for group in groups for rollout in group.completions]
    names = sorted({name for _, rollout in completions for name in rollout.statuses})
    extra = sorted({column for _, rollout in completions for column in rollout.extra})
    rows = [_row(step, split, group, rollout, names) for group, rollout in completions]
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / (f"step_{step:06d}.parquet" if split == "train" else f"{split}_{step:06d}.parquet")
    with whole_file(target) as part:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema(names, extra)), part)
    return target


def _row(step: int, split: str, group: Group, rollout: Rollout, names: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "step": step,
        "split": split,
        "weight_version_first": rollout.oldest_version,
        "weight_version_last": rollout.newest_version,
        "prompt_tokens": len(rollout.prompt_ids),
        "completion_tokens": len(rollout.completion_ids),
        "messages": None if group.messages is None else json.dumps(group.messages),
        "prompt": group.prompt,
        "group_id": group.group_id,
        "dataset_columns": json.dumps(group.columns),
        "rewards": list(group.rewards),
        **{f"extra/{column}": json.dumps(value) for column, value in rollout.extra.items()},
    }
    for f in PLAIN:
        value = getattr(rollout, f.name)
        row[f.name] = [asdict(item) for item in value] if f.metadata["item"] else value
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
    except (OSError, KeyError, TypeError, pa.ArrowException) as error:
        raise DataError(
            f"{path} is not a file of stored rollouts: {error}", hint="give the folder of a postrl run"
        ) from error
    return list(groups.values())


def _group(row: dict[str, Any]) -> Group:
    messages = None if row["messages"] is None else json.loads(row["messages"])
    columns, rewards = json.loads(row["dataset_columns"]), tuple(row.get("rewards") or ())
    return Group(row["prompt_id"], row["group_id"], row["prompt"], messages, columns, [], rewards)


def _rollout(row: dict[str, Any]) -> Rollout:
    """A field that an earlier version did not store has its default."""
    statuses = _by_name(row, "status/")
    found = {f.name: row[f.name] for f in PLAIN if f.name in row}
    for f in PLAIN:
        if (item := f.metadata["item"]) and f.name in found:
            found[f.name] = [item(**span) for span in found[f.name]]
    return Rollout(
        **found,
        rewards={name: row[f"reward/{name}"] for name in statuses},
        statuses=statuses,
        extra={name: json.loads(value) for name, value in _by_name(row, "extra/").items()},
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
