"""`postrl plan`: what a run would start, and, simulated, how fast it would be."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from postrl.cli.options import SettingsCommand, settings_command
from postrl.config import GRPOConfig
from postrl.config.engines import engine_of
from postrl.errors import UsageError

HELP = """Show what a run would start, as `postrl grpo --dry-run` does. Takes the settings of that run
that the plan depends on; --config takes any.

With --simulate: how fast it would be. The real admission of rollouts runs over servers and a trainer that only take time,
under max_staleness 0, 1 and 2; with --gpus, for every way to divide that many GPUs. No model and no GPU is needed.

\b
  postrl plan --model Qwen/Qwen2.5-7B --dataset gsm8k
  postrl plan --model Qwen/Qwen2.5-7B --max-completion-length 4096 --simulate --gpus 8
  postrl plan --from runs/mine --simulate --gpus 8    # as that run measured it

Speeds are guessed from the model's size unless a run or --simulation-arg says better: docs/planning.md.
"""

PANEL = "Simulation"


class PlanCommand(SettingsCommand):
    most_used = (
        "--model", "--dataset", "--prompts-per-step", "--num-generations", "--max-completion-length", "--lora-rank", "--async",
        "--num-servers", "--config", "--simulate", "--gpus", "--from", "--steps",
    )  # fmt: skip


_SIMULATE: Any = typer.Option("--simulate", rich_help_panel=PANEL, help="Simulate it.")
_GPUS: Any = typer.Option(
    "--gpus",
    min=2,
    metavar="N",
    rich_help_panel=PANEL,
    help="Compare the ways to divide N GPUs between servers and trainer.",
)
_FROM: Any = typer.Option(
    "--from",
    metavar="RUN",
    rich_help_panel=PANEL,
    help="Folder of a finished run: its settings, unless there is a --config, and lengths and speeds as it measured them.",
)
_STEPS: Any = typer.Option(
    "--steps",
    min=1,
    metavar="N",
    rich_help_panel=PANEL,
    help="Steps of each simulation; default: about 2500 completions.",
)
FURTHER: dict[str, tuple[Any, Any]] = {
    "gpus": (Annotated[int | None, _GPUS], None),
    "from_run": (Annotated[str | None, _FROM], None),
    "steps": (Annotated[int | None, _STEPS], None),
}


def add_to(app: typer.Typer) -> None:
    command = app.command(
        name="plan", cls=PlanCommand, help=HELP, short_help="Show what a run would start, and how fast it would be."
    )
    command(
        settings_command(
            GRPOConfig, run, takes=GRPOConfig.part("plan"), only_show=_SIMULATE, further=FURTHER, settings_of="from_run"
        )
    )


def run(config: GRPOConfig, simulate: bool, *, gpus: int | None, from_run: str | None, steps: int | None) -> int:
    """Show the plan, or simulate it; returns the exit code."""
    if from_run:
        config = replace(config, output_dir=None, run_name=None, replay=None, push_to_hub=None)
    if simulate:
        return _simulate(config, gpus, from_run, steps)
    if gpus is not None or steps is not None:
        raise UsageError("--gpus and --steps are of a simulation", hint="add --simulate, or leave them out")
    from postrl.cli.grpo import run as grpo

    return grpo(config, True)


def _simulate(config: GRPOConfig, gpus: int | None, from_run: str | None, steps: int | None) -> int:
    from postrl.cli import simulated
    from postrl.console import bar
    from postrl.simulation.assumptions import model_size
    from postrl.simulation.calibrate import assume, division_of
    from postrl.simulation.divisions import best, compare, divisions, staleness_of

    if engine_of(config).embedded and not from_run:
        raise UsageError(
            f"engine = {config.engine} generates inside the trainer, and a simulation is of servers beside it",
            hint="use --engine vllm, or leave --engine out",
        )
    extra = [f"from={from_run}"] if from_run else []
    extra += [f"gpus={gpus}"] if gpus else []
    config = replace(config, engine="auto", simulation_arg=[*extra, *config.simulation_arg])
    ways = None if gpus is None else divisions(gpus, config.tensor_parallel_size)
    if ways:
        config = replace(config, num_servers=1, num_processes=None)
    assumed, placement = assume(config)
    simulated.show_assumptions(assumed)
    ways = ways or [division_of(placement)]
    with bar("simulating", len(ways) * len(staleness_of(config))) as done:
        reports = compare(config, assumed, ways, steps=steps, done=done)
    size = None if config.lora_rank or placement.cpu else model_size(config.model)
    simulated.show_comparison(reports, weights=size and 16 * size / 1e9)
    if gpus and len(ways) < (number := (gpus - 1) // config.tensor_parallel_size):
        sys.stdout.write(f"\n{len(ways)} of the {number} ways to divide them were simulated, evenly spread ones\n")
    sys.stdout.write(f"\nthe least stale within 2 % of the fastest:\n  {simulated.command(config, best(reports))}\n")
    return 0
