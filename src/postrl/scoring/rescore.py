"""Score a finished run's stored rollouts again, with its own rewards or with others, and say what changes.

    stored groups -> the same groups without scores -> reward runner -> Comparison

The run is read step by step and never modified: what is kept of a step is counts and a few examples.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from postrl.config import GRPOConfig
from postrl.errors import DataError, UsageError
from postrl.host.whole import whole_file
from postrl.rewards.builtin import BUILTINS
from postrl.rewards.registry import RewardSpec, resolve, with_options
from postrl.rewards.runner import RewardRunner
from postrl.rollout.store import read_rollouts, stored_steps
from postrl.run.folder import RunFolder, step_of
from postrl.types import Group, Rollout, greedy_groups
from postrl.worker.informative import EQUAL

TOTAL = "reward"
"""The weighted sum, beside the rewards by name."""


@dataclass(frozen=True)
class Change:
    """A completion whose reward is another one now."""

    step: int
    prompt_id: str
    sample_index: int
    prompt: str
    completion: str
    before: float | None
    after: float | None
    status_before: str
    status_after: str

    @property
    def size(self) -> float:
        return abs((self.after or 0.0) - (self.before or 0.0))


@dataclass
class Tally:
    """The scores of one reward."""

    total: float = 0.0
    count: int = 0
    """Scores that are numbers."""
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, value: float | None, status: str = "") -> None:
        if value is not None:
            self.total += value
            self.count += 1
        if status:
            self.statuses[status] += 1

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


class Comparison:
    """What changed, added up group by group.

    Args:
        examples: how many of the largest changes to keep.
    """

    def __init__(self, examples: int = 5) -> None:
        self.before: dict[str, Tally] = {TOTAL: Tally()}
        self.after: dict[str, Tally] = {TOTAL: Tally()}
        self.completions = 0
        self.changed = 0
        """Completions whose weighted sum is another."""
        self.differing = 0
        """Completions with any score, status or sum that is another, or with other rewards."""
        self.failed = 0
        """New scores that are missing because a reward function failed."""
        self.left_out = 0
        """Completions of rows that none of the rewards is for."""
        self.changed_rewards: dict[str, tuple[str, str]] = {}
        """Rewards whose code or options are others: their versions, the run's first one that differs and the present one."""
        self.groups = 0
        self.group_changes: Counter[str] = Counter()
        self._examples: list[tuple[float, int, Change]] = []
        self._most, self._order = examples, itertools.count()

    @property
    def reproduced(self) -> bool:
        """Whether every score and status is what it was."""
        return self.completions > 0 and self.differing == 0

    @property
    def examples(self) -> list[Change]:
        """The largest changes, largest first; the earlier one of two that are equal."""
        return [change for _, _, change in sorted(self._examples, reverse=True)]

    def add(self, step: int, before: Group, after: Group) -> None:
        """Compare a group with itself, scored again; the rollouts are in the same order."""
        if not after.rewards:
            self.left_out += len(after.completions)
            return
        self.groups += 1
        for name, now in after.reward_versions.items():
            if (then := before.reward_versions.get(name, now)) != now:
                self.changed_rewards.setdefault(name, (then, now))
        for old, new in zip(before.completions, after.completions, strict=True):
            self._add(step, before, old, new)
        self.group_changes.update(
            group_changes([r.reward for r in before.rollouts], [r.reward for r in after.rollouts])
        )

    def _add(self, step: int, group: Group, old: Rollout, new: Rollout) -> None:
        for tallies, rollout in ((self.before, old), (self.after, new)):
            tallies[TOTAL].add(rollout.reward)
            for name, status in rollout.statuses.items():
                tallies.setdefault(name, Tally()).add(rollout.rewards[name], status)
        self.completions += 1
        self.failed += sum(_failed(new.rewards[name], status) for name, status in new.statuses.items())
        self.differing += (old.rewards, old.statuses, old.reward) != (new.rewards, new.statuses, new.reward)
        if old.reward != new.reward:
            self.changed += 1
            self._keep(_change(step, group, old, new))

    def _keep(self, change: Change) -> None:
        item = (change.size, -next(self._order), change)
        if len(self._examples) < self._most:
            heapq.heappush(self._examples, item)
        elif self._most:
            heapq.heappushpop(self._examples, item)


def question(group: Group) -> str:
    """What the user says in a prompt, without the chat template."""
    return str(group.messages[-1].get("content")) if group.messages else group.prompt


