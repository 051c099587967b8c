"""`postrl merge`: an adapter and its base, or a checkpoint, as one model folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from postrl.cli.options import SettingsCommand

HELP = """Make a model folder that transformers and vLLM load, and that --model takes, of WHAT:

\b
  a run's folder        its model, or its newest checkpoint where that is newer
  a checkpoint          RUN/checkpoints/step_000010, of a LoRA run or of a full one
  an adapter            RUN/model of a run with --lora-rank, or any adapter that peft can merge

Of a run with a critic it is the policy; the critic is whole already, in RUN/critic. The folder holds tokenizer, chat
template and generation config, too. Nothing is overwritten.

\b
  postrl merge runs/mine                                  # -> runs/mine/merged
  postrl merge runs/mine/checkpoints/step_000100 --output-dir step-100
  postrl merge my-sft-adapter --dtype bfloat16
"""

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def add_to(app: typer.Typer) -> None:
    app.command(
        name="merge",
        cls=SettingsCommand,
        help=HELP,
        short_help="Make a model folder of an adapter or a checkpoint.",
    )(merge)


def merge(
    what: Annotated[Path, typer.Argument(metavar="WHAT", hidden=True)],
    output_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The model folder; default: RUN/merged, or WHAT-merged."),
    ] = None,
    dtype: Annotated[
        Dtype,
        typer.Option(metavar="auto|float32|bfloat16|float16", help="Of the weights; auto: the base model's."),
    ] = "auto",
    model: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The base model, where it is no longer where the run had it."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.", hidden=True)] = False,
) -> None:
    from postrl.console import note
    from postrl.errors import UsageError
    from postrl.learning.exporting import check_target, export, find_source
    from postrl.models.weights import shown_bytes

    source = find_source(what, model)
    if source.whole and output_dir is None and dtype == "auto":
        raise UsageError(
            f"{source.base} is a whole model already: there is no adapter to merge",
            hint="use it as it is; --dtype bfloat16 writes it in another dtype",
        )
    target = (output_dir or source.default_target).expanduser()
    check_target(target)
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    note(f"reading {source.name}" + ("" if source.whole else f" and its base model {source.base}"))
    written = export(source, target, dtype=dtype)
    size = sum(path.stat().st_size for path in target.iterdir())
    kind = str(written.dtype).removeprefix("torch.")
    sys.stdout.write(f"wrote {target} ({written.num_parameters():,} parameters in {kind}, {shown_bytes(size)})\n")
    sys.stdout.write(f"next:\n  postrl grpo --model {shlex.quote(str(target))} ...\n")
