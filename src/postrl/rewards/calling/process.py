"""The parent's side of a reward worker: start it, call it, kill it in time.

`WorkerProcess` blocks, and belongs to one thread of a `RewardPool`: the one that starts the process. Linux sends the
parent-death signal when the starting *thread* ends, so that thread must live as long as the process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from postrl.errors import RewardError
from postrl.host.python import child_environment, python
from postrl.rewards.calling import frames
from postrl.rewards.calling.lifetime import kill_group
from postrl.rewards.registry import RewardSpec
from postrl.rewards.score import STATUSES, Score
from postrl.types import Mean, Means

REAP_TIMEOUT = 10.0
LARGEST_GROWTH = 2 << 30
"""Bytes by which a worker may grow after its first call, before it is taken for a leak and started anew."""
T = TypeVar("T")


class Failed(Exception):
    """Why a call has no scores; the text is shown to the user."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


@dataclass
class Outcome:
    """What one call gave."""

    scores: list[Score]
    """One for each completion."""
    error: str | None = None
    """What went wrong with the scores, if anything did."""
    seconds: float = 0.0
    extra: dict[str, list[Any]] = field(default_factory=dict)
    """Columns of `log_extra`: a value for each completion."""
    metrics: Means = field(default_factory=dict)
    """Of `log_metric`."""
    notes: list[str] = field(default_factory=list)
    """What went wrong beside the scores."""
    version: str = ""
    """Of the function, as its worker said when it loaded it."""


