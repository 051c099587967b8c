"""The folder of a run: what is where, whether it may be started or continued, and small files between processes.

RUN/config.yaml  RUN/metrics.jsonl  RUN/rollouts/  RUN/checkpoints/  RUN/logs/  RUN/model/  RUN/critic/  RUN/abandoned/
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import datetime
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from postrl.config import GRPOConfig
from postrl.config.paths import same
from postrl.config.settings import Settings
from postrl.errors import PostrlError, UsageError, error_to_wire, is_consequence, origin_of, says_why
from postrl.host.files import read_json, write_whole
from postrl.rows.recipes import dataset_names

MAY_CHANGE_ON_RESUME = frozenset(f.name for f in fields(Settings) if f.metadata["resumable"])

LEFT_BY_A_FAILED_START = {"config.yaml", "accelerate.yaml", "logs", "weights", "stop"}
"""What a run that never trained leaves behind: it may be started again in the same folder."""


def check_resume_is_named(config: GRPOConfig) -> None:
    """Raises UsageError for `resume` without the folder to continue in."""
    if config.resume and not config.output_dir:
        near = runs_near(Path("runs", config.run_name or ""))
        raise UsageError(
            "resume is on, and output_dir does not say which run to continue",
            hint="give its folder with --output-dir, or its settings with --config RUN/config.yaml"
            + (f"; runs near: {', '.join(map(str, near))}" if near else ""),
        )


def with_run_folder(config: GRPOConfig) -> GRPOConfig:
    """The config with run name and output folder filled in.

    Raises:
        UsageError: see `check_resume_is_named`.
    """
    check_resume_is_named(config)
    data = (
        "-".join(Path(name).stem for name in dataset_names(config.dataset))
        or Path((config.dataset_path or ["data"])[0]).stem
    )
    name = config.run_name or f"{Path(config.model).name}-{data}-{datetime.now():%Y%m%d-%H%M%S}"
    return replace(config, run_name=name, output_dir=config.output_dir or str(Path("runs") / name))


class RunFolder:
    """Paths and small files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.logs = self.path / "logs"
        self.rollouts = self.path / "rollouts"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.critic = self.path / "critic"
        self.weights = self.path / "weights"
        self.metrics = self.path / "metrics.jsonl"
        self.config = self.path / "config.yaml"
        self.notes = self.logs / "notes.log"
        self._progress = self.logs / "progress.json"

    def check(self, config: GRPOConfig, checkpoint: Path | None = None) -> None:
        """Whether this run may begin or go on in the folder.

        Args:
            checkpoint: the one to continue from; default: the newest in the folder.

        Raises:
            UsageError: it holds a run and `resume` is off, it holds none and `resume` is on, or settings changed that must
                not.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"output_dir {self.path} is a file", hint="choose a folder with --output-dir")
        if config.resume:
            if checkpoint is None:
                self.check_resumable()
            elif not (checkpoint / "state.json").exists():
                raise UsageError(
                    f"{checkpoint} is not a checkpoint", hint="give a folder such as RUN/checkpoints/step_000010"
                )
            self._check_unchanged(config)
            return
        found = sorted(p.name for p in self.path.iterdir()) if self.path.is_dir() else []
        left = [name for name in found if name not in LEFT_BY_A_FAILED_START]
        if left:
            raise UsageError(
                f"the folder {self.path} is not empty: it holds {', '.join(left[:5])}",
                hint="continue that run with --resume, or choose another --output-dir",
            )

    def saved(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        return checkpoints_in(self.checkpoints)

    def check_resumable(self) -> None:
        """A run that was begun here can be continued, from its newest checkpoint or, while there is none, from step 1.

        Raises:
            UsageError: there is no run, or what is left of it cannot be continued.
        """
        if self.saved():
            return
        if broken := sorted(path.name for path in self.checkpoints.glob("step_*")):
            raise UsageError(
                f"no checkpoint in {self.checkpoints} is whole: {', '.join(broken)} without state.json, which is written last",
                hint="copy it again from where it came; or delete it, and the run starts from step 1",
            )
        if self.model.exists():
            raise UsageError(
                f"the run in {self.path} has ended, and its checkpoints are gone: there is nothing to continue from",
                hint=f"start a new run from its model: --model {self.model} and another --output-dir",
            )
        if self.is_run():
            return
        found = "it has neither checkpoints nor config.yaml with logs" if self.path.exists() else "it does not exist"
        if around := next((place for place in self.path.absolute().parents[:2] if RunFolder(place).is_run()), None):
            raise UsageError(
                f"{self.path} lies in the run {around}, and a run is continued by its own folder",
                hint=f"--output-dir {around} --resume goes on from its newest checkpoint",
            )
        near = runs_near(self.path)
        beside = f"runs near it: {', '.join(map(str, near))}" if near else "there is no run near it"
        raise UsageError(
            f"there is no run to continue in {self.path.absolute()}: {found}",
            hint=f"{beside}; leave --resume out to start a new run",
        )

    def is_run(self) -> bool:
        """Whether a run was begun here."""
        return bool(self.saved()) or (self.config.is_file() and self.logs.is_dir())

    def _check_unchanged(self, config: GRPOConfig) -> None:
        """The newest checkpoint knows the settings it was made with; before there is one, and of older versions, config.yaml
        has to be believed."""
        saved = self.saved()
        before = read_json(saved[-1] / "state.json").get("settings") if saved else None
        if before is None and self.config.exists():
            before = GRPOConfig.from_yaml(self.config).to_dict()
        known = {f.name: f for f in fields(Settings)}
        kept = {name: value for name, value in (before or {}).items() if name not in MAY_CHANGE_ON_RESUME}
        if unknown := sorted(kept.keys() - known):
            raise UsageError(
                f"the run in {self.path} has settings that this version of postrl does not know: {', '.join(unknown)}",
                hint="resume it with the version that it was started with",
            )
        changed = [
            f"{name}: {value!r} -> {getattr(config, name)!r}"
            for name, value in kept.items()
            if not same(known[name], value, getattr(config, name))
        ]
        if changed:
            raise UsageError(
                f"the run in {self.path} was started with other settings: {'; '.join(changed)}",
                hint="resume it with those, also in its config.yaml, or start a new run with another --output-dir",
            )

    def prepare(self, config: GRPOConfig, checkpoint: Path | None = None) -> None:
        """Check the folder, make it, and write the settings into it.

        Raises:
            UsageError: see `check`.
            PostrlError: the folder cannot be written.
        """
        self.check(config, checkpoint)
        with self.writing("the settings"):
            self.logs.mkdir(parents=True, exist_ok=True)
            self.take_stop()
            self._progress.unlink(missing_ok=True)
            for old in self.logs.glob("*.error.json"):  # of a run whose launcher was killed
                old.unlink()
            replace(config, resume=False).save(self.config)

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """A full disk or a folder without permission as one message. Checkpoints have their own (learning/checkpoint).

        Raises:
            PostrlError: `what` cannot be written.
        """
        try:
            yield
        except PostrlError:
            raise
        except Exception as error:  # safetensors and pyarrow have exceptions of their own for a full disk
            if not isinstance(error, OSError) and os.strerror(errno.ENOSPC) not in str(error):
                raise
            cause = getattr(error, "strerror", None) or error
            raise PostrlError(
                f"cannot write {what} to the run folder {self.path}: {cause}",
                hint="make room or get permission there and continue with --resume, or choose another --output-dir",
            ) from error

    def rewind(self, step: int) -> None:
        """After a resume from `step`: later rollouts and checkpoints move to RUN/abandoned, so that nothing appears
        twice, and the next resume does not continue what was left."""
        found = [*self.rollouts.glob("*.parquet"), *self.checkpoints.glob("step_*")]
        late = [path for path in found if step_of(path) > step]
        if late:
            place = self.path / "abandoned" / datetime.now().strftime("%Y%m%d-%H%M%S")
            place.mkdir(parents=True, exist_ok=True)
            for path in late:
                shutil.move(path, place / path.name)

    # -- asking a run to stop ------------------------------------------------------------------------------------------

    def request_stop(self, why: str = "") -> None:
        """Ask the learner to finish its step, save and stop; `touch RUN/stop` does the same.

        Args:
            why: what the person at the terminal does not know yet; see `take_stop`.
        """
        with suppress(OSError):  # the folder may have become unwritable: this is called from signal handlers
            (self.path / "stop").write_text(why, encoding="utf-8")

    def stop_requested(self) -> bool:
        return (self.path / "stop").exists()

    def take_stop(self) -> str:
        """The request was heard, or is an old one. Returns the reason that was given with it."""
        why = ""
        with suppress(OSError):
            why = (self.path / "stop").read_text(encoding="utf-8", errors="replace").strip()
            (self.path / "stop").unlink()
        return why

    # -- how far it is -------------------------------------------------------------------------------------------------

    def save_progress(self, step: int, total_steps: int) -> None:
        """Step `step` of `total_steps` is finished; 0 when training begins."""
        write_whole(self._progress, json.dumps({"step": step, "total": total_steps}))

    def progress(self) -> tuple[int, int] | None:
        """(steps finished, steps of the run); None until training has begun."""
        found = read_json(self._progress)
        return (int(found["step"]), int(found["total"])) if found else None

    # -- errors and notes of children ----------------------------------------------------------------------------------

    def save_error(self, child: str, error: dict[str, Any]) -> None:
        """What a child, or one of its ranks, failed with, for the launcher to show."""
        self.logs.mkdir(parents=True, exist_ok=True)
        write_whole(self.logs / f"{child}.{time.time_ns()}-{os.getpid()}.error.json", json.dumps(error))

    @contextmanager
    def reporting_errors(self, child: str) -> Iterator[None]:
        """In a child process: what it fails with is left for the launcher, and raised. Its log gets the traceback."""
        try:
            yield
        except BaseException as error:
            trace = traceback.format_exc()
            with suppress(OSError):  # the disk may be what is wrong
                sys.stderr.write(trace)
                told = {"traceback": trace, "origin": origin_of(error), "rank": os.environ.get("RANK")}
                told["ranks"] = os.environ.get("WORLD_SIZE")
                self.save_error(child, {**error_to_wire(error), **told})
            raise

    def take_error(self, child: str) -> dict[str, Any] | None:
        """What it left. When several ranks failed, the first that can say why is heard: the others have only lost the
        connection to it."""
        paths = sorted(self.logs.glob(f"{child}.*.error.json"))
        errors = [error for path in paths if (error := read_json(path))]
        for path in paths:
            path.unlink(missing_ok=True)
        return min(errors, key=lambda error: (is_consequence(error), not says_why(error)), default=None)

    def note(self, text: str) -> None:
        """A line for the person at the terminal, whoever runs it."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with open(self.notes, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text.replace("\n", " ") + "\n")


