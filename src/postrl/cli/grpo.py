"""`postrl grpo` and a command for every other algorithm: the same settings with the algorithm's own defaults."""

from __future__ import annotations

import typer

from postrl.algorithms.presets import PRESETS, Preset
from postrl.cli.options import SettingsCommand, as_flags, settings_command
from postrl.config import GRPOConfig
from postrl.config.engines import engine_of
from postrl.errors import UsageError
from postrl.run.folder import check_resume_is_named

HELP = """Train a language model with {title}. {summary}

{formula}

{when} {paper}
{note}{differs}
\b
To start with:
  postrl {name} --model smollm2-135m --dataset arithmetic
  postrl {name} --model Qwen/Qwen2.5-7B --dataset gsm8k

The run's folder holds the model, metrics.jsonl and every completion with its rewards.
"""
DIFFERS = """
\b
Otherwise than in `postrl grpo`:
{settings}
"""


class TrainingCommand(SettingsCommand):
    most_used = (
        "--model", "--dataset", "--reward", "--max-steps", "--learning-rate", "--num-generations", "--max-completion-length",
        "--lora-rank", "--output-dir", "--config", "--dry-run",
    )  # fmt: skip


def add_to(app: typer.Typer) -> None:
    for preset in PRESETS.values():
        command = app.command(
            name=preset.name,
            cls=TrainingCommand,
            help=_help(preset),
            short_help=f"{preset.title}: {preset.summary}",
        )
        command(settings_command(GRPOConfig, run, algorithm=preset.name))


def _help(preset: Preset) -> str:
    differs = "\n".join(f"  {as_flags(name, value)}" for name, value in preset.settings.items())
    return HELP.format(
        name=preset.name,
        title=preset.title,
        summary=preset.summary,
        formula=preset.formula,
        when=preset.when,
        paper=f"({preset.paper})" if preset.paper else "",
        note=f"\n{preset.note}\n" if preset.note else "",
        differs=DIFFERS.format(settings=differs) if differs else "",
    )


def run(config: GRPOConfig, dry_run: bool) -> int:
    """Check that there is something to train and to train on, then launch (or simulate); returns the exit code."""
    if not engine_of(config).trains:
        from postrl.cli.simulated import run as simulate

        return simulate(config, dry_run)
    if config.simulation_arg:
        raise UsageError(
            f"simulation_arg is {config.simulation_arg[0]}, and engine = {config.engine} simulates nothing",
            hint="remove --simulation-arg, or use --engine simulated",
        )
    check_resume_is_named(config)
    if not config.model:
        raise UsageError(
            "no model is given",
            hint="--model Qwen/Qwen2.5-0.5B-Instruct, or --model smollm2-135m for the packaged demo model",
        )
    if not (config.dataset or config.dataset_path) and engine_of(config).samples:
        raise UsageError(
            "no data set is given", hint="--dataset arithmetic, gsm8k, a hub id or a local file such as rows.jsonl"
        )
    from postrl.launch.run import run as launch

    return int(launch(config, dry_run=dry_run))
