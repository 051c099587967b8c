"""`postrl reward test` and `postrl reward audit`: look at a reward before a model does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postrl.cli.options import SettingsCommand
from postrl.config import DATA, REWARD
from postrl.errors import UsageError

if TYPE_CHECKING:
    from postrl.config import GRPOConfig
    from postrl.rewards.audit import Case, Finding
    from postrl.rewards.registry import RewardSpec
    from postrl.rewards.runner import RewardRunner
    from postrl.tryout import Trial

TEST = """Score completions without training, and show prompt, completion, score, status and time.

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
AUDIT = """Try a reward on awkward and hostile completions, and report where it is fooled or unfair.

REWARD is math, code, another built-in name, file.py:function or package.module:function. A score above 0.5 counts as a
reward. Reported are wrong completions that got one, right ones that got none, and golds that cannot be read and were
scored all the same (the right score is None). Exit code 1 when any verdict differs from the expected one.

\b
  postrl reward audit math
  postrl reward audit rewards.py:score   # asks for `answer`: math cases; for `tests`: code cases
  postrl reward audit rewards.py:score --cases mine.jsonl

A case is a line of JSON: id, kind, completion, expected (1, 0 or null), note, and gold (for `answer`) or test_type and
tests. Cases marked dangerous (they fork without end, fill the disk, kill) are for the built-in code reward, which runs
code in a sandbox; for others they are left out and counted, unless --dangerous is given.
"""

COMPLETIONS, CASES = "Completions", "Cases"
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", hidden=True)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
RewardArg = Annotated[
    list[str] | None,
    typer.Option(
        "--reward-arg",
        metavar="NAME.KEY=VALUE",
        help="Option of a reward function; repeatable.",
        rich_help_panel=REWARD,
    ),
]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        name="reward",
        help="Score completions, and try hostile ones, before training.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command(name="test", cls=SettingsCommand, help=TEST, short_help="Score completions without training.")(test)
    group.command(name="audit", cls=SettingsCommand, help=AUDIT, short_help="Try hostile completions.")(audit)
    app.add_typer(group)


# -- postrl reward test ------------------------------------------------------------------------------------------------


def test(
    context: typer.Context,
    reward: Annotated[list[str] | None, typer.Argument(metavar="REWARD", hidden=True)] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="As for `postrl grpo`.", rich_help_panel=DATA)
    ] = None,
    dataset_path: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="As for `postrl grpo`.", rich_help_panel=DATA)
    ] = None,
    dataset_split: Annotated[
        str | None, typer.Option(metavar="TEXT", help="As for `postrl grpo`.", rich_help_panel=DATA)
    ] = None,
    prompt_column: Annotated[
        str | None, typer.Option(metavar="TEXT", help="As for `postrl grpo`.", rich_help_panel=DATA)
    ] = None,
    answer_column: Annotated[
        str | None, typer.Option(metavar="TEXT", help="As for `postrl grpo`.", rich_help_panel=DATA)
    ] = None,
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
    from postrl import tryout

    specs = reward_specs(settings.reward, settings.reward_arg)
    own: Sequence[str] = ()
    if run is not None:
        trials = tryout.stored(run, rows)
        if not specs:
            from postrl.rescore import own_rewards

            return own_rewards(run), trials
    elif completions is not None:
        found, trials = tryout.given(settings, completions, rows)
        own = found.default_reward
    elif samples:
        found, trials = asyncio.run(tryout.sampled(settings, _local_model(settings), rows, samples))
        own = found.default_reward
    else:
        found = tryout.load_rows(settings)
        trials, own = tryout.made_up(found.prompts[:rows]), found.default_reward
    specs = specs or reward_specs(own, settings.reward_arg)
    if not specs:
        raise UsageError(
            "no reward is given, and the data has none of its own", hint="name one: math, file.py:function"
        )
    return specs, trials


def reward_specs(rewards: Sequence[str], args: Sequence[str]) -> list[RewardSpec]:
    """The rewards of these names with their options.

    Raises:
        UsageError: one cannot be found.
    """
    from postrl.rewards.registry import resolve, with_options

    specs = [resolve(reward) for reward in rewards]
    return with_options(specs, args) if specs else []


def _local_model(settings: GRPOConfig) -> str:
    from dataclasses import replace

    from postrl.launch.model import check_model, local_model

    settings = replace(settings, model=settings.model or "smollm2-135m")
    check_model(settings)
    return local_model(settings)


