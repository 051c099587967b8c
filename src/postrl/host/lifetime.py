"""Nothing that a run starts outlives it: how a process notices that another one has ended, however that ended.

    end_of(pid)                the notice itself: a descriptor                   reapers (launch/reaper.py), guards
    guard(parent, channel)     this process's group ends with the parent         reward processes, the math grader
    die_with_parent(parent)    the kernel kills this process with its parent     what a reaper runs

The last one is for children of a process with one thread: the kernel's signal comes when the *thread* that started them ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys

from postrl.host.stopping import bystander

PR_SET_PDEATHSIG = 1


def end_of(pid: int) -> int | None:
    """A descriptor that is readable once a process has ended; None where there are none (not Linux, an old kernel)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def guard(parent: int, channel: int) -> None:
    """Fork a process that kills this one's group when this process ends, or its parent does; no call into C holds it up.

    It is forked twice, because user code that waits for "any child" must not find it.

    Args:
        channel: a socket whose other end the parent has. That it hangs up is the notice where there is no descriptor of a
            process; alone it would come late when a fork of the parent has the socket open.
    """
    ends = [fd for pid in (os.getpid(), parent) if (fd := end_of(pid)) is not None]
    group, middle = os.getpgrp(), os.fork()
    if middle:
        os.waitpid(middle, 0)
        for fd in ends:
            os.close(fd)
        if os.getppid() != parent:  # it had ended before
            os._exit(1)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            bystander()
            poller = select.poll()
            poller.register(channel, 0)  # to hang up is always told
            for fd in ends:
                poller.register(fd, select.POLLIN)
            poller.poll()
            kill_group(group)
    finally:
        os._exit(0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, or end now if it has died already. Linux only."""
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def prctl(option: int, value: int) -> None:
    """Linux's call. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def kill_group(group: int) -> None:
    """SIGKILL, which no process can ignore, to a group that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
