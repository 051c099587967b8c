"""`postrl grpo`: check, place, start servers, worker and trainer, watch them, show what they do, stop them.

The launcher imports no torch. What it shows it reads from the run folder: metrics.jsonl and logs/notes.log.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from postrl.config import GRPOConfig
from postrl.console import StepLine, note, table
from postrl.launch.accelerate import trainer_command
from postrl.launch.model import local_model
from postrl.launch.placement import Placement
from postrl.launch.process import ChildProcess, Supervisor
from postrl.launch.siblings import Siblings, check_children, placement_of, siblings, with_engine
from postrl.launch.vllm import server_command
from postrl.learning.loading import check_model_path
from postrl.learning.packaged import PACKAGED
from postrl.metrics import check_trackers, read_metrics
from postrl.rewards.registry import resolve
from postrl.run_folder import RunFolder, with_run_folder

POLL = 0.2


def say(text: str) -> None:
    """A line of results, on stdout."""
    sys.stdout.write(text + "\n")


def run(config: GRPOConfig, dry_run: bool = False) -> int:
    """Run a training job to its end; returns the exit code: 0, or 130 when it was interrupted and saved.

    Raises:
        PostrlError: it cannot start or go on; everything it started has ended.
    """
    config = with_run_folder(with_engine(config))
    check(config)
    placement = placement_of(config)
    if dry_run:
        show_plan(config, placement)
        return 0
    folder = RunFolder(config.output_dir or "")
    folder.prepare(config)
    watch = Watch(config, folder)
    with interruptible(folder, watch), Supervisor() as children:
        if config.model in PACKAGED:
            note(f"preparing {config.model} (converted once, about half a minute)")
        model_path = local_model(config)
        if config.engine == "vllm" and not config.replay:
            note(f"starting vLLM: {len(placement.server_devices)} server(s); logs in {folder.logs}")
        with siblings(config, folder, placement, model_path=model_path) as around:
            command, env = trainer_command(folder.path, placement, ["postrl", "learner", str(folder.path)])
            trainer = children.start(
                "trainer",
                command,
                env={**env, **around.connections.to_env()},
                log_path=folder.logs / "trainer.log",
                may_finish=True,
            )
            watch.until_done(trainer, children, around)
    return watch.finish()


def check(config: GRPOConfig) -> None:
    """Everything that can be refused before a process starts."""
    if not config.replay:
        for spec in config.reward:
            resolve(spec)
    if config.model not in PACKAGED:
        check_model_path(config.model)
    check_trackers(config.report_to)


@contextlib.contextmanager
def interruptible(folder: RunFolder, watch: Watch) -> Iterator[None]:
    """Ctrl-C (or SIGTERM) once: the trainer finishes its step, saves and stops. Twice, or before it trains: stop now."""

    def on_signal(number: int, frame: Any) -> None:
        if watch.interrupted or not watch.training:
            raise KeyboardInterrupt
        watch.interrupted = True
        folder.request_stop()
        note("finishing the step, then saving; Ctrl-C again stops now")

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
        self.training = False
        self.notes = Tail(folder.logs / "notes.log")
        self.metrics = Tail(folder.metrics)

    def until_done(self, trainer: ChildProcess, children: Supervisor, around: Siblings) -> None:
        """Returns when the trainer has ended well; raises what anyone died of."""
        with StepLine(total=max(1, self.config.max_steps), every=self.config.logging_steps) as line:
            while trainer.poll() is None:
                self.show(line)
                around.check()
                time.sleep(POLL)
            self.show(line)
        check_children(children, self.folder)

    def show(self, line: StepLine) -> None:
        for text in self.notes.new_lines():
            note(text)
        for text in self.metrics.new_lines():
            with contextlib.suppress(ValueError):
                row = json.loads(text)
                self.training = True
                if row["step"] > 0:
                    total = int(row.get("run/total_steps") or self.config.max_steps)
                    line.update(int(row["step"]), total, row)

    def finish(self) -> int:
        """The table of before and after, and what to do next."""
        rows = read_metrics(self.folder.metrics)
        name = f"{self.config.model} after {rows[-1]['step']} steps" if rows else self.config.model
        table(name, ["", "before", "after"], summary_rows(rows))
        print_next(self.config, self.folder)
        return 130 if self.interrupted else 0


def summary_rows(rows: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Evaluation before and after, and the mean reward of the first and the last three steps."""
    steps = [row for row in rows if row["step"] > 0 and row.get("reward/mean") is not None]
    out: list[tuple[str, Any, Any]] = []
    for key in sorted({key for row in rows for key in row if key.startswith("eval/") and key.endswith("/reward")}):
        values = [row[key] for row in rows if row.get(key) is not None]
        out.append((f"accuracy on {key.split('/')[1]}, unseen problems", values[0], values[-1]))
    if steps:
        last = [row["reward/mean"] for row in steps[-3:]]
        out.append(("mean reward in training (first step, last three)", steps[0]["reward/mean"], sum(last) / len(last)))
    return out


def print_next(config: GRPOConfig, folder: RunFolder) -> None:
    say(f"run folder: {folder.path}")
    say("next:")
    say(f"  postrl grpo --config {folder.config} --resume --max-steps {max(2 * config.max_steps, 40)}    # train on")
    say(f"  postrl grpo --model {folder.model} --dataset gsm8k    # start from the trained model")


def show_plan(config: GRPOConfig, placement: Placement) -> None:
    """--dry-run: processes, devices and batch arithmetic, on stdout."""
    say(f"run folder      {config.output_dir}")
    say(f"model           {config.model}")
    say(f"engine          {config.engine}")
    if config.vllm_server_url:
        say(f"vLLM servers    {', '.join(config.vllm_server_url)} (already running)")
    for index, devices in enumerate(placement.server_devices):
        argv, _ = server_command(config, model=config.model, port=0, devices=devices, token="")
        where = f"GPUs {devices}" if devices else "CPU"
        say(f"vLLM server {index}   on {where}: {' '.join(argv)}")
    where = f"GPUs {placement.trainer_devices}" if placement.trainer_devices else "CPU"
    say(f"trainer         {placement.num_processes} rank(s) on {where}")
    say(
        f"a step          {config.prompts_per_step} prompts x {config.num_generations} completions = {config.rollouts_per_step} rollouts, "
        f"{config.num_iterations} x {config.minibatches} optimizer step(s) of {config.rollouts_per_step // config.minibatches} rollouts"
    )
    longest = config.max_prompt_length + config.max_completion_length
    say(f"forward passes  at most {config.max_tokens_per_microbatch} tokens; a rollout has at most {longest}")
    if size := parameter_count(config.model):
        trained = 16 if not config.lora_rank else 2
        say(
            f"memory          about {size * trained / 1e9 / placement.num_processes:.1f} GB of weights, gradients and optimizer per rank, activations besides"
        )


def parameter_count(model: str) -> int | None:
    """Parameters of a local model, from the headers of its safetensors files."""
    import struct

    total = 0
    for path in sorted(Path(model).glob("*.safetensors")) if Path(model).is_dir() else []:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                size = 1
                for n in entry["shape"]:
                    size *= n
                total += size
    return total or None


class Tail:
    """New whole lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = path.stat().st_size if path.exists() else 0

    def new_lines(self) -> list[str]:
        try:
            size = self.path.stat().st_size
            if size < self.offset:  # cut by a resume
                self.offset = size
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return []
        whole, _, _ = data.rpartition(b"\n")
        self.offset += len(whole) + 1 if whole else 0
        return [line for line in whole.decode(errors="replace").split("\n") if line]