def _score(settings: GRPOConfig, specs: Sequence[RewardSpec], trials: Sequence[Trial], *, as_json: bool) -> int:
    """Score, show, and return how many scores failed."""
    from postrl.cli.tables import bar
    from postrl.rewards.runner import RewardRunner
    from postrl.tryout import score_all

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

    return [
        {
            "prompt_id": trial.group.prompt_id,
            "prompt": _question(trial),
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


def _question(trial: Trial) -> str:
    """What the user says, without the chat template."""
    messages = trial.group.messages
    return trial.group.prompt if not messages else str(messages[-1].get("content"))


def _show_scores(rows: Sequence[dict[str, Any]], *, several: bool) -> None:
    from postrl.cli.tables import Column, seconds, show

    columns = [Column("prompt", wide=True), Column("completion", wide=True), Column("from")]
    columns += [Column("reward")] if several else []
    columns += [Column("score", right=True), Column("time", right=True), Column("status")]
    keys = ["prompt", "completion", "from", *(["reward"] if several else []), "score", "time", "status"]
    show(columns, [[{**row, "time": seconds(row["seconds"])}[key] for key in keys] for row in rows])


# -- postrl reward audit -----------------------------------------------------------------------------------------------


def audit(
    reward: Annotated[str, typer.Argument(metavar="REWARD", hidden=True)],
    cases: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your own cases, JSONL.", rich_help_panel=CASES)
    ] = None,
    kind: Annotated[
        Literal["math", "code"] | None,
        typer.Option(
            metavar="math|code", help="Which shipped cases; default: by REWARD's arguments.", rich_help_panel=CASES
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Give completions as text instead of as messages.", rich_help_panel=CASES)
    ] = False,
    dangerous: Annotated[
        bool, typer.Option("--dangerous", help="Try the dangerous cases too.", rich_help_panel=CASES)
    ] = False,
    reward_arg: RewardArg = None,
    reward_timeout: Annotated[
        float,
        typer.Option(metavar="X", help="Seconds a case may take; built-ins limit themselves.", rich_help_panel=REWARD),
    ] = 10.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    from postrl.cli.tables import bar
    from postrl.config import GRPOConfig
    from postrl.rewards.audit import AS_EXPECTED, without_dangerous
    from postrl.rewards.audit import audit as run_audit
    from postrl.rewards.runner import RewardRunner

    (spec,) = reward_specs([reward], reward_arg or [])
    title, found = _cases(spec, reward, cases, kind)
    chosen = found if dangerous or (spec.name == "code" and spec.kind == "builtin") else without_dangerous(found)
    settings = GRPOConfig(reward_timeout=reward_timeout)
    with RewardRunner.for_run([spec], settings) as runner, bar("trying", len(chosen)) as done:
        asyncio.run(runner.start())
        findings = asyncio.run(run_audit(runner, chosen, chat=not plain, done=done))
    report = {"reward": reward, "cases": title, "tried": len(findings), "left_out": len(found) - len(chosen)}
    if as_json:
        write_json({**report, "differ": [_as_json(f) for f in findings if f.verdict != AS_EXPECTED]})
    else:
        _show_findings(findings, report)
    show_failures(runner)
    raise typer.Exit(1 if any(finding.verdict != AS_EXPECTED for finding in findings) else 0)


def _cases(spec: RewardSpec, reward: str, path: Path | None, kind: str | None) -> tuple[str, list[Case]]:
    """The name of the set, and its cases."""
    from postrl.rewards.audit import kind_of, read_cases, shipped_cases

    if path is not None:
        return str(path), read_cases(path)
    kind = kind or kind_of(spec)
    if kind is None:
        raise UsageError(
            f"the arguments of {reward} name neither `answer` (math cases) nor `tests` (code cases)",
            hint="choose with --kind math or --kind code, or give cases of your own with --cases FILE",
        )
    return kind, shipped_cases(kind)


def _as_json(finding: Finding) -> dict[str, Any]:
    case = finding.case
    return {
        "verdict": finding.verdict, "id": case.id, "kind": case.kind, "expected": case.expected,
        "score": finding.score.value, "status": finding.score.status, "completion": case.completion,
        "note": case.note, "policy": case.policy,
    }  # fmt: skip


def _show_findings(findings: Sequence[Finding], report: dict[str, Any]) -> None:
    from postrl.cli.tables import Column, show
    from postrl.rewards.audit import AS_EXPECTED, PROBLEMS

    columns = [Column("kind"), Column("id"), Column("score", right=True), Column("status")]
    columns += [Column("completion", wide=True), Column("note", wide=True)]
    counts = Counter(finding.verdict for finding in findings)
    for verdict, meaning in PROBLEMS.items():
        found = sorted((f for f in findings if f.verdict == verdict), key=lambda f: (f.case.kind, f.case.id))
        if found:
            show(columns, [_cells(f) for f in found], title=f"{verdict} ({len(found)}): {meaning}")
            typer.echo()
    left_out = f"; {report['left_out']} dangerous ones left out" if report["left_out"] else ""
    typer.echo(f"{report['reward']}: {counts[AS_EXPECTED]} of {report['tried']} cases as expected{left_out}")
    for verdict in PROBLEMS:
        if counts[verdict]:
            typer.echo(f"  {counts[verdict]} {verdict}")


def _cells(finding: Finding) -> list[Any]:
    case, score = finding.case, finding.score
    note = f"{case.note} (policy: {case.policy})" if case.policy else case.note
    return [case.kind, case.id, score.value, score.status, case.completion, note]


# -- for all commands that score ---------------------------------------------------------------------------------------


def show_failures(runner: RewardRunner) -> None:
    """What went wrong with each function: the first traceback."""
    from postrl import console

    for name, failures in runner.failures.items():
        if failures.count:
            console.error(f"reward {name} failed for {failures.count} completions; the first time:\n{failures.first}")


def write_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")
