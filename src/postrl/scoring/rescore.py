"""Score a finished run's stored rollouts again, with its own rewards or with others, and say what changes.

    stored groups -> the same groups without scores -> reward runner -> Comparison

The run is read step by step and never modified: what is kept of a step is counts and a few examples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from postrl.config import GRPOConfig
from postrl.errors import DataError, UsageError
from postrl.host.files import whole_file
from postrl.rewards.builtin import BUILTINS
from postrl.rewards.registry import RewardSpec, resolve, with_options
from postrl.rewards.runner import RewardRunner
from postrl.rollout.store import read_rollouts, stored_steps
from postrl.run.folder import RunFolder, step_of
from postrl.scoring.comparison import TOTAL, Comparison
from postrl.scoring.groups import unscored
from postrl.types import Group, greedy_groups

# -- a run's rewards ---------------------------------------------------------------------------------------------------


def run_config(run: str | Path) -> GRPOConfig:
    """What a run scored with. Only settings of data and rewards: the others, its algorithm too, have their defaults.

    Raises:
        UsageError: the folder holds no settings.
    """
    folder = RunFolder(run)
    if not folder.config.is_file():
        found = "has no config.yaml" if folder.path.is_dir() else "does not exist"
        raise UsageError(
            f"{run} is not the folder of a run: it {found}", hint="give the folder that `postrl grpo` named"
        )
    scoring = {
        name: value for name, value in GRPOConfig.settings_in(folder.config).items() if name in GRPOConfig.part("score")
    }
    return GRPOConfig.from_dict(scoring, source=str(folder.config))


def rewards_of(run: str | Path) -> list[RewardSpec]:
    """The rewards that a run was scored with, from its settings and, where those leave it to the data, its rollouts.

    Raises:
        UsageError: they were functions of a script, which are gone; or one cannot be found any more.
    """
    config = run_config(run)
    names = config.reward or _names_by_data(config) or sorted(rewards_stored_in(stored_steps(run)))
    if unknown := [name for name in names if name not in BUILTINS and name not in config.reward]:
        raise UsageError(
            f"{run} was scored with {', '.join(unknown)}, given by a script",
            hint="give it as --reward file.py:function",
        )
    return with_options([resolve(name) for name in names], config.reward_arg)


def _names_by_data(config: GRPOConfig) -> list[str]:
    """The data sets' own rewards, in the order to which weights refer; none where a data set has none."""
    from postrl.rows.recipes import dataset_names, find_recipe, own_rewards

    known = [find_recipe(name) is not None for name in dataset_names(config.dataset)]
    evaluated = (config.eval_dataset or "").partition(":")[0]
    return own_rewards([*config.dataset, evaluated]) if known and all(known) else []


