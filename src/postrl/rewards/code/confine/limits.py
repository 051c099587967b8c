"""Resource limits and user ids."""

from __future__ import annotations

import os
import resource
import stat
import sys

PRIVATE_USERS = 1_900_000_000
"""First of the user ids that sandboxes started by root take, one each: far above those of people and services."""
NOBODY = 65534
STACK = 64 << 20
"""Bytes the main thread's stack may take: recursion through C code (functools.cache) needs more than the usual 8 MiB.
A kernel leaves at least 128 MiB for it."""


def apply(wanted: dict[str, int | None]) -> None:
    """Set hard limits that a process without privileges cannot raise; a limit that is lower already stays.

    Args:
        wanted: memory, cpu, file_size, open_files, processes (None: as it is). cpu leaves one more second to a
            process that catches the signal of the first.
    """
    cpu = wanted["cpu"]
    if sys.platform != "darwin":  # which refuses it
        _set("RLIMIT_AS", wanted["memory"])
    _set("RLIMIT_CPU", cpu, None if cpu is None else cpu + 1)
    _set("RLIMIT_FSIZE", wanted["file_size"])
    _set("RLIMIT_NOFILE", wanted["open_files"])
    _set("RLIMIT_NPROC", wanted["processes"])
    for name in ("RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_RTPRIO", "RLIMIT_NICE"):
        _set(name, 0)
    _set("RLIMIT_STACK", STACK)


def private_user(number: int) -> int:
    """A user id that no other live sandbox has; `number` is the keeper's process id."""
    with open("/proc/self/uid_map", encoding="utf-8") as mapped:
        ranges = [[int(field) for field in line.split()] for line in mapped]
    for uid in (PRIVATE_USERS + number, NOBODY):
        if any(first <= uid < first + count for first, _, count in ranges):
            return uid
    raise OSError(f"this container maps neither user {PRIVATE_USERS + number} nor {NOBODY}")


def own_streams(uid: int) -> None:
    """Make the user the owner of its standard streams that are pipes: who opens /dev/stdin opens the pipe anew."""
    for fd in (0, 1, 2):
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.fchown(fd, uid, uid)
            os.fchmod(fd, 0o400 if fd == 0 else 0o200)


def become(uid: int) -> None:
    """Give up user 0 for good; group and user get the same number."""
    own_streams(uid)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def processes_of_this_user() -> int:
    """Processes and threads that count against RLIMIT_NPROC now."""
    uid, found = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                tasks = os.stat(f"/proc/{name}/task")
            except OSError:
                continue
            found += (tasks.st_nlink - 2) if tasks.st_uid == uid else 0
    return found


def _set(name: str, soft: int | None, hard: int | None = None) -> None:
    number = getattr(resource, name, None)  # macOS lacks some
    if number is None or soft is None:
        return
    most = resource.getrlimit(number)[1]
    if most == resource.RLIM_INFINITY:
        most = max(soft, hard or 0)
    resource.setrlimit(number, (min(soft, most), min(soft if hard is None else hard, most)))
