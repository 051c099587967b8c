"""`postrl reward test`: what a reward says about completions, without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postrl.cli.scoring import Debug, Json, RewardArg, reward_specs, show_failures, write_json
from postrl.config.setting import DATA, REWARD
from postrl.errors import UsageError

if TYPE_CHECKING:
    from postrl.config import GRPOConfig
    from postrl.data.prompts import PromptSet
    from postrl.rewards.registry import RewardSpec
    from postrl.scoring.tryout import Trial

HELP = """Score completions without training, and show prompt, completion, score, status and time.

REWARD is a built-in name (math, code, ...), file.py:function or package.module:function; repeatable; default: those of
--config, else the data set's own. Exit code 1 when a score failed.

\b
Completions come from one of:
  (default)            made up: each row's answer, the same in a box, and a wrong one
  --completions FILE   JSONL: line i is about row i, with `completion` or `completions`; other
                       keys replace the row's columns; without --dataset the lines are the rows
  --run RUN            the last step of an earlier run, with its rows
  --sample             a model, in this process

\b
  postrl reward test rewards.py:score --dataset data.jsonl
  postrl reward test --config config.yaml --sample
"""

COMPLETIONS = "Completions"
_AS_FOR_GRPO: Any = typer.Option(metavar="TEXT", help="As for `postrl grpo`.", rich_help_panel=DATA)


def run(
    context: typer.Context,
    reward: Annotated[list[str] | None, typer.Argument(metavar="REWARD", hidden=True)] = None,
    dataset: Annotated[list[str] | None, _AS_FOR_GRPO] = None,
    dataset_path: Annotated[list[str] | None, _AS_FOR_GRPO] = None,
    dataset_split: Annotated[str | None, _AS_FOR_GRPO] = None,
    prompt_column: Annotated[str | None, _AS_FOR_GRPO] = None,
    answer_column: Annotated[str | None, _AS_FOR_GRPO] = None,
    rows: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rows to take, the first ones.", rich_help_panel=DATA)
    ] = 3,
    completions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSONL file with completions.", rich_help_panel=COMPLETIONS)
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Run folder to take completions from.", rich_help_panel=COMPLETIONS),
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample completions.", rich_help_panel=COMPLETIONS)] = False,
    model: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Model for --sample; default: smollm2-135m.", rich_help_panel=COMPLETIONS),
    ] = None,
    num_generations: Annotated[
        int, typer.Option(min=1, metavar="N", help="Samples a row.", rich_help_panel=COMPLETIONS)
    ] = 2,
    max_completion_length: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Most tokens of a sample; default: 64.", rich_help_panel=COMPLETIONS),
    ] = None,
    reward_arg: RewardArg = None,
    reward_timeout: Annotated[
        float | None, typer.Option(metavar="X", help="Seconds a call may take; default: 60.", rich_help_panel=REWARD)
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML file with settings; flags win.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    if sum([completions is not None, run is not None, sample]) > 1:
        raise UsageError("completions are asked for from several places", hint="--completions, --run or --sample")
    given = {
        "reward": reward, "dataset": dataset, "dataset_path": dataset_path, "dataset_split": dataset_split,
        "prompt_column": prompt_column, "answer_column": answer_column, "model": model,
        "max_completion_length": max_completion_length, "reward_arg": reward_arg, "reward_timeout": reward_timeout,
    }  # fmt: skip
    settings = _settings({name: value for name, value in given.items() if value}, config)
    specs, trials = _trials(settings, rows, completions, run, num_generations if sample else 0)
    failed = _score(settings, specs, trials, as_json=as_json)
    raise typer.Exit(1 if failed else 0)


def _settings(given: dict[str, Any], config: Path | None) -> GRPOConfig:
    from postrl.cli.options import build_config
    from postrl.config import GRPOConfig

    if config is None:
        given = {"max_completion_length": 64, **given}
    return build_config(GRPOConfig, given, config)


def _trials(
    settings: GRPOConfig, rows: int, completions: Path | None, run: Path | None, samples: int
) -> tuple[list[RewardSpec], list[Trial]]:
    """What scores, and what is scored. Mistakes in the names of rewards show before a model is loaded."""
    import asyncio

    from postrl.scoring import tryout

    specs = reward_specs(settings.reward, settings.reward_arg)
    own: Sequence[str] = ()
    if run is not None:
        trials = tryout.stored(run, rows, own=not specs)
        if not specs:
            from postrl.scoring.rescore import rewards_of

            return rewards_of(run), trials
    elif completions is not None:
        found, trials = tryout.given(settings, completions, rows)
        own = _told(found)
    elif samples:
        settings, path = _local_model(settings)
        found, trials = asyncio.run(tryout.sampled(settings, path, rows, samples))
        own = _told(found)
    else:
        found = tryout.load_rows(settings)
        own = _told(found)
        trials = tryout.made_up(found.prompts[:rows])
    specs = specs or reward_specs(own, settings.reward_arg)
    if not specs:
        raise UsageError(
            "no reward is given, and the data has none of its own", hint="name one: math, file.py:function"
        )
    return specs, trials


def _told(found: PromptSet) -> Sequence[str]:
    """Say what was guessed of the data; returns its own rewards."""
    from postrl.console import note

    for line in found.notes:
        note(line)
    return found.default_reward


def _local_model(settings: GRPOConfig) -> tuple[GRPOConfig, str]:
    """The settings with a model, and where it lies."""
    from dataclasses import replace

    from postrl import console
    from postrl.launch.model import check_model, local_model, with_adapter

    settings = with_adapter(replace(settings, model=settings.model or "smollm2-135m"))
    check_model(settings)
    console.note(f"sampling from {settings.model}")
    return settings, local_model(settings)


def _score(settings: GRPOConfig, specs: Sequence[RewardSpec], trials: Sequence[Trial], *, as_json: bool) -> int:
    """Score, show, and return how many scores failed."""
    import asyncio

    from postrl.console import bar
    from postrl.rewards.runner import RewardRunner
    from postrl.scoring.tryout import score_all

    with (
        RewardRunner.for_run(specs, settings) as runner,
        bar("scoring", len(trials)) as done,
    ):
        asyncio.run(score_all(runner, trials, done))
    rows = [row for trial in trials for row in _rows(trial)]
    if as_json:
        write_json({"rewards": list(runner.names), "completions": rows})
    else:
        _show_scores(rows, several=len(runner.names) > 1)
    show_failures(runner)
    return sum(row["failed"] for row in rows)


def _rows(trial: Trial) -> list[dict[str, Any]]:
    from postrl.rewards.score import Score
    from postrl.scoring.groups import question

    return [
        {
            "prompt_id": trial.group.prompt_id,
            "prompt": question(trial.group),
            "completion": rollout.completion,
            "from": origin,
            "reward": name,
            "score": rollout.rewards[name],
            "status": status,
            "failed": Score(rollout.rewards[name], status).failed,
            "seconds": trial.seconds,
        }
        for rollout, origin in zip(trial.group.rollouts, trial.origins, strict=True)
        for name, status in rollout.statuses.items()
    ]


def _show_scores(rows: Sequence[dict[str, Any]], *, several: bool) -> None:
    from postrl.console import Column, seconds, table

    columns = [Column("prompt", wide=True), Column("completion", wide=True), Column("from")]
    columns += [Column("reward")] if several else []
    columns += [Column("score", right=True), Column("time", right=True), Column("status")]
    keys = ["prompt", "completion", "from", *(["reward"] if several else []), "score", "time", "status"]
    table(columns, [[{**row, "time": seconds(row["seconds"])}[key] for key in keys] for row in rows])
