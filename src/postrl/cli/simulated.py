"""`postrl grpo --engine simulated`, and what simulations show: assumptions, reports and comparisons on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from postrl.cli.options import as_flags
from postrl.config import GRPOConfig
from postrl.config.setting import default_of
from postrl.config.settings import Settings
from postrl.console import Column, table
from postrl.simulation.assumptions import ASSUMPTIONS, GUESS, Assumptions
from postrl.simulation.loop import Report

NOT_OF_THE_COMMAND = frozenset(
    ["engine", "simulation_arg", "num_servers", "num_processes", "max_staleness", "output_dir", "run_name"]
)
"""Settings that the command line of a division leaves out, or has anew."""


def run(config: GRPOConfig, dry_run: bool) -> int:
    """Simulate the run into its folder, or show what is assumed; returns the exit code."""
    from postrl.simulation.engine import prepare, run_steps

    simulation = prepare(config)
    if dry_run:
        show_assumptions(simulation.assumed)
    else:
        report = run_steps(simulation)
        show_report(report)
        sys.stdout.write(f"run folder: {report.config.output_dir}\n")
    return 0


def show_assumptions(assumed: Assumptions) -> None:
    rows = [
        (name, _value(name, getattr(assumed, name)), assumed.sources.get(name, GUESS))
        for name in ASSUMPTIONS
        if not _replaced(assumed, name)
    ]
    table([Column("assumed"), Column("value", right=True), Column("from", wide=True)], rows)
    sys.stdout.write("\n")


def _replaced(assumed: Assumptions, name: str) -> bool:
    """Of the two ways to say how long completions are, the one that is not used."""
    return name in ("length_mean", "length_sigma") if assumed.length_quantiles else name == "length_quantiles"


def _value(name: str, value: Any) -> str:
    if name != "length_quantiles":
        return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    middle = value[len(value) // 2]
    return f"{value[0]:g} .. {middle:g} .. {value[-1]:g}" if len(value) > 5 else ":".join(f"{v:g}" for v in value)


def show_report(report: Report) -> None:
    """What a simulated run was like."""
    name, version = f"{report.steps} simulated steps", report.config.max_staleness
    rows = [
        ("steps an hour", f"{report.steps_per_hour:.1f}"),
        ("completion tokens a second", f"{report.rollout_tokens_per_s:.0f}"),
        ("trained tokens a second", f"{report.train_tokens_per_s:.0f}"),
        ("sequences at a time, a server", f"{report.running:.0f}"),
        ("servers idle", _share(report.samplers_idle)),
        ("trainer idle", _share(report.trainer_idle)),
        (
            "staleness, mean and largest",
            f"{report.staleness_mean:.2f}, {report.staleness_max} (max_staleness {version})",
        ),
        ("finished groups waiting", f"{report.queue_groups:.1f}"),
        ("completions dropped", f"{report.dropped_stale} too old, {report.dropped_error} failed"),
        ("bottleneck", report.bottleneck()),
    ]
    table([Column(name), Column("")], rows)


def show_comparison(reports: Sequence[Report], *, weights: float | None = None) -> None:
    """A row each; `weights`: GB of weights, gradients and optimizer of one rank alone, where they are known."""
    rows = [_cells(report, weights) for report in reports]
    names = [name for name in rows[0] if name not in SOMETIMES or any(row[name] != "0" for row in rows)]
    last = names[-1]
    table(
        [Column(name, right=name != last, wide=name == last) for name in names],
        [[row[name] for name in names] for row in rows],
    )
    sys.stdout.write(LEGEND)


SOMETIMES = ("GB/rank", "dropped")
"""Columns that are left out where they are 0."""
LEGEND = """
bound: max_staleness. tok/s: completion tokens trained on. running: sequences of a server at a time. idle: % of the time,
servers/trainer. stale: mean staleness.
"""


def _cells(report: Report, weights: float | None) -> dict[str, str]:
    return {
        "servers": str(report.division.servers),
        "ranks": str(report.division.ranks),
        "GB/rank": f"{(weights or 0.0) / report.division.ranks:.0f}",
        "bound": str(report.config.max_staleness),
        "steps/h": f"{report.steps_per_hour:.1f}",
        "tok/s": f"{report.rollout_tokens_per_s:.0f}",
        "running": f"{report.running:.0f}",
        "idle": f"{100 * report.samplers_idle:.0f}/{100 * report.trainer_idle:.0f}",
        "stale": f"{report.staleness_mean:.2f}",
        "dropped": str(report.dropped_stale + report.dropped_error),
        "bottleneck": report.bottleneck(),
    }


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"


def command(config: GRPOConfig, chosen: Report) -> str:
    """The command line that runs it: what differs from the defaults, and the division."""
    own = [f"--num-servers {chosen.division.servers}", f"--num-processes {chosen.division.ranks}"]
    own += [f"--max-staleness {chosen.config.max_staleness}"] if chosen.config.max_staleness else []
    return " ".join(["postrl grpo", *_flags(config), *own])


def _flags(config: GRPOConfig) -> Iterator[str]:
    for f in fields(Settings):
        value = getattr(config, f.name)
        if f.name in NOT_OF_THE_COMMAND or value == default_of(f) or value is None:
            continue
        yield as_flags(f.name, value)
