"""What a process of a run was handed at its start, by a pipe of its parent."""

from __future__ import annotations

import contextlib
import os
import sys


def read_stdin() -> bytes:
    """All that the parent put into `ChildProcess(stdin=...)`.

    Where it can, it reads by position: processes that inherit one standard input share its offset, and each of them
    (the ranks of a trainer) gets everything.
    """
    with contextlib.suppress(OSError):
        return os.pread(0, os.fstat(0).st_size, 0)
    return sys.stdin.buffer.read()
