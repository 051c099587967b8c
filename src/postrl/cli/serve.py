"""`postrl serve`: a vLLM server as a run needs it, for runs that attach with --vllm-server-url."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from postrl.cli.options import SettingsCommand, settings_command
from postrl.config import RUN, GRPOConfig
from postrl.connections import TOKEN
from postrl.errors import UsageError

HELP = """Run a vLLM server that `postrl grpo --vllm-server-url` can use. Takes the settings of that run.

\b
  export POSTRL_SERVER_TOKEN=...      # the same for server and run; without it anyone on this host may replace weights
  postrl serve --model smollm2-135m --output-dir runs/mine --vllm-arg port=8000
  postrl grpo  --model smollm2-135m --output-dir runs/mine --dataset arithmetic --vllm-server-url http://127.0.0.1:8000
"""

_PRINT: Any = typer.Option("--print", rich_help_panel=RUN, help="Print the command and its environment, and stop.")


def add_to(app: typer.Typer) -> None:
    command = app.command(
        name="serve", cls=SettingsCommand, help=HELP, short_help="Run a vLLM server for runs to attach to."
    )
    command(settings_command(GRPOConfig, run, only_show=_PRINT))


def run(config: GRPOConfig, only_print: bool) -> int:
    """Replace this process by the server, or print what would run."""
    if not config.model or not config.output_dir:
        raise UsageError(
            "a server needs the model and the folder of the run that will use it",
            hint="give --model and --output-dir as for `postrl grpo`: weights come through that folder",
        )
    from postrl.launch.adapters import adapter_plan
    from postrl.launch.model import local_model
    from postrl.launch.placement import place, visible_gpus
    from postrl.launch.vllm import named_port, server_command

    devices = place(visible_gpus(), engine="vllm", tensor_parallel_size=config.tensor_parallel_size).server_devices[0]
    model = local_model(config)
    argv, env = server_command(
        config,
        model=model,
        port=named_port(config) or 8000,
        devices=devices,
        token=os.environ.get(TOKEN, ""),
        weights_dir=Path(config.output_dir) / "weights",
        adapters=adapter_plan(config, model, cpu=not devices),
    )
    if only_print:
        shown = {name: value for name, value in env.items() if value is not None and name != TOKEN}
        assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(shown.items())]
        sys.stdout.write(" ".join([*assignments, shlex.join(argv)]) + "\n")
        return 0
    kept = {**os.environ, **{name: value for name, value in env.items() if value is not None}}
    for name in [name for name, value in env.items() if value is None]:
        kept.pop(name, None)
    if not kept.get(TOKEN):
        kept.pop(TOKEN, None)
    os.execvpe(argv[0], argv, kept)
