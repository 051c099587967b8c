"""`postrl rescore`: a finished run's completions under another reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postrl.cli.options import SettingsCommand
from postrl.cli.scoring import Debug, Json, RewardArg, reward_specs, show_failures, write_json
from postrl.config.setting import REWARD
from postrl.errors import UsageError

if TYPE_CHECKING:
    from postrl.config import GRPOConfig
    from postrl.rewards.registry import RewardSpec
    from postrl.scoring.comparison import Comparison

HELP = """Score the stored completions of RUN, the folder of a finished run, again, and show what changes. The run itself is not modified.

Without --reward the run's own rewards are used, which must give the same scores again: exit code 0 when all do, else 1.
With --reward: exit code 1 when a score failed.

\b
  postrl rescore runs/mine
  postrl rescore runs/mine --reward rewards.py:score
  postrl rescore runs/mine --reward rewards.py:score --write     # keeps the new scores
"""


def add_to(app: typer.Typer) -> None:
    app.command(
        name="rescore", cls=SettingsCommand, help=HELP, short_help="Score a run's completions with another reward."
    )(rescore)


def rescore(
    run: Annotated[Path, typer.Argument(metavar="RUN", hidden=True)],
    reward: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="As for `postrl grpo`; default: the run's own.", rich_help_panel=REWARD),
    ] = None,
    reward_weights: Annotated[
        list[float] | None, typer.Option(metavar="X", help="One for each --reward.", rich_help_panel=REWARD)
    ] = None,
    reward_arg: RewardArg = None,
    reward_timeout: Annotated[
        float | None,
        typer.Option(metavar="X", help="Seconds a call may take; default: the run's.", rich_help_panel=REWARD),
    ] = None,
    steps: Annotated[str | None, typer.Option(metavar="A-B", help="Only these steps: 7, 3-10, 3- or -10.")] = None,
    examples: Annotated[int, typer.Option(min=0, metavar="N", help="Completions to show.")] = 5,
    write: Annotated[bool, typer.Option("--write", help="Write RUN/rescored/<rewards>.parquet.")] = False,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there instead.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    from postrl.console import bar
    from postrl.rewards.runner import RewardRunner
    from postrl.scoring.comparison import Comparison
    from postrl.scoring.rescore import rescore as rescore_steps
    from postrl.scoring.rescore import steps_of

    files = steps_of(run, steps)
    specs, config = _rewards(run, reward or [], reward_weights or [], reward_arg or [])
    config.reward_timeout = reward_timeout or config.reward_timeout
    comparison = Comparison(examples)
    with RewardRunner.for_run(specs, config) as runner, bar("step", len(files)) as done:
        target = _target(run, output, write, runner.names)
        scored = rescore_steps(runner, files, comparison, own=not reward, done=done)
        written = _written(scored, target, runner.names)
    result = {"run": str(run), "rewards": list(runner.names), "own": not reward, "output": written}
    if as_json:
        write_json({**result, **summary(comparison)})
    else:
        _show(comparison, result)
    show_failures(runner)
    same = comparison.reproduced if not reward else not comparison.failed
    raise typer.Exit(0 if same else 1)


def _rewards(
    run: Path, names: Sequence[str], weights: Sequence[float], args: Sequence[str]
) -> tuple[list[RewardSpec], GRPOConfig]:
    """What to score with, and the run's settings, with the new weights in place of its own."""
    from dataclasses import replace

    from postrl.rewards.registry import with_options
    from postrl.scoring.rescore import rewards_of, run_config

    config = run_config(run)
    if names:
        return reward_specs(names, args), replace(config, reward=list(names), reward_weights=list(weights))
    if weights:
        raise UsageError("--reward-weights without --reward", hint="give one for each --reward")
    return with_options(rewards_of(run), args), config


def _target(run: Path, output: Path | None, write: bool, names: Sequence[str]) -> Path | None:
    """Where to write; None: nowhere."""
    from postrl.run.folder import RunFolder

    target = output or (run / "rescored" / f"{'+'.join(names)}.parquet" if write else None)
    if target is None:
        return None
    if RunFolder(run).rollouts.resolve() in target.resolve().parents:
        raise UsageError(f"{target} lies among the run's own rollouts", hint="choose another file with --output")
    if target.is_dir():
        raise UsageError(f"{target} is a folder", hint="--output takes the name of a Parquet file")
    return target


def _written(scored: Iterator[Any], target: Path | None, names: Sequence[str]) -> str | None:
    """Go through the steps, and say where they were written if they were."""
    from postrl.scoring.rescore import write_rescored

    if target is None:
        for _ in scored:
            pass
        return None
    write_rescored(target, scored, names)
    return str(target)


def summary(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values."""
    return {
        "completions": comparison.completions,
        "left_out": comparison.left_out,
        "changed": comparison.changed,
        "failed": comparison.failed,
        "reproduced": comparison.reproduced,
        "groups": comparison.groups,
        "group_changes": dict(comparison.group_changes),
        "changed_rewards": {name: list(versions) for name, versions in comparison.changed_rewards.items()},
        "scores": {
            name: {
                when: {"mean": side.mean, "scored": side.count, "statuses": dict(side.statuses)}
                for when, side in zip(("before", "after"), both, strict=True)
                if side
            }
            for name, both in comparison.scores.items()
        },
        "examples": [asdict(change) for change in comparison.examples],
    }


def _show(comparison: Comparison, result: dict[str, Any]) -> None:
    from postrl.scoring.comparison import GROUP_CHANGES

    _show_tables(comparison)
    for name, (then, now) in comparison.changed_rewards.items():
        typer.echo(f"reward {name} is not what it was in the run: {then} then, {now} now")
    groups = comparison.groups
    typer.echo(f"{comparison.changed} of {comparison.completions} completions have another reward")
    for change, meaning in GROUP_CHANGES.items():
        if comparison.group_changes[change]:
            typer.echo(f"{comparison.group_changes[change]} of {groups} groups: {meaning}")
    if comparison.left_out:
        typer.echo(f"{comparison.left_out} completions left out: their rows are not for these rewards")
    if result["own"] and comparison.reproduced:
        typer.echo("the run's rewards are reproduced exactly")
    elif result["own"]:
        typer.echo(
            f"the run's rewards are NOT reproduced: {comparison.differing} completions have other scores or statuses"
        )
    if result["output"]:
        typer.echo(f"wrote {result['output']}")


def _show_tables(comparison: Comparison) -> None:
    from postrl.console import Column, table

    before, scored, after = (Column(name, right=True) for name in ("before", "scored", "after"))
    means, statuses = [], []
    for name, both in comparison.scores.items():
        means.append([name, *(cell for side in both for cell in ((side.mean, side.count) if side else (None, None)))])
        old, new = (side.statuses if side else {} for side in both)
        statuses += [[name, status, old.get(status, 0), new.get(status, 0)] for status in sorted({*old, *new})]
    table([Column("mean"), before, scored, after, scored], means)
    typer.echo()
    table([Column("reward"), Column("status"), before, after], statuses)
    typer.echo()
    if comparison.examples:
        columns = [Column("step", right=True), Column("prompt", wide=True), Column("completion", wide=True)]
        shown = [
            [c.step, c.prompt, c.completion, c.before, c.after, " -> ".join(dict.fromkeys(c.statuses))]
            for c in comparison.examples
        ]
        table([*columns, before, after, Column("status")], shown, title="largest changes")
        typer.echo()