@dataclass
class Child:
    """A running worker process and its two pipes."""

    process: subprocess.Popen[bytes]
    requests: int
    replies: int
    asks: dict[str, Any] = field(default_factory=dict)
    """The arguments its function takes; see `worker.describe`."""
    version: str = ""
    memory: int | None = None
    """Bytes that were resident after its first call."""

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Kill the process and what it started, and reap it."""
        kill_group(self.process.pid)
        os.close(self.requests)
        os.close(self.replies)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: subprocess reaps it later
            self.process.wait(REAP_TIMEOUT)


class WorkerProcess:
    """One reward function in its own process, started when first needed and again after it was killed.

    Args:
        settings: settings of the run that a built-in may have options for.
        load_timeout: seconds it may take to import its function.
        log_path: file for what the function prints; None: standard error.
    """

    def __init__(
        self, spec: RewardSpec, name: str, *, settings: Mapping[str, Any], load_timeout: float, log_path: Path | None
    ) -> None:
        self.spec, self.name, self.settings = spec, name, dict(settings)
        self.load_timeout, self.log_path = load_timeout, log_path
        self.restarts = 0
        """How often it was started anew because its memory had grown."""
        self._lock = threading.Lock()
        """Guards `_child` and `_closed`: one thread starts and ends the child, `kill` comes from others."""
        self._child: Child | None = None
        self._closed = False

    @property
    def required(self) -> list[str]:
        """The arguments without which its function cannot be called; known once it has started."""
        return self._child.asks["required"] if self._child is not None else []

    @property
    def version(self) -> str:
        """Of the function that is loaded; empty while none is."""
        return self._child.version if self._child is not None else ""

    def start(self) -> None:
        """Start the process and load the function. Raises RewardError when it cannot be loaded."""
        try:
            self._started()
        except Failed as failure:
            raise RewardError(
                f"reward function {self.name} cannot be loaded: {failure}",
                hint=failure.hint
                or "importing its file, with everything that it imports, must work in a fresh Python process",
            ) from None

    def call(self, inputs: dict[str, list[Any]], count: int, timeout: float) -> Outcome:
        """Score `count` completions in `timeout` seconds, counted from when the function is loaded.

        Failures are in the outcome; RewardError only when it was killed meanwhile.
        """
        begin = time.monotonic()
        try:
            child = self._started()
            begin = time.monotonic()
            if self.spec.kind == "builtin":  # a row of another data set: it says gold_unscorable
                inputs = {**dict.fromkeys(child.asks["required"], [None] * count), **inputs}
            request = _encode({"inputs": _asked_for(child.asks, inputs), "count": count})
            outcome, memory = self._exchange(child, request, timeout, "a call", partial(_read_outcome, count))
            outcome.version = child.version
            self._watch(child, memory, outcome)
        except Failed as failure:
            outcome = Outcome([Score(None, "infra_error")] * count, str(failure))
        outcome.seconds = time.monotonic() - begin
        return outcome

    def kill(self) -> None:
        """Kill the process, even in the middle of a call, and start none again. From any thread."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                kill_group(self._child.process.pid)

    def end(self) -> None:
        """Kill and reap the process."""
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                child.end()

    def _started(self) -> Child:
        """The running child, started and loaded if there is none."""
        if self._child is not None and self._child.alive():
            return self._child
        self.end()  # it died between two calls
        with self._lock:
            self._check_open()
            try:
                child = self._child = _spawn(self.log_path)
            except OSError as error:
                raise Failed(f"its worker process cannot be started: {error}") from error
        try:
            request = frames.encode({"spec": self.spec.to_wire(), "settings": self.settings})
            child.asks, child.version = self._exchange(child, request, self.load_timeout, "loading", _read_loaded)
        except Failed:
            self.end()
            raise
        return child

    def _exchange(
        self, child: Child, request: bytes, seconds: float, what: str, read: Callable[[dict[str, Any]], T]
    ) -> T:
        """Send one request and read its reply, or kill the worker and raise Failed."""
        deadline = time.monotonic() + seconds
        try:
            frames.send(child.requests, request, deadline, child.alive)
            reply = frames.receive(child.replies, deadline, child.alive, frames.LARGEST_REPLY)
            return read(json.loads(reply))
        except TimeoutError:
            problem = f"{what} took longer than {seconds:g} s, so its worker was killed"
        except EOFError:
            self.end()
            problem = f"its worker ended during {what}: {_ending(child.process.returncode)}"
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problem = f"its worker sent a malformed reply to {what}: {error}"
        self.end()
        self._check_open()
        raise Failed(problem)

    def _watch(self, child: Child, memory: int, outcome: Outcome) -> None:
        """End a worker that has grown too much, between two calls: the next one starts it anew."""
        if child.memory is None:
            child.memory = memory
        elif memory - child.memory > LARGEST_GROWTH:
            self.end()
            self.restarts += 1
            outcome.notes.append(
                f"the memory of its worker grew by more than {LARGEST_GROWTH / (1 << 30):.3g} GiB since its first call, "
                "so it is started anew; does the function keep what it was given?"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise RewardError(f"reward function {self.name} was called after its runner was closed")


def _spawn(log_path: Path | None) -> Child:
    for_child, requests = os.pipe()
    replies, from_child = os.pipe()
    command = [*python(), "-u", "-m", "postrl.rewards.calling.worker"]
    try:
        with _output(log_path) as output:
            process = subprocess.Popen(
                [*command, str(for_child), str(from_child), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(for_child, from_child),
                start_new_session=True,
                env=child_environment(),
            )
    except OSError:
        os.close(requests)
        os.close(replies)
        raise
    finally:
        os.close(for_child)
        os.close(from_child)
    os.set_blocking(requests, False)
    return Child(process, requests, replies)


@contextlib.contextmanager
def _output(log_path: Path | None) -> Iterator[IO[bytes] | int]:
    """Where a function's prints go: the end of the log, or standard error."""
    if log_path is None:
        yield 2
        return
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        yield log


# -- requests and replies ----------------------------------------------------------------------------------------------


def _asked_for(asks: dict[str, Any], inputs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The inputs that the function's signature names; for one with **kwargs all that are no options of its own."""
    missing = [name for name in asks["required"] if name not in inputs]
    if missing:
        raise Failed(f"it asks for the argument {', '.join(missing)}; there are {', '.join(inputs)}")
    if asks["any"]:
        return {name: values for name, values in inputs.items() if name not in asks["constant"]}
    return {name: inputs[name] for name in asks["names"] if name in inputs}


def _encode(request: dict[str, Any]) -> bytes:
    try:
        return frames.encode(request)
    except Exception as error:
        raise Failed(f"its arguments cannot be sent to its worker: {error}") from error


def _read_loaded(reply: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What the function asks for, and its version."""
    if "error" in reply:
        raise Failed(str(reply["error"]), str(reply["hint"]))
    asks = {name: [str(argument) for argument in reply["asks"][name]] for name in ("names", "required", "constant")}
    return {**asks, "any": bool(reply["asks"]["any"])}, str(reply["version"])


def _read_outcome(count: int, reply: dict[str, Any]) -> tuple[Outcome, int]:
    """The outcome of a call, and the worker's memory. Raises Failed when the call failed, ValueError for what no worker
    of ours sends."""
    error = reply["error"]
    if "values" not in reply:
        raise Failed(str(error))
    scores = [Score(value, status) for value, status in zip(reply["values"], reply["statuses"], strict=True)]
    for score in scores:
        if not (score.value is None or _is_number(score.value)) or score.status not in STATUSES:
            raise ValueError(f"{score} is not a score")
    extra = {str(column): list(values) for column, values in reply["extra"].items()}
    metrics = {str(name): Mean(total, counted) for name, (total, counted) in reply["metrics"].items()}
    if {len(scores), *map(len, extra.values())} != {count}:
        raise ValueError(f"{len(scores)} scores for {count} completions, or a column of another length")
    if not all(_is_number(x) for mean in metrics.values() for x in mean):
        raise ValueError(f"{metrics} are not sums and counts")
    notes = [str(note) for note in reply["notes"]]
    outcome = Outcome(scores, None if error is None else str(error), extra=extra, metrics=metrics, notes=notes)
    return outcome, int(reply["memory"])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _ending(code: int | None) -> str:
    if code is None:
        return "still ending"
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}" + ("; out of memory?" if code == -signal.SIGKILL else "")