def _failed(value: float | None, status: str) -> bool:
    from postrl.rewards.score import Score

    return Score(value, status).failed


def _change(step: int, group: Group, old: Rollout, new: Rollout) -> Change:
    return Change(
        step,
        group.prompt_id,
        old.sample_index,
        question(group),
        old.completion,
        old.reward,
        new.reward,
        "; ".join(old.statuses.values()),
        "; ".join(new.statuses.values()),
    )


# -- what a group teaches ----------------------------------------------------------------------------------------------

GROUP_CHANGES = {
    "sign": "an advantage changes its sign",
    "order": "completions change their order",
    "flat": "rewards become equal: nothing to learn from any more",
    "no longer flat": "rewards are no longer equal",
}


def group_changes(before: Sequence[float | None], after: Sequence[float | None]) -> set[str]:
    """Which of GROUP_CHANGES happen to a group with these rewards, rollout by rollout.

    Advantages are the rewards minus the mean of the group's scored rollouts, divided by something positive: signs and
    order do not depend on what divides. A rollout without a score has advantage 0.
    """
    found = set()
    if [_sign(a) for a in _centred(before)] != [_sign(a) for a in _centred(after)]:
        found.add("sign")
    if _ordering(before) != _ordering(after):
        found.add("order")
    if _flat(before) != _flat(after):
        found.add("flat" if _flat(after) else "no longer flat")
    return found


def _flat(rewards: Sequence[float | None]) -> bool:
    scored = [reward for reward in rewards if reward is not None]
    return len(scored) < 2 or max(scored) - min(scored) <= EQUAL


def _centred(rewards: Sequence[float | None]) -> list[float]:
    scored = [reward for reward in rewards if reward is not None]
    if _flat(rewards):
        return [0.0] * len(rewards)
    mean = sum(scored) / len(scored)
    return [0.0 if reward is None else reward - mean for reward in rewards]


def _sign(x: float) -> int:
    return (x > EQUAL) - (x < -EQUAL)


def _ordering(rewards: Sequence[float | None]) -> list[int]:
    """For each pair of rollouts, which is the better one."""
    advantages = _centred(rewards)
    return [_sign(a - b) for a, b in itertools.combinations(advantages, 2)]


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


def own_rewards(run: str | Path) -> list[RewardSpec]:
    """The rewards that a run was scored with, from its settings and, where those leave it to the data, its rollouts.

    Raises:
        UsageError: they were functions of a script, which are gone; or one cannot be found any more.
    """
    config = run_config(run)
    names = config.reward or _names_by_data(config) or sorted(stored_names(stored_steps(run)))
    if unknown := [name for name in names if name not in BUILTINS and name not in config.reward]:
        raise UsageError(
            f"{run} was scored with {', '.join(unknown)}, given by a script",
            hint="give it as --reward file.py:function",
        )
    return with_options([resolve(name) for name in names], config.reward_arg)


def _names_by_data(config: GRPOConfig) -> list[str]:
    """The data sets' own rewards, in the order to which weights refer; none where a data set has none."""
    from postrl.rows.recipes import dataset_names, find_preset, own_rewards

    known = [find_preset(name) is not None for name in dataset_names(config.dataset)]
    evaluated = (config.eval_dataset or "").partition(":")[0]
    return own_rewards([*config.dataset, evaluated]) if known and all(known) else []


def stored_names(files: Sequence[Path]) -> set[str]:
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
    known = {*runner.names} if own else stored_names(files)
    with asyncio.Runner() as loop:
        loop.run(runner.start())
        for file in files:
            before = read_rollouts(file)
            after = [_unscored(group, runner.names, known) for group in before]
            scored = [group for group in after if group.rewards]
            loop.run(runner.score_all([*scored, *greedy_groups(scored)]))
            for old, new in zip(before, after, strict=True):
                comparison.add(step_of(file), old, new)
            done()
            yield file, after


def _unscored(group: Group, names: Sequence[str], known: set[str]) -> Group:
    """A copy to be scored by the rewards of `names` that are for its row; `known` are those of the run."""
    had = {name for rollout in group.rollouts for name in rollout.statuses}
    fits = tuple(name for name in names if name in had or name not in known)
    fresh = [replace(rollout, rewards={}, statuses={}, reward=None, correct=None) for rollout in group.completions]
    greedy = None if group.greedy is None else fresh.pop()
    return replace(group, rollouts=fresh, greedy=greedy, rewards=fits)


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