def rewards_stored_in(files: Sequence[Path]) -> set[str]:
    """The rewards that scored the rollouts in these files.

    Raises:
        DataError: a file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names: set[str] = set()
    for file in files:
        try:
            columns = pq.read_schema(file).names
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"cannot read {file}: {error}", hint="leave that step out with --steps") from error
        names |= {column.removeprefix("status/") for column in columns if column.startswith("status/")}
    return names


# -- scoring again -----------------------------------------------------------------------------------------------------


def steps_of(run: str | Path, steps: str | None = None) -> list[Path]:
    """The rollout files of a run, all or those of `steps`: "7", "3-10", "3-" or "-10".

    Raises:
        UsageError: no run, no stored rollouts, or none of these steps.
    """
    run_config(run)
    if not any(RunFolder(run).rollouts.glob("step_*.parquet")):
        raise UsageError(
            f"{run} holds no stored rollouts (rollouts/step_*.parquet)", hint="has the run finished its first step?"
        )
    files = stored_steps(run)
    if steps is None:
        return files
    first, last = _parse_steps(steps)
    chosen = [file for file in files if first <= step_of(file) <= last]
    if not chosen:
        raise UsageError(
            f"{run} holds no rollouts of steps {steps}; it has {step_of(files[0])} to {step_of(files[-1])}",
            hint="--steps takes 7, 3-10, 3- or -10",
        )
    return chosen


def _parse_steps(steps: str) -> tuple[int, float]:
    first, dash, last = steps.strip().partition("-")
    try:
        if not (first or last):
            raise ValueError
        low = int(first) if first else 1
        return low, int(last) if last else float("inf") if dash else low
    except ValueError:
        raise UsageError(f"--steps is {steps!r}", hint="--steps takes 7, 3-10, 3- or -10") from None


def rescore(
    runner: RewardRunner,
    files: Sequence[Path],
    comparison: Comparison,
    *,
    own: bool = False,
    done: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Path, list[Group]]]:
    """Score the files' groups again, one file after the other; yields each file with its groups as they are now.

    A reward that the run had scores the rows that it scored there; a new one scores all.

    Args:
        comparison: what changed is added to it.
        own: the rewards are the run's, also one that had no row to score.
        done: called after each file.

    Raises:
        DataError: a file cannot be read.
        RewardError: a reward function cannot be loaded.
    """
    known = {*runner.names} if own else rewards_stored_in(files)
    with asyncio.Runner() as loop:
        loop.run(runner.start())
        for file in files:
            before = read_rollouts(file)
            after = [unscored(group, _fitting(group, runner.names, known)) for group in before]
            scored = [group for group in after if group.rewards]
            loop.run(runner.score_all([*scored, *greedy_groups(scored)]))
            for old, new in zip(before, after, strict=True):
                comparison.add(step_of(file), old, new)
            done()
            yield file, after


def _fitting(group: Group, names: Sequence[str], known: set[str]) -> tuple[str, ...]:
    """The rewards of `names` that are for the group's row; `known` are those of the run."""
    had = {name for rollout in group.rollouts for name in rollout.statuses}
    return tuple(name for name in names if name in had or name not in known)


# -- the file ----------------------------------------------------------------------------------------------------------


OF_REWARDS = ("reward/", "status/", "reward_version/", "extra/")
"""How columns begin that hold what rewards gave."""


def write_rescored(target: Path, scored: Iterator[tuple[Path, list[Group]]], names: Sequence[str]) -> int:
    """Write the run's rows with the new rewards in place of the old ones and of what those logged; all other columns
    stay what they are (`advantage` is the one that the run used). Returns the number of rows.

    Raises:
        DataError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer, rows = None, 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as part:
            for file, groups in scored:
                table = _with_rewards(pq.read_table(file), groups, names)
                writer = writer or pq.ParquetWriter(part, table.schema)
                writer.write_table(table)
                rows += table.num_rows
            if writer is not None:
                writer.close()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot write {target}: {error}", hint="choose another file with --output") from error
    return rows


def _with_rewards(table: Any, groups: Sequence[Group], names: Sequence[str]) -> Any:
    import pyarrow as pa

    now = {(group.group_id, rollout.sample_index): rollout for group in groups for rollout in group.completions}
    ids = table["group_id"].to_pylist()
    rollouts = [now[key] for key in zip(ids, table["sample_index"].to_pylist(), strict=True)]
    by_group = {group.group_id: group.reward_versions for group in groups}
    versions = [by_group[group_id] for group_id in ids]
    columns = {
        TOTAL: pa.array([rollout.reward for rollout in rollouts], pa.float64()),
        "correct": pa.array([rollout.correct for rollout in rollouts], pa.bool_()),
    }
    for name in names:
        columns[f"reward/{name}"] = pa.array([rollout.rewards.get(name) for rollout in rollouts], pa.float64())
        columns[f"status/{name}"] = pa.array([rollout.statuses.get(name) for rollout in rollouts], pa.string())
        columns[f"reward_version/{name}"] = pa.array([version.get(name) for version in versions], pa.string())
    old = [name for name in table.column_names if name.startswith(OF_REWARDS) or name in columns]
    table = table.drop_columns(old)
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table
