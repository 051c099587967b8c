"""`postrl grpo`: train a model with GRPO."""

from __future__ import annotations

import typer

from postrl.cli.options import SettingsCommand, settings_command
from postrl.config import GRPOConfig
from postrl.errors import UsageError

HELP = """Train a language model with GRPO: sample a group of completions for each prompt, score them, learn from the better ones.

\b
To start with:
  postrl grpo --model smollm2-135m --dataset arithmetic
  postrl grpo --model Qwen/Qwen2.5-7B --dataset gsm8k

The run's folder holds the model, metrics.jsonl and every completion with its rewards.
"""


def add_to(app: typer.Typer) -> None:
    command = app.command(name="grpo", cls=SettingsCommand, help=HELP, short_help="Train a language model with GRPO.")
    command(settings_command(GRPOConfig, run))


def run(config: GRPOConfig, dry_run: bool) -> int:
    """Check that there is something to train and to train on, then launch (or simulate); returns the exit code."""
    if config.engine == "simulated":
        from postrl.cli.simulated import run as simulate

        return simulate(config, dry_run)
    if config.simulation_arg:
        raise UsageError(
            f"simulation_arg is {config.simulation_arg[0]}, and engine = {config.engine} simulates nothing",
            hint="remove --simulation-arg, or use --engine simulated",
        )
    if not config.model:
        raise UsageError(
            "no model is given",
            hint="--model Qwen/Qwen2.5-0.5B-Instruct, or --model smollm2-135m for the packaged demo model",
        )
    if not (config.dataset or config.dataset_path or config.replay):
        raise UsageError(
            "no data set is given", hint="--dataset arithmetic, gsm8k, a hub id or a local file such as rows.jsonl"
        )
    from postrl.launch.run import run as launch

    return int(launch(config, dry_run=dry_run))
