"""`postrl reward audit`: where a reward is fooled or unfair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postrl.cli.scoring import Debug, Json, RewardArg, reward_specs, show_failures, write_json
from postrl.config.setting import REWARD
from postrl.errors import UsageError

if TYPE_CHECKING:
    from postrl.rewards.registry import RewardSpec
    from postrl.scoring.audit import Case, Finding

HELP = """Try a reward on awkward and hostile completions, and report where it is fooled or unfair.

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

CASES = "Cases"


def run(
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
    import asyncio

    from postrl.config import GRPOConfig
    from postrl.console import bar
    from postrl.rewards.runner import RewardRunner
    from postrl.scoring.audit import AS_EXPECTED, without_dangerous
    from postrl.scoring.audit import audit as run_audit

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
    from postrl.scoring.audit import kind_of, read_cases, shipped_cases

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
    from postrl.console import Column, table
    from postrl.scoring.audit import AS_EXPECTED, PROBLEMS

    columns = [Column("kind"), Column("id"), Column("score", right=True), Column("status")]
    columns += [Column("completion", wide=True), Column("note", wide=True)]
    counts = Counter(finding.verdict for finding in findings)
    for verdict, meaning in PROBLEMS.items():
        found = sorted((f for f in findings if f.verdict == verdict), key=lambda f: (f.case.kind, f.case.id))
        if found:
            table(columns, [_cells(f) for f in found], title=f"{verdict} ({len(found)}): {meaning}")
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
