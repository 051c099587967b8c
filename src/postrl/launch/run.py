"""`postrl grpo`: check, place, start servers, worker and trainer, watch them, show what they do, stop them.

The launcher imports no torch. What it shows it reads from the run folder: metrics.jsonl, logs/notes.log and
logs/progress.json.
"""

from __future__ import annotations

import contextlib
import json
import time

from postrl.config import GRPOConfig
from postrl.config.engines import servers_of
from postrl.console import note
from postrl.errors import PostrlError
from postrl.host.limits import settle
from postrl.host.stopping import STOP_SIGNALS, GracefulStop, by_signal, came_of_the_stop, without_the_step
from postrl.launch.accelerate import trainer_command
from postrl.launch.adapters import adapter_plan
from postrl.launch.failures import check_children
from postrl.launch.logs import Tail
from postrl.launch.model import local_model, with_adapter
from postrl.launch.owner import refuse_if_owned, run_folder_of
from postrl.launch.placement import Placement
from postrl.launch.plan import show_plan
from postrl.launch.preflight import preflight
from postrl.launch.process import ChildProcess, Supervisor
from postrl.launch.siblings import Siblings, placement_of, siblings, with_engine
from postrl.launch.summary import next_commands, resume_advice, resume_command, show_summary
from postrl.run.folder import RunFolder, step_of, with_run_folder
from postrl.run.step_line import StepLine

POLL = 0.2
SAVE_TIMEOUT = 300.0
"""Seconds a trainer has to save and end after the run has lost its last server, or its rollout worker."""


def run(config: GRPOConfig, dry_run: bool = False) -> int:
    """Run a training job to its end; returns the exit code: 0, or 130 when it was stopped early and saved.

    Raises:
        PostrlError: it cannot start or go on; everything it started has ended.
        KeyboardInterrupt: it was told to stop at once; everything it started has ended.
    """
    config = with_engine(config)
    settle(note, servers=servers_of(config))
    config = with_adapter(config)
    notes = preflight(config, weights=not dry_run)
    placement = placement_of(config)
    adapter_plan(config, config.model, cpu=placement.cpu)  # what is wrong with it shows now
    if dry_run:
        config = with_run_folder(config)
        folder = RunFolder(config.output_dir or "")
        refuse_if_owned(folder)
        folder.check(config)
        show_plan(config, placement)
        for line in notes:  # in a run, what loads the data says it
            note(line)
        return 0
    with run_folder_of(config) as (config, folder):
        watch = Watch(config, folder)
        stop = GracefulStop(
            lambda name: folder.request_stop(),
            folder.note,
            on_hangup=config.on_hangup,
            training=lambda: folder.progress() is not None,
        )
        try:
            with stop, Supervisor() as children:
                _run(config, folder, placement, watch, children)
        except KeyboardInterrupt as error:
            note(f"stopped at once{by_signal(error)}; {resume_advice(folder, resume_command(folder))}")
            raise
        except PostrlError as error:
            stopping = stop.asked or folder.stop_requested()
            if not (watch.training and stopping and came_of_the_stop(error)):
                if watch.training:  # what was saved by an earlier run says nothing about one that could not start
                    error.advise(resume_advice(folder, resume_command(folder)))
                raise
            note(without_the_step(error))
        finally:
            folder.take_stop()
        step, total = show_summary(config, folder, next_commands)
    return 0 if step == total else 130


def _run(config: GRPOConfig, folder: RunFolder, placement: Placement, watch: Watch, children: Supervisor) -> None:
    model_path = local_model(config)
    with siblings(config, folder, placement, model_path=model_path) as around:
        note(f"starting the trainer; its log is {folder.logs / 'trainer.log'}")
        command, env = trainer_command(folder.path, placement, ["postrl", "learner", str(folder.path)])
        trainer = children.start(
            "trainer",
            command,
            env={**env, **around.connections.to_env()},
            log_path=folder.logs / "trainer.log",
            may_finish=True,
            block=STOP_SIGNALS,
        )
        watch.until_done(trainer, children, around)


class Watch:
    """Shows a run by following its files, and notices children that die."""

    def __init__(self, config: GRPOConfig, folder: RunFolder) -> None:
        self.config, self.folder = config, folder
        self.begun_at = max(map(step_of, folder.saved()), default=0)
        """Steps that are done already."""
        self.training = False
        self.notes = Tail.at_end(folder.notes)
        self.metrics = Tail(folder.metrics)

    def until_done(self, trainer: ChildProcess, children: Supervisor, around: Siblings) -> None:
        """Returns when the trainer has ended well; raises what anyone died of."""
        with StepLine(every=self.config.logging_steps) as line:
            while trainer.poll() is None:
                self.show(line)
                try:
                    around.check()
                except PostrlError:
                    self._let_it_save(trainer, line)
                    if trainer.poll() != 0:  # else it had what it needed to end well
                        raise
                    break
                time.sleep(POLL)
            self.show(line)
        if trainer.poll() != 0:
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
