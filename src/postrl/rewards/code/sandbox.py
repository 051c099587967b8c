"""Run a program whose code nobody trusts, and leave nothing of it behind.

    with choose("auto").start(program, stdin=PIPE, stdout=PIPE, stderr=PIPE) as contained:
        finished = contained.communicate(b"3 4\\n", wall=5.0)

Levels, strongest first:

  strict    namespaces (processes, network, IPC, mounts; users unless root) with a private read-only root directory,
            a user id of its own when started by root, Landlock where the kernel has it, seccomp, limits
  landlock  Landlock, seccomp and limits. No new processes. Shares the process table, which /proc does not show
  basic     limits, and seccomp where it works. Not a security boundary: files can be read and written

Each program has a keeper (confine/keeper.py), which starts it, ends all it left behind and removes its folder, also
when the caller was killed: it watches a socket to the caller and the caller's process id. What the program inherits is
the standard streams and `pass_fds`; its environment is made from scratch.
"""

from __future__ import annotations

import contextlib
import marshal
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from postrl.errors import UsageError
from postrl.rewards.code import places, starter
from postrl.rewards.code.confine import kernel, seccomp, tree
from postrl.rewards.code.contained import Contained, Finished, Outcome, SandboxError

LEVELS = ("strict", "landlock", "basic")
PROBE = Path(__file__).parent / "confine" / "probe.py"
PROBE_WALL = 30.0

__all__ = ["LEVELS", "Contained", "Finished", "Limits", "Outcome", "Sandbox", "SandboxError", "choose", "survey"]


@dataclass(frozen=True)
class Limits:
    """What one program may use. The kernel holds it to most, its keeper to the rest."""

    wall: float = 10.0
    """Seconds from its start; then all of it is killed."""
    cpu: float | None = None
    """Seconds of processor time of each process; default `wall` + 1."""
    memory: int = 2 << 30
    """Bytes of address space of each process, and of the memory of all its processes together."""
    output: int = 1 << 20
    """Bytes of each stream that `communicate` keeps."""
    file_size: int = 16 << 20
    """Bytes of each file."""
    open_files: int = 64
    processes: int = 48
    """Processes and threads together."""
    disk: int = 64 << 20
    """Bytes of all files in its folder."""
    files: int = 10_000
    """Files and folders in its folder."""


@dataclass(frozen=True)
class Sandbox:
    """A level of confinement that was tried here; from `choose`."""

    level: str
    about: str
    """One line for the log, e.g. "strict: namespaces + Landlock 7 + seccomp + limits"."""
    filtered: bool = True
    """Whether seccomp works."""

    def start(
        self,
        program: Path,
        arguments: Sequence[str] = (),
        *,
        limits: Limits = Limits(),
        stdin: int = subprocess.DEVNULL,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
        threads: bool = True,
    ) -> Contained:
        """Start a Python program confined, in a fresh empty folder, by this interpreter with its site-packages.

        The program's file and arguments are the caller's own; what it then loads may be anybody's. It runs as
        `__main__`, with neither its folder nor the current one on the search path; files beside it are readable.

        Args:
            stdin, stdout, stderr: a descriptor, subprocess.DEVNULL or subprocess.PIPE (for `communicate`).
            pass_fds: descriptors that it inherits under their numbers.
            threads: whether it may start threads.

        Raises:
            SandboxError: the keeper could not be started. That the confinement failed is raised by the methods of
                what this returns; then nothing of the program has run.
        """
        job = self._job(program.resolve(), arguments, limits)
        job |= {"pass_fds": sorted({fd for fd in pass_fds if fd > 2}), "threads": threads}
        try:
            return self._start(job, (stdin, stdout, stderr), limits.output)
        except OSError as error:
            raise SandboxError(f"the sandbox cannot start a program: {error}") from error

    def _start(self, job: dict[str, Any], streams: tuple[int, int, int], output: int) -> Contained:
        with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
            ends = [_open(stream, index, given, kept) for index, stream in enumerate(streams)]
            folder, lock = places.new_folder()
            kept.callback(tree.remove, folder)
            given.callback(os.close, lock)
            ours, theirs = socket.socketpair()
            given.enter_context(theirs)
            kept.enter_context(ours)
            starter.fork([theirs.fileno(), lock, *(end for end, _ in ends), *job["pass_fds"]])
            home = places.STRICT_HOME if self.level == "strict" else folder
            message = marshal.dumps({**job, "folder": folder, "environment": {"HOME": home, "TMPDIR": home}})
            ours.settimeout(starter.START_TIMEOUT)
            ours.sendall(len(message).to_bytes(4, "big") + message)
            ours.settimeout(None)
            kept.pop_all()
        return Contained(ours, Path(folder), [end for _, end in ends], output, job["cpu"], job["memory"])

    def run(
        self,
        program: Path,
        arguments: Sequence[str] = (),
        *,
        stdin: bytes = b"",
        limits: Limits = Limits(),
    ) -> Finished:
        """Start, communicate, close: one program from beginning to end. Raises SandboxError."""
        pipe = subprocess.PIPE
        with self.start(program, arguments, limits=limits, stdin=pipe, stdout=pipe, stderr=pipe) as contained:
            return contained.communicate(stdin, limits.wall)

    def _job(self, program: Path, arguments: Sequence[str], limits: Limits) -> dict[str, Any]:
        """What the keeper needs to know, as values that marshal knows."""
        return {
            "level": self.level,
            "filter": self.filtered,
            "drop": places.may_drop_user(self.level),
            "program": str(program),
            "arguments": list(arguments),
            "readable": [*places.readable(), *places.visible([str(program.parent)])],
            "packages": places.packages(),
            "prefixes": (sys.prefix, sys.exec_prefix),
            **asdict(limits),
            "cpu": math.ceil(limits.wall + 1 if limits.cpu is None else limits.cpu),
        }


