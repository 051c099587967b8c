"""The trackers of `report_to`: what is missing is said before a run starts, a run stays one across a resume, and a line
says where to look.

Keys are the trackers' own business: they come from their environment and files, and are never read, logged or stored here.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from postrl.errors import PostrlError, UsageError, first_line
from postrl.host.files import read_json, write_whole
from postrl.host.python import child_environment

TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow"}
"""What `report_to` takes -> the package it needs. Each is an adapter of accelerate's."""

PROJECT_VARIABLES = {"wandb": "WANDB_PROJECT", "trackio": "TRACKIO_PROJECT", "mlflow": "MLFLOW_EXPERIMENT_NAME"}
"""Where a tracker's project comes from when the setting `project` is not given."""

CHECK_TIMEOUT = 60.0
"""Seconds that asking wandb for its login may take."""


def check_trackers(report_to: Iterable[str]) -> None:
    """Refuse unknown and missing trackers, and a wandb that nobody is logged in to, before a run starts.

    Nothing is imported into this process, and no server is asked.

    Raises:
        UsageError: a name that is not a tracker, one whose package is not installed, or one without its key.
    """
    names = list(report_to)
    check_installed(names)
    if "wandb" in names:
        _check_wandb()


def check_installed(report_to: Iterable[str]) -> None:
    """The first part of `check_trackers`: names and packages."""
    from importlib.util import find_spec

    for name in report_to:
        if name not in TRACKERS:
            raise UsageError(f"report_to is {name!r}", hint=f"choose among {', '.join(TRACKERS)}")
        if find_spec(TRACKERS[name]) is None:
            raise UsageError(f"report_to names {name}, which is not installed", hint=f"pip install {TRACKERS[name]}")


_ASK_WANDB = """
import inspect, json, sys
import wandb
settings = wandb.setup().settings
found = {"mode": settings.mode or "online", "key": True, "error": ""}
if found["mode"] in ("online", "shared"):
    try:
        if "prompt" in inspect.signature(wandb.login).parameters:
            found["key"] = bool(wandb.login(prompt=False, verify=False))
        else:
            found["key"] = bool(wandb.api.api_key)
    except Exception as error:
        found.update(key=False, error=(str(error).strip() or type(error).__name__).splitlines()[0])
sys.stderr.flush()
print("\\n" + json.dumps(found))
"""


def _check_wandb() -> None:
    """In a process of its own: importing wandb takes seconds, and may leave a service behind."""
    command = [sys.executable, "-P", "-c", _ASK_WANDB]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=CHECK_TIMEOUT,
            stdin=subprocess.DEVNULL,
            check=True,
            env=child_environment(),
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.CalledProcessError as error:
        cause = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        raise UsageError(
            f"report_to names wandb, which cannot be imported: {cause}", hint="pip install --upgrade wandb"
        ) from error
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return  # it answers nothing; whether it works shows when it is opened
    if not found["key"]:
        why = found["error"] or "nobody is logged in to it here"
        raise UsageError(f"report_to names wandb, and {why}", hint=WANDB_WAYS_OUT)


WANDB_WAYS_OUT = (
    "`wandb login`, or set WANDB_API_KEY; WANDB_MODE=offline keeps the curves in the run's folder; or leave "
    "--report-to wandb out"
)


