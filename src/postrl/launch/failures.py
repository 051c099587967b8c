"""Why a child of the run died: the error it left in the run folder, a full disk, else the end of its log."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from postrl.errors import ChildError, PostrlError, error_from_wire
from postrl.launch.process import ChildProcess, Supervisor
from postrl.run_folder import RunFolder

MEMORY = "SIGKILL from outside most often means that the machine ran out of memory; "
_KILLED = re.compile(r"rank +: (?P<rank>\d+).*\n.*exitcode +: -\d+ .*\n.*\n.*Signal \d+ \((?P<signal>SIG\w+)\)")


def check_children(children: Supervisor, folder: RunFolder) -> None:
    """Raise the error of a child that died; of several, of one that says why."""
    try:
        children.check()
    except ChildError as error:
        for child in children.children:
            if child.poll() is not None:
                said, says_why = error_of(child, folder)
                if says_why:
                    raise said from error
        raise


def error_of(child: ChildProcess, folder: RunFolder) -> tuple[PostrlError, bool]:
    """What to raise about a child that died, and whether that says why: its own error, a full disk, a killed rank."""
    if left := folder.take_error(child.name):
        return _of_child(child, left), True
    if disk_is_full(folder.path):
        full = PostrlError(
            f"the disk that holds the run folder {folder.path} is full",
            hint="make room, or choose another --output-dir, and continue with --resume",
        )
        return full, True
    if killed := _killed_rank(child):
        return killed, True
    return child.failure(), False


def _killed_rank(child: ChildProcess) -> ChildError | None:
    """A trainer of which a signal ended a rank: torch's launcher says so at length, and exits with 1."""
    found = _KILLED.search("\n".join(child.log_tail(40)))
    if not found or child.poll() != 1:
        return None
    return ChildError(
        f"{child.name}: rank {found['rank']} was ended by {found['signal']}",
        hint=f"{MEMORY if found['signal'] == 'SIGKILL' else ''}the whole log is {child.log_path}",
    )


def _of_child(child: ChildProcess, left: dict[str, Any]) -> PostrlError:
    """The error that a child left behind; --debug shows the child's traceback with it."""
    error = error_from_wire(left)
    if type(error).__name__ != left["kind"]:
        error.message = f"this is a bug in postrl: the {child.name} failed with {error.message}"
        error.hint = f"the traceback is in {child.log_path}; please report it with the output of `postrl env`"
    elif not error.hint:
        error.hint = f"see {child.log_path}"
    error.add_note(f"In the {child.name}:\n{left.get('traceback', '')}")
    return error


def disk_is_full(path: Path) -> bool:
    """Whether not even a small file has room there: a child's own last words may be missing then."""
    try:
        return shutil.disk_usage(path).free < 64 << 10
    except OSError:
        return False
