"""Child processes of a run: started under a reaper, logged to a file, ended without leftovers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from postrl.errors import ChildError, WaitTimeout
from postrl.host.python import child_environment, python
from postrl.host.stopping import exit_on_signal
from postrl.launch import logs
from postrl.launch.reaper import MARK, marked

_REAPER_MARGIN = 5.0  # seconds beyond the grace in which the reaper itself must have ended


class ChildProcess:
    """One running child of the launcher.

    It starts when constructed, in a session of its own (a Ctrl-C in the terminal does not reach it). It and all its
    descendants end when it is stopped, when its command exits, or when this process ends, however it does: see
    `postrl.launch.reaper`. Dropping the last reference ends it too.

    Args:
        name: what messages call it, such as "trainer" or "vLLM server 0".
        command: argv. Everyone on the host can read it: secrets go into `env` or `stdin`.
        log_path: its stdout and stderr are appended to this file; the folder is made.
        env: variables on top of this process's own; None as a value removes one.
        stdin: bytes it can read from its standard input; never on disk on Linux. See `read_stdin`.
        cwd: its working folder; default: this process's.
        may_finish: exit code 0 is its normal end (a trainer), not a failure (a server).
        grace: seconds between SIGTERM and SIGKILL for what is left when the command has exited or this process is gone.
        block: signals that do not reach the command and its reaper from outside, see `postrl.launch.reaper`; what the
            command starts has them blocked too, until somebody unblocks them.

    Raises:
        OSError: the log file cannot be written or no process can be started. A command that does not exist shows as
            exit code 127, and in the log.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        log_path: str | Path,
        env: dict[str, str | None] | None = None,
        stdin: bytes | None = None,
        cwd: str | Path | None = None,
        may_finish: bool = False,
        grace: float = 5.0,
        block: Collection[signal.Signals] = (),
    ) -> None:
        self.name, self.command, self.may_finish = name, command, may_finish
        self.log_path = Path(log_path)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._mark = uuid.uuid4().hex
        self._main_pid: int | None = None
        self._reading = threading.Lock()
        # Both ends are close-on-exec; only the reaper is handed its end, and nobody ours.
        self._control, theirs = socket.socketpair()
        with theirs, open(self.log_path, "ab") as log, _as_file(stdin) as source:
            self.log_start = log.seek(0, os.SEEK_END)
            reaper = [*python(), "-m", "postrl.launch.reaper"]
            reaper += ["--control-fd", str(theirs.fileno()), "--grace", str(grace)]
            reaper += ["--block", ",".join(str(int(number)) for number in block), "--"]
            self._reaper = subprocess.Popen(
                [*reaper, *command],
                stdin=source,
                stdout=log,
                stderr=log,
                env=child_environment({**(env or {}), MARK: self._mark}),
                cwd=cwd,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The reaper's pid. It lives until the last descendant is gone."""
        return self._reaper.pid

    @property
    def main_pid(self) -> int | None:
        """The command's own pid; None when it could not be started within 30 s."""
        with self._reading, contextlib.suppress(OSError):
            if self._main_pid is None:
                self._control.settimeout(30.0)
                word, _, pid = self._control.recv(64).decode().partition(" ")
                self._main_pid = int(pid) if word == "pid" else None
        return self._main_pid

    def poll(self) -> int | None:
        """The command's exit code, 128 + N when signal N ended it; None while it or a descendant runs."""
        code = self._reaper.poll()
        return 128 - code if code is not None and code < 0 else code

    def wait(self, timeout: float) -> int:
        """Waits for the end and returns the exit code. Raises WaitTimeout after `timeout` seconds."""
        try:
            self._reaper.wait(timeout)
        except subprocess.TimeoutExpired:
            raise WaitTimeout(
                f"{self.name} (pid {self.pid}) has not ended within {timeout:g} s", hint=f"its log is {self.log_path}"
            ) from None
        code = self.poll()
        assert code is not None
        return code

    def signal(self, number: int) -> None:
        """Sends a signal to the command (not to its descendants); nothing happens when it is gone."""
        self._tell(f"signal {int(number)}")

    def begin_stop(self, grace: float = 10.0) -> None:
        """Asks for the end and returns at once: SIGTERM to all descendants now, SIGKILL after `grace` seconds."""
        self._tell(f"stop {max(0.0, grace):.3f}")
        self._reaper.send_signal(signal.SIGCONT)  # should someone have stopped the reaper itself

    def stop(self, grace: float = 10.0) -> None:
        """Ends the command and all descendants; returns when none is left. May be called again, with less grace."""
        self.begin_stop(grace)
        try:
            self._reaper.wait(max(0.0, grace) + _REAPER_MARGIN)
            if self._reaper.returncode < 0:  # the reaper was killed, and its charges may live
                self._sweep()
        except subprocess.TimeoutExpired:
            self._sweep()
        self._control.close()

    def log_tail(self, n: int = 20) -> list[str]:
        """The last `n` lines that this process wrote, terminal codes removed."""
        return logs.tail(self.log_path, n, start=self.log_start)

    def failure(self) -> ChildError:
        """The error to raise about its end: who, with which exit code, its cause or last lines, and the log's path."""
        code = self.poll()
        lines = self.log_tail()
        said = "\n".join(f"    {line}" for line in lines) if lines else "    (nothing)"
        hint = f"the whole log is {self.log_path}"
        if code == 128 + signal.SIGKILL:
            hint += "; SIGKILL from outside most often means that the machine ran out of memory"
        return ChildError(
            f"{self.name} ended with {describe_exit(code)}; the last lines of its log:\n{said}", hint=hint
        )

    def _tell(self, message: str) -> None:
        with contextlib.suppress(OSError):  # the reaper has ended, or stop() has closed our end
            self._control.send(f"{message}\n".encode(), getattr(socket, "MSG_NOSIGNAL", 0))

    def _sweep(self) -> None:
        """Kills, by the mark in their environment, what a reaper that cannot do its work has left."""
        deadline = time.monotonic() + _REAPER_MARGIN
        while (left := [*marked(self._mark)]) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self._reaper.poll()
            time.sleep(0.02)


class RestartBudget:
    """How often something that falls is started again: `most` times within `window` seconds."""

    def __init__(self, most: int, window: float = 1800.0) -> None:
        self.most, self.window = most, window
        self._spent: list[float] = []

    def spend(self) -> bool:
        """Whether it may be started once more now, which then counts."""
        now = time.monotonic()
        self._spent = [at for at in self._spent if now - at <= self.window]
        allowed = len(self._spent) < self.most
        self._spent += [now] * allowed
        return allowed

    def __str__(self) -> str:
        return f"restarted {len(self._spent)} times within {self.window:g} s"


class Supervisor:
    """Holds the children of a run and ends them with the `with` block, whether it ends well, by an exception,
    by Ctrl-C, or by SIGTERM or SIGHUP (which it turns into SystemExit, in the main thread and when nobody else
    handles them).

        with Supervisor() as children:
            children.start("worker", [...], log_path=run / "logs" / "worker.log")
            trainer = children.start("trainer", [...], log_path=run / "logs" / "trainer.log", may_finish=True)
            while trainer.poll() is None:
                children.check()
                time.sleep(0.2)

    Args:
        grace: seconds that all children together get between SIGTERM and SIGKILL.
    """

    def __init__(self, *, grace: float = 10.0) -> None:
        self.grace = grace
        self.children: list[ChildProcess] = []
        self._old_handlers: dict[signal.Signals, Any] = {}

    def start(self, name: str, command: list[str], **options: Any) -> ChildProcess:
        """Starts a ChildProcess and holds it; arguments are those of ChildProcess."""
        child = ChildProcess(name, command, **options)
        self.children.append(child)
        return child

    def check(self) -> None:
        """Raises ChildError for the first child that died: any exit, but for exit code 0 where it `may_finish`."""
        for child in self.children:
            code = child.poll()
            if code is not None and not (code == 0 and child.may_finish):
                raise child.failure()

    def stop(self) -> None:
        """Ends all children, the last started first, within one shared `grace`."""
        stop_all(self.children, self.grace)

    def __enter__(self) -> Supervisor:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._old_handlers[number] = signal.signal(number, exit_on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            for number, handler in self._old_handlers.items():
                signal.signal(number, handler)
            self._old_handlers.clear()


def stop_all(children: Iterable[ChildProcess], grace: float) -> None:
    """Ends children in reverse order within one shared deadline, `grace` seconds from now.

    Ctrl-C or SIGTERM meanwhile brings the deadline forward to now; it is raised when all children are gone.
    """
    left = list(children)[::-1]
    deadline = time.monotonic() + grace
    interrupt: BaseException | None = None
    while left:
        try:
            for child in left:
                child.begin_stop(deadline - time.monotonic())
            left[0].stop(deadline - time.monotonic())
            left.pop(0)
        except (KeyboardInterrupt, SystemExit) as error:
            interrupt, deadline = error, time.monotonic()
    if interrupt is not None:
        raise interrupt


def describe_exit(code: int | None) -> str:
    """An exit code in words: "exit code 137 (SIGKILL)"."""
    if code is not None and code > 128:
        with contextlib.suppress(ValueError):
            return f"exit code {code} ({signal.Signals(code - 128).name})"
    return f"exit code {code}"


@contextlib.contextmanager
def _as_file(content: bytes | None) -> Iterator[IO[bytes] | int]:
    """A readable file with this content: in memory on Linux, else a temporary one that has no name."""
    if content is None:
        yield subprocess.DEVNULL
        return
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("stdin"), "w+b") if in_memory else tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        yield file
