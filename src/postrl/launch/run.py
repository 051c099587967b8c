"""`postrl grpo`: check, place, start servers, worker and trainer, watch them, show what they do, stop them.

The launcher imports no torch. What it shows it reads from the run folder: metrics.jsonl, logs/notes.log and
logs/progress.json.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from postrl.algorithm_file import check_preset
from postrl.config import GRPOConfig
from postrl.console import StepLine, note, table
from postrl.data import check_sources
from postrl.data_presets import dataset_names, find_preset, own_rewards
from postrl.errors import PostrlError, UsageError
from postrl.launch.accelerate import trainer_command
from postrl.launch.adapters import adapter_plan
from postrl.launch.failures import check_children
from postrl.launch.model import check_model, local_model
from postrl.launch.placement import Placement
from postrl.launch.plan import show_plan
from postrl.launch.process import ChildProcess, Supervisor
from postrl.launch.siblings import Siblings, placement_of, siblings, with_engine
from postrl.learning.hub import check_access
from postrl.learning.packaged import PACKAGED
from postrl.metrics import check_trackers, read_metrics
from postrl.rewards.builtin import VERIFIERS
from postrl.rewards.registry import resolve, with_options
from postrl.run_folder import RunFolder, with_run_folder

POLL = 0.2
SAVE_TIMEOUT = 300.0
"""Seconds a trainer has to save and end after the run has lost its last server, or its rollout worker."""


def say(text: str) -> None:
    """A line of results, on stdout."""
    sys.stdout.write(text + "\n")


def run(config: GRPOConfig, dry_run: bool = False) -> int:
    """Run a training job to its end; returns the exit code: 0, or 130 when it was stopped early and saved.

    Raises:
        PostrlError: it cannot start or go on; everything it started has ended.
        KeyboardInterrupt: it was told to stop at once; everything it started has ended.
    """
    config = with_run_folder(with_engine(config))
    check(config)
    placement = placement_of(config)
    adapter_plan(config, config.model, cpu=placement.cpu)  # what is wrong with it shows now
    folder = RunFolder(config.output_dir or "")
    if dry_run:
        folder.check(config)
        show_plan(config, placement)
        return 0
    folder.prepare(config)
    watch = Watch(config, folder)
    try:
        with interruptible(folder, watch), Supervisor() as children:
            _run(config, folder, placement, watch, children)
    except KeyboardInterrupt:
        note(f"stopped at once; {resume_advice(folder)}")
        raise
    except PostrlError as error:
        if watch.training:  # what was saved by an earlier run says nothing about one that could not start
            error.hint = "; ".join(filter(None, [error.hint, resume_advice(folder)]))
        raise
    return watch.finish()


def _run(config: GRPOConfig, folder: RunFolder, placement: Placement, watch: Watch, children: Supervisor) -> None:
    if config.model in PACKAGED:
        note(f"preparing {config.model} (converted once, about half a minute)")
    model_path = local_model(config)
    if placement.server_devices and config.engine == "vllm" and not config.replay:
        note(f"starting vLLM: {len(placement.server_devices)} server(s); logs in {folder.logs}")
    with siblings(config, folder, placement, model_path=model_path) as around:
        note(f"starting the trainer; its log is {folder.logs / 'trainer.log'}")
        command, env = trainer_command(folder.path, placement, ["postrl", "learner", str(folder.path)])
        trainer = children.start(
            "trainer",
            command,
            env={**env, **around.connections.to_env()},
            log_path=folder.logs / "trainer.log",
            may_finish=True,
        )
        watch.until_done(trainer, children, around)


def check(config: GRPOConfig) -> None:
    """Everything that can be refused before a process starts."""
    check_preset(config.algorithm)
    if not config.replay:
        specs = [resolve(spec) for spec in config.reward]
        with_options(specs, config.reward_arg if specs else ())  # of the data sets' own rewards the worker knows
        check_data(config)
        check_sandbox(config)
    check_model(config)
    check_trackers(config.report_to)
    check_access(config.push_to_hub)


def check_data(config: GRPOConfig) -> None:
    """Data that cannot be read or that nothing would score."""
    check_sources(config)
    names = dataset_names(config.dataset) or config.dataset_path
    unscored = [name for name in names if find_preset(name) is None]
    if unscored and not config.reward:
        raise UsageError(
            f"no reward is given, and {unscored[0]} has none of its own",
            hint="--reward math, --reward code or --reward file.py:function",
        )


def check_sandbox(config: GRPOConfig) -> None:
    """A sandbox that does not work here is refused before anything starts."""
    if "code" in (config.reward or own_rewards(config.dataset)):
        from postrl.rewards.code.sandbox import choose

        choose(config.sandbox)


@contextlib.contextmanager
def interruptible(folder: RunFolder, watch: Watch) -> Iterator[None]:
    """Ctrl-C (or SIGTERM) once: the trainer finishes its step, saves and stops. Twice, or before it trains: stop now."""

    def on_signal(number: int, frame: Any) -> None:
        if watch.interrupted or folder.progress() is None:
            raise KeyboardInterrupt
        watch.interrupted = True
        folder.request_stop()
        note("finishing the step, then saving; Ctrl-C again stops at once")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Watch:
    """Shows a run by following its files, and notices children that die."""

    def __init__(self, config: GRPOConfig, folder: RunFolder) -> None:
        self.config, self.folder = config, folder
        self.interrupted = False
        saved = folder.checkpoints.glob("step_*/state.json")
        self.begun_at = max((int(path.parent.name.removeprefix("step_")) for path in saved), default=0)
        """Steps that are done already."""
        self.training = False
        notes = folder.logs / "notes.log"
        self.notes = Tail(notes, start=notes.stat().st_size if notes.exists() else 0)
        self.metrics = Tail(folder.metrics)

    def until_done(self, trainer: ChildProcess, children: Supervisor, around: Siblings) -> None:
        """Returns when the trainer has ended well; raises what anyone died of."""
        with StepLine(total=max(1, self.config.max_steps), every=self.config.logging_steps) as line:
            while trainer.poll() is None:
                self.show(line)
                try:
                    around.check()
                except PostrlError:
                    self._let_it_save(trainer, line)
                    raise
                time.sleep(POLL)
            self.show(line)
        around.check()  # first: a trainer that lost its rollout worker says less than the worker
        check_children(children, self.folder)

    def _let_it_save(self, trainer: ChildProcess, line: StepLine) -> None:
        """A trainer that gets no more rollouts saves what it has learned and ends by itself; Ctrl-C cuts it short."""
        if not self.training:
            return
        deadline = time.monotonic() + SAVE_TIMEOUT
        while trainer.poll() is None and time.monotonic() < deadline:
            self.show(line)
            time.sleep(POLL)
        self.show(line)

    def show(self, line: StepLine) -> None:
        for text in self.notes.new_lines():
            note(text)
        progress = self.folder.progress()
        if progress is None:
            return
        if not self.training:  # only now: what a resume cuts from the metrics is gone
            self.training = True
            line.begin(self.begun_at, progress[1])
        for text in self.metrics.new_lines():
            with contextlib.suppress(ValueError):
                row = json.loads(text)
                if row["step"] > self.begun_at:
                    line.update(int(row["step"]), progress[1], row)

    def finish(self) -> int:
        """The table of before and after, and what to do next."""
        rows = read_metrics(self.folder.metrics)
        step, total = self.folder.progress() or (0, 0)
        table(f"{self.config.model} after {step} steps", ["", "before", "after"], summary_rows(rows))
        say(f"run folder: {self.folder.path}")
        if commands := list(next_commands(self.config, self.folder, step, total)):
            say("next:")
        for command, purpose in commands:
            say(f"  {command}    # {purpose}")
        return 0 if step == total else 130


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


def next_commands(config: GRPOConfig, folder: RunFolder, step: int, total: int) -> Iterator[tuple[str, str]]:
    """(command, what it is for): what a user most likely does after this run."""
    again = f"postrl grpo --config {shlex.quote(str(folder.config))}"
    if step < total:
        yield f"{again} --resume", f"go on from step {step} of {total}"
        return
    if config.replay:
        return
    yield f"{again} --resume --max-steps {2 * total}", "train on"
    if not config.lora_rank:  # an adapter is no model to start from
        new = _unused(folder.path)
        yield (
            f"{again} --model {shlex.quote(str(folder.model))} --output-dir {shlex.quote(str(new))}",
            "a new run from the trained model, such as on another --dataset",
        )


def _unused(path: Path) -> Path:
    """RUN-2, or the next number that is free."""
    return next(new for n in itertools.count(2) if not (new := path.with_name(f"{path.name}-{n}")).exists())


def resume_advice(folder: RunFolder) -> str:
    """What is left of a run that was stopped at once."""
    saved = sorted(path.name for path in folder.checkpoints.glob("step_*"))
    if not saved:
        return "there is no checkpoint yet"
    return f"continue from {saved[-1]} with: postrl grpo --config {shlex.quote(str(folder.config))} --resume"


class Tail:
    """New whole lines of a growing file, from byte `start` on."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self.path, self.offset = path, start

    def new_lines(self) -> list[str]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return []
        whole, newline, _ = data.rpartition(b"\n")
        self.offset += len(whole + newline)
        return [line for line in whole.decode(errors="replace").split("\n") if line]
