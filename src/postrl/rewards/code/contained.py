"""A program that runs in a sandbox, as its caller holds it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from postrl.errors import PostrlError
from postrl.rewards.code.confine import tree

START_TIMEOUT = 60.0
"""Seconds until the program runs: the keeper's interpreter has to start, on a machine that may be overloaded."""
END_TIMEOUT = 15.0
"""Seconds from SIGKILL to the end of all processes and the folder, a moment unless the kernel is stuck."""
PIECE = 1 << 16


class SandboxError(PostrlError):
    """The machine failed, not the program: the confinement could not be made, or was ended from outside. What fails
    after the program began is its own doing, whatever it did to bring that about."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    status: int
    """Exit status; -N when signal N ended it, as in subprocess."""
    limit: str | None
    """The limit that it hit, as far as can be told: cpu, memory, wall, processes or disk; sandbox when its confinement
    failed while it ran. A program that was refused memory may also have ended with a MemoryError, which only it can
    tell."""
    cpu: float
    """Seconds of processor time."""
    memory: int
    """Bytes of memory at its peak."""


@dataclass(frozen=True)
class Finished:
    """What `communicate` gives."""

    stdout: bytes
    stderr: bytes
    status: int
    timed_out: bool
    output_overflow: bool
    """More came on stdout than `Limits.output`. The program was killed then; stderr is only cut."""
    outcome: Outcome


class Contained:
    """A started program. Use as a context manager, or call `close`. Any thread may call `kill`."""

    def __init__(
        self, channel: socket.socket, folder: Path, pipes: list[int | None], output: int, cpu: int, memory: int
    ) -> None:
        self.channel, self.folder = channel, folder
        self.output, self.cpu, self.memory = output, cpu, memory
        modes = ("wb", "rb", "rb")
        self.stdin, self.stdout, self.stderr = (
            None if fd is None else os.fdopen(fd, mode, buffering=0) for fd, mode in zip(pipes, modes, strict=True)
        )
        """Our ends of the streams that are pipes."""
        self._said = b""
        self._silent = False
        """The keeper has closed its end, its last act."""
        self._closed = False
        self._lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        """The keeper's process id, None before it has begun."""
        self._ended()
        number = self._lines().get("keeper")
        return None if number is None else int(number)

    def __enter__(self) -> Contained:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self) -> int | None:
        """Exit status of the program (-N: signal N), None while any process of it lives.

        Raises:
            SandboxError: the confinement failed; the program did not run.
        """
        return self.wait(0)

    def wait(self, timeout: float) -> int | None:
        """Like `poll`, after at most `timeout` seconds."""
        self._wait_for_end(timeout)
        outcome = self.outcome
        return None if outcome is None else outcome.status

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, None while any process of it lives. Raises SandboxError like `poll`."""
        if not self._ended():
            return None
        lines = self._lines()
        failed = "error" in lines
        if failed and "running" not in lines:
            raise SandboxError(f"the sandbox failed: {lines['error']}")
        if "told" in lines:
            raise SandboxError(f"the keeper of a sandbox was told {lines['told']}")
        if "keeper" not in lines and "ended" not in lines:
            raise SandboxError("no process could be started for a program", hint="too many processes, or no memory?")
        if "ended" not in lines and not failed:
            raise SandboxError("the keeper of a sandbox was killed from outside", hint="out of memory?")
        ended = lines.get("ended", f"{-signal.SIGKILL} 0 0")
        status, milliseconds, peak = (int(number) for number in ended.split())
        limit = "sandbox" if failed else lines.get("limit") or self._limit(status, milliseconds, peak)
        return Outcome(status, limit, milliseconds / 1000, 1024 * peak)

    def kill(self) -> None:
        """SIGKILL to everything that it started. Returns at once; `wait` and `close` wait for the end."""
        with contextlib.suppress(OSError):  # ended
            self.channel.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Kill, reap, remove the folder. Never raises for what the program did, and takes `END_TIMEOUT` at most."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.kill()
        if not self._wait_for_end(END_TIMEOUT):
            if (pid := self.pid) is not None:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)  # and the kernel init or the program with it
            self._wait_for_end(END_TIMEOUT)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self.channel.close()
        tree.remove(str(self.folder))

    def communicate(self, stdin: bytes, wall: float) -> Finished:
        """Feed standard input, collect standard output and error (all three must be subprocess.PIPE), then end it all.

        Does not wait for the end of a stream, which a process left behind could hold open, but for that of the program.

        Args:
            wall: seconds from the program's start to SIGKILL.

        Raises:
            SandboxError: the confinement failed; the program did not run.
        """
        talk = Conversation(self, stdin)
        if not talk.until(lambda: self._ended() or b"running\n" in self._said, START_TIMEOUT):
            raise SandboxError(f"a sandboxed program did not start within {START_TIMEOUT} s")
        in_time = talk.until(lambda: talk.overflow or self._ended(), wall)
        self.kill()
        if not talk.until(self._ended, END_TIMEOUT):
            raise SandboxError(f"processes of a sandbox still live {END_TIMEOUT} s after SIGKILL")
        talk.drain()
        outcome = self.outcome
        assert outcome is not None
        stdout, stderr = (bytes(received) for received in talk.received.values())
        timed_out = not in_time or outcome.limit == "wall"
        return Finished(stdout, stderr, outcome.status, timed_out, talk.overflow, outcome)

    def _wait_for_end(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not self._ended():
            left = deadline - time.monotonic()
            if not _ready(self.channel, left) and left <= 0:
                return False
        return True

    def _ended(self) -> bool:
        """Read what the keeper said. True once it, and with it all processes, has ended."""
        with self._lock:
            while not self._silent and _ready(self.channel, 0):
                try:
                    piece = self.channel.recv(PIECE)
                except ConnectionResetError:
                    piece = b""
                self._said += piece
                self._silent = not piece
            return self._silent

    def _lines(self) -> dict[str, str]:
        return dict(line.partition(" ")[::2] for line in self._said.decode(errors="replace").splitlines())

    def _limit(self, status: int, milliseconds: int, peak: int) -> str | None:
        if status == -signal.SIGXCPU or (status == -signal.SIGKILL and milliseconds > 950 * self.cpu):
            return "cpu"
        return "memory" if status != 0 and 1024 * peak > 0.9 * self.memory else None


class Conversation:
    """The streams of one `communicate`."""

    def __init__(self, contained: Contained, stdin: bytes) -> None:
        if contained.stdin is None or contained.stdout is None or contained.stderr is None:
            raise ValueError("communicate needs stdin, stdout and stderr to be subprocess.PIPE")
        self.most = contained.output
        self.stdin, self.unsent = contained.stdin, memoryview(stdin)
        self.stdout, self.stderr = contained.stdout.fileno(), contained.stderr.fileno()
        self.received = {self.stdout: bytearray(), self.stderr: bytearray()}
        self.overflow = False
        self.events = select.poll()
        self.events.register(contained.channel, select.POLLIN)
        self.events.register(self.stdin, select.POLLOUT)
        for fd in self.received:
            self.events.register(fd, select.POLLIN)
        for fd in (self.stdin.fileno(), *self.received):
            os.set_blocking(fd, False)

    def until(self, done: Callable[[], bool], timeout: float) -> bool:
        """Send and receive until `done()`. False when `timeout` seconds passed first."""
        deadline = time.monotonic() + timeout
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for fd, _ in self.events.poll(1000 * left):
                if fd in self.received:
                    self._receive(fd)
                elif not self.stdin.closed and fd == self.stdin.fileno():
                    self._send()
        return True

    def drain(self) -> None:
        """What is left in the pipes when nobody writes any more."""
        for fd in self.received:
            while self._receive(fd) and not self.overflow:
                pass

    def _receive(self, fd: int) -> bool:
        try:
            piece = os.read(fd, PIECE)
        except BlockingIOError:
            return False
        if not piece:
            with contextlib.suppress(KeyError):  # seen before
                self.events.unregister(fd)
            return False
        kept = self.received[fd]
        room = self.most - len(kept)
        kept += piece[:room]
        self.overflow |= fd == self.stdout and len(piece) > room
        return True

    def _send(self) -> None:
        try:
            self.unsent = self.unsent[os.write(self.stdin.fileno(), self.unsent[:PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the program reads no more
            self.unsent = self.unsent[:0]
        if not self.unsent:
            self.events.unregister(self.stdin)
            self.stdin.close()


def _ready(channel: socket.socket, timeout: float) -> bool:
    events = select.poll()
    events.register(channel, select.POLLIN)
    return bool(events.poll(1000 * max(0.0, timeout)))