def _open(stream: int, index: int, given: contextlib.ExitStack, kept: contextlib.ExitStack) -> tuple[int, int | None]:
    """A standard stream as subprocess understands it: the program's end, and ours of a pipe."""
    if stream >= 0:
        return stream, None
    if stream == subprocess.DEVNULL:
        theirs = os.open(os.devnull, os.O_RDWR)
        given.callback(os.close, theirs)
        return theirs, None
    if stream != subprocess.PIPE:
        raise ValueError(f"{stream} as a standard stream, expected a descriptor, subprocess.DEVNULL or subprocess.PIPE")
    theirs, ours = os.pipe() if index == 0 else os.pipe()[::-1]
    given.callback(os.close, theirs)
    kept.callback(os.close, ours)
    return theirs, ours


# -- choosing ----------------------------------------------------------------------------------------------------------

_chosen: dict[str, Sandbox] = {}
_choosing = threading.Lock()


def choose(level: str = "auto") -> Sandbox:
    """A sandbox of the named level, or of the strongest that works here; each is tried once for real.

    Raises:
        UsageError: there is no such level, or it does not work here; the message says what is missing.
    """
    if level not in (*LEVELS, "auto"):
        raise UsageError(f"no sandbox level {level!r}", hint=f"use auto, {', '.join(LEVELS)}")
    if os.name != "posix":
        raise UsageError("there is no sandbox for this system", hint="run code rewards on Linux")
    with _choosing:
        if level not in _chosen:
            _chosen[level] = _strongest() if level == "auto" else _tried(level)
    return _chosen[level]


def _strongest() -> Sandbox:
    for level in LEVELS[:-1]:
        with contextlib.suppress(UsageError):
            return _chosen.get(level) or _tried(level)
    return _chosen.get(LEVELS[-1]) or _tried(LEVELS[-1])


def _tried(level: str) -> Sandbox:
    """The level, after a program in it has found itself confined."""
    places.sweep()
    sandbox = Sandbox(level, "", filtered=level != "basic" or _has_filter())
    outside = tempfile.mkdtemp(prefix="postrl-probe-")
    try:
        finished = sandbox.run(PROBE, [level, outside, str(os.getpid())], limits=Limits(wall=PROBE_WALL))
        found = finished.stdout.decode(errors="replace").strip()
        if finished.status != 0:
            raise SandboxError(found or finished.stderr.decode(errors="replace").strip() or "the probe failed")
    except (SandboxError, OSError) as error:
        reason = str(error)
        raise UsageError(f"sandbox level {level} does not work here: {reason}", hint=_way_out(level, reason)) from None
    finally:
        shutil.rmtree(outside, ignore_errors=True)
    return replace(sandbox, about=f"{level}: {found}")


HINTS = {
    "namespace": "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container --cap-add SYS_ADMIN)",
    "mount at": "allow mounts (in a container with CAP_SYS_ADMIN, --security-opt apparmor=unconfined)",
    "landlock": "boot a kernel of version 5.13 or later with lsm=landlock,...",
    "seccomp": "use Linux on x86_64 or aarch64, in a container that allows seccomp filters",
}


def _way_out(level: str, reason: str) -> str:
    weaker = " or ".join(LEVELS[LEVELS.index(level) + 1 :])
    known = [hint for word, hint in HINTS.items() if word in reason.lower()]
    return "; or ".join([*known, *([f"--sandbox {weaker}"] if weaker else [])])


def _has_filter() -> bool:
    return kernel.LINUX and seccomp.supported()


def survey() -> list[tuple[str, bool, str]]:
    """What this machine offers: (mechanism, whether it works here, a note), each tried in a process of its own."""
    command = [*starter.COMMAND[:-1], starter.BOOT.replace("forkserver", "survey")]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROBE_WALL,
            env=places.environment("/"),
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [("survey", False, str(error))]
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [(name, works == "yes", note) for name, works, note in rows]
