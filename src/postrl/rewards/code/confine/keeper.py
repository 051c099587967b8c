"""The process between the caller and the program: starts it confined, ends it, removes its folder.

It is forked by the fork server (forkserver.py) and gets the descriptors of one program: the channel, the lock of its
folder, its standard streams, and those that it is passed.

The channel is one end of a socket pair. Down it comes one job (marshal: from the caller, never from a candidate), then
nothing; its end asks for the end of everything. Up it go lines: `keeper PID`, `running` before the program's first line,
`ended STATUS CPU_MS PEAK_KB` after its last, `limit NAME` for a limit that was enforced from here, `error TEXT` when
the confinement failed, `told TEXT` when all of it was ended from outside. The program's process closes the channel
before its first line, and can neither signal the keeper nor ask it for anything.

The keeper is not confined: it reads nothing that comes from the program.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import time
from importlib.machinery import SourceFileLoader

from . import channel, kernel, mainline, program, tree

LOOK = 0.5
"""Seconds between two looks at whether the caller still lives."""
GIVE_UP = 10.0
"""Seconds after which what still lives cannot be killed (stuck in the kernel)."""


def main(fds: list[int], parent: int) -> None:
    """Never returns, in any of the processes.

    Args:
        fds: channel, lock, standard input, output, error, and those that the program is passed, in the job's order.
        parent: the process that forked this one, and with which all ends.
    """
    job = channel.receive(fds[0])
    if job is None:
        os._exit(1)
    up = fds[0]
    if channel.hung_up(up):
        tree.remove(job["folder"])
        channel.say(up, f"ended {-signal.SIGKILL} 0 0")
        os._exit(0)
    try:
        up, job["lock"] = _place(fds, [0, 1, 2, *job["pass_fds"]])
        channel.say(up, f"keeper {os.getpid()}")
        kernel.set_name("postrl-keeper")
        os.environ.update(job["environment"])
        os.chdir(job["folder"])
        code = SourceFileLoader("__main__", job["program"]).get_code("__main__")
        assert code is not None
        child = program.start(job, up)
    except Exception as error:  # fail closed, in whichever process this is: the program does not run
        channel.say(up, f"error {type(error).__name__}: {error}")
        os._exit(1)
    if child:
        Keeper(job, up, parent, child).keep()
    mainline.run(job, code)


def _place(fds: list[int], targets: list[int]) -> tuple[int, int]:
    """Give the program's descriptors the numbers that it expects. Returns the new ones of the first two, ours."""
    floor = max(targets) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, target in zip(moved[2:], targets, strict=True):
        os.dup2(fd, target, inheritable=target <= 2)
        os.close(fd)
    return moved[0], moved[1]


class Keeper:
    def __init__(self, job: channel.Job, up: int, parent: int, child: int) -> None:
        self.job, self.up, self.parent, self.child = job, up, parent, child
        self.strict = job["level"] == "strict"
        self.deadline = time.monotonic() + job["wall"]
        self.ended: tuple[int, resource.struct_rusage] | None = None
        """Status and resource usage of the child."""
        self.told_to_end = False
        self.events = select.poll()
        self.events.register(up, select.POLLIN)
        self.events.register(self._catch_signals(), select.POLLIN)

    def keep(self) -> None:
        """Until the program ends, a limit is passed, the caller asks or is gone; then end all of it. Never returns."""
        try:
            self._let_go()
            try:
                if limit := self._wait():
                    channel.say(self.up, f"limit {limit}")
            finally:
                self._end_all()
                tree.remove(self.job["folder"])
            self._report()
        except InterruptedError as error:
            channel.say(self.up, f"told {error}")
        except Exception as error:
            channel.say(self.up, f"error {type(error).__name__}: {error}")
        finally:
            os._exit(0)

    def _catch_signals(self) -> int:
        """A descriptor that is readable when the child has ended or we are asked to end."""
        wake, write = os.pipe()
        for fd in (wake, write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._end_soon)
        return wake

    def _end_soon(self, *_: object) -> None:
        self.told_to_end = True

    def _let_go(self) -> None:
        """Of the program's standard streams and descriptors, whose other ends must see that it ended."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for fd in self.job["pass_fds"]:
            os.close(fd)
        os.chdir("/")

    def _wait(self) -> str | None:
        """The name of the limit that was passed; None when the program ended by itself or is no longer wanted."""
        sample = LOOK if self.strict else program.SAMPLE
        while not self._reap():
            left = self.deadline - time.monotonic()
            if left <= 0:
                return "wall"
            if os.getppid() != self.parent or self.told_to_end:
                raise InterruptedError("to end")
            if not self.strict and (limit := program.passed_limit(self.job, self.child)):
                return limit
            for fd, _ in self.events.poll(1000 * min(left, sample)):
                if fd == self.up:
                    return None
                os.read(fd, 4096)
        return None

    def _reap(self) -> bool:
        if self.ended is None:
            pid, status, usage = os.wait4(self.child, os.WNOHANG)
            self.ended = (status, usage) if pid else None
        return self.ended is not None

    def _end_all(self) -> None:
        """With init end all processes of its namespace. Elsewhere the keeper is a subreaper: what the program left
        behind is its child by now, or a child of such a child."""
        deadline = time.monotonic() + GIVE_UP
        while time.monotonic() < deadline:
            if not self._reap():
                os.kill(self.child, signal.SIGKILL)
            elif self.strict or not self._kill_orphans():
                return
            time.sleep(0.001)
        raise TimeoutError(f"processes of the sandbox still live {GIVE_UP} s after SIGKILL")

    def _kill_orphans(self) -> bool:
        """One round. Returns whether any may be left."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            for pid in _descendants() if kernel.LINUX else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child, signal.SIGKILL)  # without subreapers (macOS) the program's group is what is known
        return False

    def _report(self) -> None:
        assert self.ended is not None
        status, usage = self.ended
        if not self.strict or status != 0:  # init tells of the program itself, unless it was killed
            channel.say(self.up, channel.end_line(status, usage))


def _descendants() -> list[int]:
    """Of this process, by parents' ids in /proc."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                parents[int(name)] = int(stat.read().rpartition(b")")[2].split()[1])
    found, before = {os.getpid()}, 0
    while len(found) != before:
        before = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return sorted(found - {os.getpid()})
