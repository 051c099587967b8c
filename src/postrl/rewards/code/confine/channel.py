"""The keeper's side of the socket to the caller. Down comes one job, up go lines."""

from __future__ import annotations

import contextlib
import marshal
import os
import resource
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Job = dict[str, Any]
    """What `sandbox.Sandbox.start` sends: plain values by name."""


def receive(fd: int) -> Job | None:
    """The job: four bytes of length, then as many. None when the caller is gone. What comes down is never a candidate's."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        piece = os.read(fd, 1 << 16)
        if not piece:
            return None
        data += piece
    job: Job = marshal.loads(data[4:])
    return job


def hung_up(fd: int) -> bool:
    """Whether the caller has closed its end: after the job nothing else comes down."""
    events = select.poll()
    events.register(fd, select.POLLIN)
    return bool(events.poll(0))


def say(fd: int, line: str) -> None:
    """Tell the caller, who may be gone."""
    with contextlib.suppress(OSError):
        os.write(fd, (line.replace("\n", " ") + "\n").encode(errors="replace"))


def end_line(status: int, usage: resource.struct_rusage) -> str:
    """What `os.wait4` gave for the program."""
    milliseconds = int(1000 * (usage.ru_utime + usage.ru_stime))
    return f"ended {os.waitstatus_to_exitcode(status)} {milliseconds} {usage.ru_maxrss}"