class Trackers:
    """Sends each step's metrics to the trackers of `report_to`; on the main rank only.

    Args:
        report_to: names of TRACKERS; empty: does nothing.
        run_name: the run's name there.
        project: the project there; None: what the tracker's environment variable says, else postrl.
        folder: the run's folder, where trackers that write files put them.
        settings: the run's settings, shown beside its curves.
        note: takes a line for the person at the terminal: where to look.

    Raises:
        PostrlError: a tracker cannot be opened.
    """

    def __init__(
        self,
        report_to: Iterable[str],
        *,
        run_name: str,
        folder: str | Path,
        settings: Mapping[str, Any],
        project: str | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.note, self.failures = note, 0
        self.trackers: dict[str, Any] = {}
        names = list(report_to)
        check_installed(names)
        if not names:
            return
        plain = {
            key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in settings.items()
        }
        ids = _Ids(Path(folder) / "logs" / "trackers.json")
        for name in names:
            try:
                self.trackers[name], where = _OPEN[name](_project(name, project), run_name, Path(folder), ids)
                self.trackers[name].store_init_configuration(plain)
            except Exception as error:  # each tracker has errors of its own
                self.close()
                raise _cannot_open(name, error) from error
            note(where)

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Send a step's finite metrics. A tracker that fails does not end the run: the first time a line says so."""
        values = {name: value for name, value in metrics.items() if name != "step" and _is_finite(value)}
        for name, tracker in self.trackers.items():
            try:
                if name == "wandb":  # its own count of steps never goes back, as a resumed run's may
                    tracker.log({**values, "step": step})
                else:
                    tracker.log(values, step=step)
            except Exception as error:
                self.failures += 1
                if self.failures == 1:
                    self.note(f"{name} did not take step {step}, and the run goes on; metrics.jsonl has it: {error}")

    def close(self) -> None:
        for name, tracker in self.trackers.items():
            try:
                tracker.finish()
            except Exception as error:
                self.note(f"{name} could not be closed: {error}")
        if self.failures > 1:
            self.note(f"trackers did not take {self.failures} steps; metrics.jsonl has all")


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _project(name: str, project: str | None) -> str:
    return project or os.environ.get(PROJECT_VARIABLES.get(name, "")) or "postrl"


def _cannot_open(name: str, error: Exception) -> PostrlError:
    hint = WANDB_WAYS_OUT if name == "wandb" else f"leave --report-to {name} out: metrics.jsonl has everything"
    return PostrlError(f"{name} could not be opened: {first_line(error)}", hint=hint)


class _Ids:
    """What a tracker calls this run, kept in the run's folder: a resumed run goes on under the same id."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, name: str) -> str | None:
        found = read_json(self.path).get(name)
        return found if isinstance(found, str) else None

    def set(self, name: str, value: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps({**read_json(self.path), name: value}))


# -- opening: (project, run name, folder, ids) -> the tracker, and where to look ----------------------------------------

Opened = tuple[Any, str]


def _tensorboard(project: str, run_name: str, folder: Path, ids: _Ids) -> Opened:
    from accelerate.tracking import TensorBoardTracker

    return _started(TensorBoardTracker(run_name, logging_dir=folder)), f"tensorboard: tensorboard --logdir {folder}"


def _wandb(project: str, run_name: str, folder: Path, ids: _Ids) -> Opened:
    import secrets

    from accelerate.tracking import WandBTracker

    run_id = os.environ.get("WANDB_RUN_ID") or ids.get("wandb") or secrets.token_hex(4)
    place = {} if os.environ.get("WANDB_DIR") else {"dir": str(folder)}
    tracker = _started(WandBTracker(project, name=run_name, id=run_id, resume="allow", **place))
    ids.set("wandb", run_id)
    run = tracker.run
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    if run.url:
        return tracker, f"wandb: {run.url}"
    if run.settings.mode == "disabled":
        return tracker, "wandb is disabled here: nothing is logged to it"
    return tracker, f"wandb is offline; to upload the run: wandb sync {run.settings.sync_dir}"


def _trackio(project: str, run_name: str, folder: Path, ids: _Ids) -> Opened:
    from accelerate.tracking import TrackioTracker

    tracker = TrackioTracker(project, name=ids.get("trackio") or run_name, resume="allow")
    _started(tracker)
    ids.set("trackio", ids.get("trackio") or run_name)
    return tracker, f"trackio: trackio show --project {project}"


def _mlflow(project: str, run_name: str, folder: Path, ids: _Ids) -> Opened:
    from accelerate.tracking import MLflowTracker

    tracker = _started(MLflowTracker(project, run_name=run_name, run_id=ids.get("mlflow")))
    import mlflow

    ids.set("mlflow", tracker.active_run.info.run_id)
    uri = mlflow.get_tracking_uri()
    return tracker, f"mlflow: {uri}" if uri.startswith("http") else f"mlflow: mlflow ui --backend-store-uri {uri}"


def _started(tracker: Any) -> Any:
    from accelerate import PartialState

    PartialState()  # accelerate's trackers ask it which rank they are on
    tracker.start()
    return tracker


_OPEN: dict[str, Callable[[str, str, Path, _Ids], Opened]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "mlflow": _mlflow,
}
