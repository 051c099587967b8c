"""Runs one command and leaves none of its descendants behind, however the launcher or the command ends.

    python -m postrl.launch.reaper --control-fd N [--grace S] [--block SIGNALS] -- CMD...

vLLM's EngineCore outlives its API server when that is killed, and keeps the GPU memory. So every child of a run gets
a reaper of its own: a small process between the launcher and CMD that adopts what CMD leaves behind (a subreaper) and
ends all of it, by pid, when CMD exits, when it is told to, or when the launcher is gone.

The control fd is one end of a socket pair whose other end only the launcher has. The reaper writes `pid N` (CMD's) to
it once; the launcher may write `signal N` (forwarded to CMD) and `stop S` (end everything: SIGTERM now, SIGKILL after S
seconds). End of file means that the launcher is gone, and so does the end of the parent process, which the reaper also
watches: a fork of the launcher may hold the socket open for longer than the launcher lives.

Schedulers and closed terminals signal every process of a job, and the launcher alone is to decide what follows. So
CMD may be started with such signals blocked (`--block`), and the reaper then ignores them too; its own first signal for
the end is then SIGINT, or SIGKILL at once where that is blocked as well.

Only Linux has subreapers. Elsewhere a descendant whose parent has died is found by an environment variable that all
descendants inherit (`MARK`); one that cleared its environment is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection

import psutil

from postrl.host.lifetime import die_with_parent, end_of, prctl

MARK = "POSTRL_CHILD"
"""Environment variable that all descendants of one reaper share."""
GIVE_UP = 30.0
"""Seconds after the first SIGKILL at which what still lives cannot be killed (another user's, or stuck in the kernel)."""
TRACKER_GRACE = 2.0
"""Seconds that Python's resource trackers outlive the first SIGKILL: they remove the shared memory of the killed."""

_LINUX = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36


def marked(mark: str) -> list[psutil.Process]:
    """All processes of this user that carry `mark` in their environment, this one left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    return found


class Reaper:
    """The loop: wait for an event, reap the dead, and once ending, signal what is left."""

    def __init__(
        self, command: list[str], *, control_fd: int, grace: float, block: Collection[signal.Signals] = ()
    ) -> None:
        self.control_fd = control_fd
        self.block = block
        self.grace = 0.0 if signal.SIGINT in block else grace
        self.ignored = [number for number in block if signal.getsignal(number) is signal.SIG_IGN]  # as by nohup
        self.exit_code: int | None = None
        self.deadline: float | None = None  # when SIGTERM turns into SIGKILL; None: nothing is ending
        self.asked: set[psutil.Process] = set()  # who got the first signal
        self.events = select.poll()
        os.set_inheritable(control_fd, False)
        self._watch_signals()
        self._watch_launcher()
        if _LINUX:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.main = self._start(command)

    def run(self) -> int:
        """Returns the command's exit code, 128 + N when signal N ended it."""
        while self.deadline is None or self._end_descendants():
            self._wait_for_event(None if self.deadline is None else 0.05)
            self._reap()
        return 1 if self.exit_code is None else self.exit_code

    # -- start ---------------------------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher to decide about
        self.wake_fd, write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(write_fd, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._end(self.grace))
        for number in self.block:
            signal.signal(number, signal.SIG_IGN)
        self.events.register(self.wake_fd, select.POLLIN)

    def _watch_launcher(self) -> None:
        self.events.register(self.control_fd, select.POLLIN)
        self.launcher_fd = end_of(os.getppid())
        if self.launcher_fd is not None:
            self.events.register(self.launcher_fd, select.POLLIN)

    def _start(self, command: list[str]) -> int:
        reaper = os.getpid()

        def die_with_the_reaper() -> None:
            for number in {signal.SIGINT, *self.block}:  # an ignored signal would stay ignored in the command
                if number not in self.ignored:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, self.block)
            die_with_parent(reaper)

        # preexec_fn is safe here: this process has one thread.
        process = subprocess.Popen(command, start_new_session=True, preexec_fn=die_with_the_reaper)
        process.returncode = 0  # we reap it ourselves; keeps Popen from looking for it
        with contextlib.suppress(OSError):
            os.write(self.control_fd, b"pid %d\n" % process.pid)
        return process.pid

    # -- events --------------------------------------------------------------------------------------------------

    def _wait_for_event(self, timeout: float | None) -> None:
        for fd, _ in self.events.poll(None if timeout is None else timeout * 1000):
            if fd == self.wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
            elif fd == self.control_fd:
                self._read_control()
            elif fd == self.launcher_fd:
                self.events.unregister(fd)
                self._end(self.grace)

    def _read_control(self) -> None:
        try:
            data = os.read(self.control_fd, 4096)
        except OSError:  # the launcher died with something of ours unread
            data = b""
        if not data:
            self.events.unregister(self.control_fd)
            self._end(self.grace)
        for line in data.decode().splitlines():
            word, _, value = line.partition(" ")
            if word == "stop":
                self._end(float(value))
            elif word == "signal" and self.exit_code is None:  # not reaped yet, so the pid is still the command's
                os.kill(self.main, int(value))

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid == self.main:
                    code = os.waitstatus_to_exitcode(status)
                    self.exit_code = code if code >= 0 else 128 - code
                    self._end(self.grace)

    # -- end -----------------------------------------------------------------------------------------------------

    def _end(self, grace: float) -> None:
        """Starts the end; a later call can only bring it forward."""
        grace = min(grace, self.grace) if signal.SIGINT in self.block else grace
        deadline = time.monotonic() + grace
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)

    def _end_descendants(self) -> bool:
        """One round of signals. Returns whether to go on."""
        assert self.deadline is not None
        late = time.monotonic() - self.deadline
        left = self._descendants()
        for process in left:
            with contextlib.suppress(psutil.Error):
                if late >= (TRACKER_GRACE if _is_resource_tracker(process) else 0.0):
                    process.kill()
                elif process not in self.asked:
                    self.asked.add(process)
                    process.send_signal(signal.SIGINT if signal.SIGTERM in self.block else signal.SIGTERM)
                    process.resume()  # a stopped process acts on SIGTERM only when continued
        if left and late > GIVE_UP:
            sys.stderr.write(f"postrl.launch.reaper: cannot end the processes {[p.pid for p in left]}\n")
            return False
        return bool(left)

    def _descendants(self) -> list[psutil.Process]:
        found = psutil.Process().children(recursive=True)
        if not _LINUX and (mark := os.environ.get(MARK)):
            found += [process for process in marked(mark) if process not in found]
        return found


def _is_resource_tracker(process: psutil.Process) -> bool:
    return any("multiprocessing.resource_tracker" in argument for argument in process.cmdline())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="postrl.launch.reaper", description=__doc__.partition("\n")[0])
    parser.add_argument("--control-fd", type=int, required=True, help="socket to the launcher")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("--block", default="", help="numbers of signals that the command does not get")
    argv = sys.argv[1:] if argv is None else argv
    middle = argv.index("--") if "--" in argv else len(argv)
    options, command = argv[:middle], argv[middle + 1 :]
    args = parser.parse_args(options)
    if not command:
        parser.error("no command after --")
    try:
        block = [signal.Signals(int(number)) for number in args.block.split(",") if number]
        reaper = Reaper(command, control_fd=args.control_fd, grace=args.grace, block=block)
    except OSError as error:
        sys.stderr.write(f"postrl.launch.reaper: cannot start {command[0]}: {error.strerror}\n")
        return 126 if isinstance(error, PermissionError) else 127
    return reaper.run()


if __name__ == "__main__":
    sys.exit(main())
