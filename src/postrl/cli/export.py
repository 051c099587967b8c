"""`postrl export` and `postrl merge`: what a run has trained, or an adapter, as a model folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from postrl.cli.options import SettingsCommand
from postrl.cli.scoring import Debug

SOURCES = """
\b
  a run's folder        its model, or its newest checkpoint if that is newer; --step names another
  a checkpoint          RUN/checkpoints/step_000010, of a LoRA run or of a full one
  an adapter            RUN/model of a run with --lora-rank, or any adapter that peft loads

Of a run with a critic it is the policy; the critic is whole already, in RUN/critic. The folder holds tokenizer, chat
template and generation config, too. Nothing is overwritten.
"""
EXPORT = f"""Make a model folder that transformers, peft and vLLM open of WHAT. A LoRA run gives its adapter as it was trained, or
with --merge one model of adapter and base.
{SOURCES}
\b
  postrl export runs/mine --step 100                      # -> runs/mine/exported-step_000100
  postrl export runs/mine --step 100 --merge --output-dir step-100
"""
MERGE = f"""Make a model folder that transformers and vLLM load, and that --model takes, of WHAT: `postrl export --merge`.
{SOURCES}
\b
  postrl merge runs/mine                                  # -> runs/mine/merged
  postrl merge runs/mine/checkpoints/step_000100 --output-dir step-100
  postrl merge my-sft-adapter --dtype bfloat16
"""

What = Annotated[Path, typer.Argument(metavar="WHAT", hidden=True)]
Step = Annotated[int | None, typer.Option(metavar="N", min=0, help="The checkpoint of a run that is wanted.")]
OutputDir = Annotated[
    Path | None,
    typer.Option(
        "--output-dir", "--output", metavar="DIR", help="The model folder; default: in RUN, else beside WHAT."
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(metavar="auto|float32|bfloat16|float16", help="Of the weights; auto: the base model's."),
]
Base = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The base model, where it is no longer where the run had it.")
]


def add_to(app: typer.Typer) -> None:
    short = "Make a model folder of a run, a checkpoint or an adapter."
    app.command(name="export", cls=SettingsCommand, help=EXPORT, short_help=short)(export)
    short = "The same, with the adapter merged into its base."
    app.command(name="merge", cls=SettingsCommand, help=MERGE, short_help=short)(merge)


def export(
    what: What,
    step: Step = None,
    merge: Annotated[bool, typer.Option("--merge", help="Merge the adapter into its base.")] = False,
    output_dir: OutputDir = None,
    dtype: Dtype = "auto",
    model: Base = None,
    debug: Debug = False,
) -> None:
    from postrl.console import note
    from postrl.errors import UsageError
    from postrl.learning.exporting import check_target, find_source
    from postrl.learning.exporting import export as export_source
    from postrl.models.weights import shown_bytes

    source = find_source(what, model, step)
    if merge and source.whole and output_dir is None and dtype == "auto":
        raise UsageError(
            f"{source.base} is a whole model already: there is no adapter to merge",
            hint="use it as it is; --dtype bfloat16 writes it in another dtype",
        )
    target = (output_dir or source.default_target("merged" if merge else "exported")).expanduser()
    check_target(target)
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    adapter_alone = source.has_adapter and not merge
    note(f"reading {source.name}" + ("" if source.whole or adapter_alone else f" and its base model {source.base}"))
    written = export_source(source, target, merge=merge, dtype=dtype)
    if adapter_alone:
        kind = "an adapter"
    elif written is None:
        kind = "a copy"
    else:
        kind = f"{written.num_parameters():,} parameters in {str(written.dtype).removeprefix('torch.')}"
    size = sum(path.stat().st_size for path in target.iterdir())
    sys.stdout.write(f"wrote {target} ({kind}, {shown_bytes(size)})\n")
    sys.stdout.write(f"next:\n  postrl grpo --model {shlex.quote(str(target))} ...\n")


def merge(
    what: What,
    step: Step = None,
    output_dir: OutputDir = None,
    dtype: Dtype = "auto",
    model: Base = None,
    debug: Debug = False,
) -> None:
    export(what, step, True, output_dir, dtype, model, debug)
