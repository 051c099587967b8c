"""The parent's side of a reward worker: start it, call it, kill it in time.

Each worker has one thread of its own. It starts the process, talks to it and reaps it, so that

  - the calls of one function are serial, and the time limit of a call starts with its work, not while it queues;
  - nothing is bound to an event loop: a later `asyncio.run` goes on where the last one stopped;
  - the thread that started the process lives as long as the worker: Linux sends the parent-death signal when the
    starting *thread* ends, so a worker started from an event loop's own pool would be killed with that loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from postrl.errors import RewardError
from postrl.rewards import frames
from postrl.rewards.lifetime import kill_group
from postrl.rewards.registry import RewardSpec
from postrl.rewards.score import STATUSES, Score

REAP_TIMEOUT = 10.0
T = TypeVar("T")


class Failed(Exception):
    """Why a call has no scores; the text is shown to the user."""


@dataclass(frozen=True)
class Outcome:
    """What one call gave: a score for each completion, what went wrong if anything did, and how long it took."""

    scores: list[Score]
    error: str | None
    seconds: float


@dataclass
class Child:
    """A running worker process and its two pipes."""

    process: subprocess.Popen[bytes]
    requests: int
    replies: int
    asks: dict[str, Any] = field(default_factory=dict)
    """The arguments its function takes; see `worker.describe`."""

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Kill the process and what it started, and reap it."""
        kill_group(self.process.pid)
        os.close(self.requests)
        os.close(self.replies)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: subprocess reaps it later
            self.process.wait(REAP_TIMEOUT)


class RewardWorker:
    """One reward function in its own process, started when first needed and again after it was killed."""

    def __init__(
        self, spec: RewardSpec, name: str, *, timeout: float, load_timeout: float, log_path: Path | None
    ) -> None:
        self.spec, self.name = spec, name
        self.timeout, self.load_timeout, self.log_path = timeout, load_timeout, log_path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"reward-{name}")
        self._lock = threading.Lock()
        """Guards `_child` and `_closed`: the thread starts and ends the child, `close` kills it from elsewhere."""
        self._child: Child | None = None
        self._closed = False

    async def start(self) -> None:
        """Start the process and load the function. Raises RewardError when it cannot be loaded."""
        self._check_open()
        try:
            await asyncio.wrap_future(self._thread.submit(self._started))
        except Failed as failure:
            raise RewardError(
                f"reward function {self.name} cannot be loaded: {failure}",
                hint="importing its file, with everything that it imports, must work in a fresh Python process",
            ) from None

    async def call(self, inputs: dict[str, list[Any]], count: int) -> Outcome:
        """Score `count` completions. Failures are in the outcome; RewardError only when it was closed meanwhile."""
        self._check_open()
        return await asyncio.wrap_future(self._thread.submit(self._call, inputs, count))

    def close(self) -> None:
        """Kill and reap the process, even in the middle of a call. Safe to call twice."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                kill_group(self._child.process.pid)
        self._thread.shutdown(wait=True)
        self._end()

    # -- in the worker's thread ----------------------------------------------------------------------------------------

    def _call(self, inputs: dict[str, list[Any]], count: int) -> Outcome:
        begin = time.monotonic()
        try:
            child = self._started()
            begin = time.monotonic()
            request = _encode({"inputs": _asked_for(child.asks, inputs), "count": count})
            scores, error = self._exchange(child, request, self.timeout, "a call", partial(_read_scores, count))
        except Failed as failure:
            scores, error = [Score(None, "infra_error")] * count, str(failure)
        return Outcome(scores, error, time.monotonic() - begin)

    def _started(self) -> Child:
        """The running child, started and loaded if there is none."""
        if self._child is not None and self._child.alive():
            return self._child
        self._end()  # it died between two calls
        with self._lock:
            self._check_open()
            try:
                child = self._child = _spawn(self.log_path)
            except OSError as error:
                raise Failed(f"its worker process cannot be started: {error}") from error
        try:
            spec = frames.encode(self.spec.to_wire())
            child.asks = self._exchange(child, spec, self.load_timeout, "loading", _read_asks)
        except Failed:
            self._end()
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
            self._end()
            problem = f"its worker ended during {what}: {_ending(child.process.returncode)}"
        except (ValueError, TypeError, KeyError) as error:
            problem = f"its worker sent a malformed reply to {what}: {error}"
        self._end()
        self._check_open()
        raise Failed(problem)

    def _end(self) -> None:
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                child.end()

    def _check_open(self) -> None:
        if self._closed:
            raise RewardError(f"reward function {self.name} was called after its runner was closed")


def _spawn(log_path: Path | None) -> Child:
    for_child, requests = os.pipe()
    replies, from_child = os.pipe()
    # -P: a file in the current folder must not hide a module that the worker itself needs
    command = [sys.executable, "-P", "-u", "-m", "postrl.rewards.worker"]
    try:
        with _output(log_path) as output:
            process = subprocess.Popen(
                [*command, str(for_child), str(from_child), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(for_child, from_child),
                start_new_session=True,
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
    """The inputs that the function's signature names; all of them for one with **kwargs."""
    missing = [name for name in asks["required"] if name not in inputs]
    if missing:
        raise Failed(f"it asks for the argument {', '.join(missing)}; there are {', '.join(inputs)}")
    return inputs if asks["any"] else {name: inputs[name] for name in asks["names"] if name in inputs}


def _encode(request: dict[str, Any]) -> bytes:
    try:
        return frames.encode(request)
    except Exception as error:
        raise Failed(f"its arguments cannot be sent to its worker: {error}") from error


def _read_asks(reply: dict[str, Any]) -> dict[str, Any]:
    if "error" in reply:
        raise Failed(str(reply["error"]))
    return {
        "names": list(reply["asks"]["names"]),
        "required": list(reply["asks"]["required"]),
        "any": reply["asks"]["any"],
    }


def _read_scores(count: int, reply: dict[str, Any]) -> tuple[list[Score], str | None]:
    """Raises Failed when the call failed, ValueError for what no worker of ours sends."""
    error = reply["error"]
    if "values" not in reply:
        raise Failed(str(error))
    scores = [Score(value, status) for value, status in zip(reply["values"], reply["statuses"], strict=True)]
    for score in scores:
        number = score.value is None or (isinstance(score.value, int | float) and math.isfinite(score.value))
        if not number or score.status not in STATUSES:
            raise ValueError(f"{score} is not a score")
    if len(scores) != count:
        raise ValueError(f"{len(scores)} scores for {count} completions")
    return scores, None if error is None else str(error)


def _ending(code: int | None) -> str:
    if code is None:
        return "still ending"
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}" + ("; out of memory?" if code == -signal.SIGKILL else "")
