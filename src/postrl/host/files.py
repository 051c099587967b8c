"""Files that processes share: there whole or not at all, read where they can be, locked."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What a file system without locks answers."""


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Where to write the file: it takes the name `target` when the block ends well, and is gone when it does not."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def write_whole(target: Path, text: str) -> None:
    """The text as a whole file; what UTF-8 does not know in it is escaped."""
    with whole_file(target) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A new folder to fill: it takes the name `target`, which must be free or an empty folder, when the block ends well, and
    is gone when it does not. What a killed process leaves behind is called .NAME-..."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    part.mkdir()
    try:
        yield part
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where it is not there, or holds something else."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def disk_is_full(path: Path) -> bool:
    """Whether not even a small file has room there."""
    try:
        return shutil.disk_usage(path).free < 64 << 10
    except OSError:
        return False


def take_lock(
    file: int, how: int = fcntl.LOCK_EX, *, seconds: float = 0.0, waiting: Callable[[], object] = lambda: None
) -> bool | None:
    """Lock an open file, or wait until those that hold its lock let it go; `waiting` is called once before that.

    Returns:
        Whether it could be locked within `seconds`; None where the file system has no locks.

    Raises:
        OSError: it is not an open file, or cannot be locked for another reason.
    """
    end, asked = time.monotonic() + seconds, False
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in NO_LOCKS:
                return None
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        if time.monotonic() >= end:
            return False
        if not asked:
            waiting()
            asked = True
        time.sleep(0.05)
