"""A reward worker and everything it starts end with the process that started it, however that ends.

Three ways, because each alone has a hole:
  - the request pipe: the worker kills its own process group at end of file. Not while a C call holds the GIL.
  - the parent-death signal (Linux): the kernel kills the worker. Not the processes that the worker started. It is
    sent when the *thread* that started the worker ends, so each worker is started by a thread that lives as long.
  - the guard (Linux): a forked process in a session of its own that waits for the worker's end, then kills its group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

from postrl.host.stopping import bystander

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, or end now if it has died already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def guard_group() -> None:
    """Fork the guard of this process's group; a no-op where there are no process descriptors (Linux before 5.3).

    It is forked twice: user code that waits for "any child" must not find it.
    """
    try:
        worker = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return
    group, middle = os.getpgrp(), os.fork()
    if middle:
        os.close(worker)
        os.waitpid(middle, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            bystander()
            _outlive(worker, group)
    finally:
        os._exit(0)


def _outlive(worker: int, group: int) -> None:
    for fd in range(3, 256):
        if fd != worker:
            with contextlib.suppress(OSError):  # not open
                os.close(fd)
    poller = select.poll()
    poller.register(worker, select.POLLIN)
    poller.poll()
    kill_group(group)


def kill_group(group: int) -> None:
    """SIGKILL, which no process can ignore, to a group that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
