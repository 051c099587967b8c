"""The process that keepers are forked from: Python and what most programs import are loaded once, not for each program.

    python -c "... forkserver.main()" CONTROL_FD PARENT_PID          (see `postrl.rewards.code.starter`)

For each byte on the control socket, which comes with the descriptors of one program, it forks a keeper in a session of
its own. It reads nothing else, so nothing of one program is in the memory of the next. It ends with the caller: at the
end of the socket, or when its parent is another. What the caller asked for before still gets its keeper, which then
only removes the folder.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys

from . import keeper, kernel

LOOK = 0.5
"""Seconds between two looks at whether the caller still lives."""
MOST_DESCRIPTORS = 200
FOR_OTHERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals to all processes of a job ask the run to stop; its last step may still need us."""
COMMON = """
    __future__ bisect collections collections.abc contextlib copy dataclasses decimal enum fractions functools heapq
    inspect itertools json linecache math operator random re site string threading traceback types typing
""".split()  # noqa: SIM905


def main() -> None:
    """Ends with the caller."""
    control, parent, server = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), os.getpid()
    kernel.set_name("postrl-forks")
    for name in COMMON:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps keepers, whose end the caller sees by itself
    for number in FOR_OTHERS:
        signal.signal(number, lambda *_: None)
    events = select.poll()
    events.register(control, select.POLLIN)
    while True:
        if not events.poll(1000 * LOOK):
            if os.getppid() != parent:
                break
            continue
        byte, fds, _, _ = socket.recv_fds(control, 1, MOST_DESCRIPTORS)
        if not byte:
            break
        if _forked():
            control.close()
            keeper.main(fds, server)
            return
        for fd in fds:
            os.close(fd)
    os._exit(0)


def _forked() -> bool:
    """Whether this is the new process. When there can be none, the end of its socket tells the caller."""
    with contextlib.suppress(OSError):
        if os.fork() == 0:
            for number in (signal.SIGCHLD, *FOR_OTHERS):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            return True
    return False
