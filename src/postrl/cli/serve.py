"""`postrl serve`: a vLLM server as a run needs it: of the policy, for runs that attach to it, or of a reward model."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postrl.cli.options import SettingsCommand, settings_command
from postrl.config import GRPOConfig
from postrl.config.setting import REWARD, RUN
from postrl.errors import UsageError
from postrl.host.python import BEFORE
from postrl.run.connections import TOKEN

if TYPE_CHECKING:
    from postrl.launch.pool import Command

HELP = """Run a vLLM server that `postrl grpo --vllm-server-url` can use. Takes the settings of that run that it depends on;
--config takes any.

\b
  export POSTRL_SERVER_TOKEN=...      # the same for server and run; without it anyone on this host may replace weights
  postrl serve --model smollm2-135m --output-dir runs/mine --vllm-arg port=8000
  postrl grpo  --model smollm2-135m --output-dir runs/mine --dataset arithmetic --vllm-server-url http://127.0.0.1:8000

Requests of a run carry what ends its completions: eos tokens, the end of the turn, --stop.

With --reward-model it serves that model instead, for the reward reward_model:

\b
  postrl serve --reward-model org/reward-model --vllm-arg port=8100
  postrl grpo  --reward reward_model:org/reward-model --reward-arg reward_model.url=http://127.0.0.1:8100 ...
"""


class ServeCommand(SettingsCommand):
    most_used = (
        "--model", "--output-dir", "--reward-model", "--lora-rank", "--tensor-parallel-size", "--max-completion-length",
        "--vllm-arg", "--config", "--print",
    )  # fmt: skip


_PRINT: Any = typer.Option(
    "--print", "--dry-run", rich_help_panel=RUN, help="Print the command and its environment, and stop."
)
_REWARD_MODEL: Any = typer.Option(
    "--reward-model", metavar="TEXT", rich_help_panel=REWARD, help="Serve this reward model: its id or folder."
)


def add_to(app: typer.Typer) -> None:
    command = app.command(
        name="serve", cls=ServeCommand, help=HELP, short_help="Run a vLLM server for runs to attach to."
    )
    further = {"reward_model": (Annotated[str, _REWARD_MODEL], "")}
    command(settings_command(GRPOConfig, run, takes=GRPOConfig.part("serve"), only_show=_PRINT, further=further))


def run(config: GRPOConfig, only_print: bool, reward_model: str = "") -> int:
    """Replace this process by the server, or print what would run."""
    argv, env = _reward_server(config, reward_model) if reward_model else _sampler(config)
    if only_print:
        shown = {name: value for name, value in env.items() if value and name not in (TOKEN, *BEFORE.values())}
        assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(shown.items())]
        sys.stdout.write(" ".join([*assignments, shlex.join(argv)]) + "\n")
        return 0
    kept = {name: value for name, value in {**os.environ, **env}.items() if value is not None}
    if not kept.get(TOKEN):
        kept.pop(TOKEN, None)
        sys.stderr.write(f"{_open(argv, reward=bool(reward_model))}\n")
    os.execvpe(argv[0], argv, kept)


def _open(argv: Sequence[str], *, reward: bool) -> str:
    """One line on whom a server without a token lets in where, and how that ends."""
    from postrl.launch.ports import LOOPBACK

    given = dict(flag.removeprefix("--").split("=", 1) for flag in argv if flag.startswith("--") and "=" in flag)
    host = given.get("host", LOOPBACK)  # --vllm-arg may have named another
    local = host == "localhost" or host == "::1" or host.startswith("127.")
    who = "every user of this host" if local else "everyone who can reach this host over the network"
    address = f"[{host}]" if ":" in host else host
    does = "have texts scored" if reward else "sample and replace its weights"
    sends = f"with --reward-arg reward_model.api_key_env={TOKEN}" if reward else "for the run"
    return (
        f"no token is set: {who} can use the server at {address}:{given.get('port', 8000)} ({does}); to close it, "
        f"export {TOKEN}=... here and {sends}"
    )


def _sampler(config: GRPOConfig) -> Command:
    """A server of the policy."""
    if not config.model or not config.output_dir:
        raise UsageError(
            "a server needs the model and the folder of the run that will use it",
            hint="give --model and --output-dir as for `postrl grpo`: weights come through that folder; or --reward-model",
        )
    from postrl.launch.adapters import adapter_plan
    from postrl.launch.model import check_model, local_model, with_adapter
    from postrl.launch.vllm import named_port, server_command

    config = with_adapter(config)
    check_model(config)
    devices = _devices(config)
    model = local_model(config)
    return server_command(
        config,
        model=model,
        port=named_port(config) or 8000,
        devices=devices,
        token=os.environ.get(TOKEN, ""),
        weights_dir=Path(config.output_dir or "") / "weights",
        adapters=adapter_plan(config, model, cpu=not devices),
    )


def _reward_server(config: GRPOConfig, model: str) -> Command:
    if config.model:
        raise UsageError(
            f"--model {config.model} and --reward-model {model} are two servers", hint="start one with each of them"
        )
    from postrl.launch.vllm import named_port, reward_server_command

    port = named_port(config) or 8000
    return reward_server_command(
        config, model=model, port=port, devices=_devices(config), token=os.environ.get(TOKEN, "")
    )


def _devices(config: GRPOConfig) -> list[int]:
    from postrl.launch.placement import place, visible_gpus

    return place(visible_gpus(), engine="vllm", tensor_parallel_size=config.tensor_parallel_size).server_devices[0]