def kept_settings(config: GRPOConfig, folder: RunFolder) -> dict[str, Any]:
    """What a run may not have otherwise when it is resumed, for its checkpoints."""
    return {name: v for name, v in config.lasting(folder.path).items() if name not in MAY_CHANGE_ON_RESUME}


MOST_LOOKED_AT = 1000
"""Folders in which `runs_near` looks for a run."""


def runs_near(path: Path, most: int = 5) -> list[Path]:
    """Runs in a folder, beside it and in runs/, those with the most similar name first."""
    found: dict[Path, Path] = {}
    for place in (path, path.parent, Path("runs")):
        with suppress(OSError):
            for entry in itertools.islice(place.iterdir(), MOST_LOOKED_AT):
                if RunFolder(entry).is_run():
                    found.setdefault(entry.resolve(), entry)

    def likeness(entry: Path) -> float:
        return SequenceMatcher(None, entry.name, path.name).ratio()

    return sorted(found.values(), key=likeness, reverse=True)[:most]


def checkpoints_in(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    whole = (path.parent for path in folder.glob("step_*/state.json"))
    return sorted((path for path in whole if path.name.removeprefix("step_").isdigit()), key=step_of)


def step_of(path: Path) -> int:
    """The step in the name of a file or folder such as step_000010.parquet."""
    return int(path.stem.rpartition("_")[2])
