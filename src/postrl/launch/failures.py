"""Why a child of the run died: the error it left in the run folder, a full disk, else the end of its log."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

from postrl.errors import ChildError, PostrlError, error_from_wire, is_consequence, lost_connection, whose_file
from postrl.host.files import disk_is_full
from postrl.launch import logs
from postrl.launch.accelerate import FAILURES
from postrl.launch.process import ChildProcess, Supervisor, describe_exit
from postrl.run.folder import RunFolder

MEMORY = "SIGKILL from outside most often means that the machine ran out of memory; "
KILLED_AFTER = 20
"""Seconds after the first failure from which on a rank that SIGKILL ends was killed by torchrun."""
_FRAME = re.compile(r'^ *File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<function>.*)$')


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
    """What to raise about a child that died, and whether that says why: its own error, a full disk, a rank that ended.

    Of several ranks the first cause is named: when one ends, the others fail too, with the connection to it.
    """
    left = folder.take_error(child.name)
    if left and not is_consequence(left):
        return _of_child(child, left), True
    if disk_is_full(folder.path):  # its own last words may be missing then
        full = PostrlError(
            f"the disk that holds the run folder {folder.path} is full",
            hint="make room, or choose another --output-dir, and continue with --resume",
        )
        return full, True
    if ended := _ended_rank(child, folder, left):
        return ended, True
    if left:
        return _of_child(child, left), True
    return child.failure(), False


def _ended_rank(child: ChildProcess, folder: RunFolder, left: dict[str, Any] | None) -> ChildError | None:
    """The first rank that ended without an error of its own: by a signal, or by an exit of its own."""
    path = folder.logs / FAILURES
    try:
        failed = json.loads(path.read_text(encoding="utf-8"))
        first = min(int(one["time"]) for one in failed)
        # Those that torchrun ends are given half a minute; what it kills then is no cause.
        ranks = [(str(one["rank"]), int(one["exit_code"])) for one in failed if int(one["time"]) - first < KILLED_AFTER]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        path.unlink(missing_ok=True)
    silent = [(rank, code) for rank, code in ranks if code < 0 or left is None or rank != left.get("rank")]
    if child.name != "trainer" or not silent:
        return None
    ends_others = (-signal.SIGTERM, -signal.SIGABRT)  # with which torch ends ranks for the sake of another
    rank, code = min(silent, key=lambda one: one[1] in ends_others)
    name = describe_exit(code) if code >= 0 else signal.Signals(-code).name
    message = f"{child.name}: rank {rank} " + (f"was ended by {name}" if code < 0 else f"ended with {name}")
    hint = MEMORY if code == -signal.SIGKILL else ""
    if code < 0 and (line := _crashed_at(child)):
        message += f", {line}"
    elif code >= 0:
        message += " and left no error of its own"
    if left is not None:
        message += "\n(the other ranks then lost the connection to it)"
    return ChildError(message, hint=f"{hint}the whole log is {child.log_path}")


def _crashed_at(child: ChildProcess) -> str:
    """Of a crash in native code: whose line of Python called it. Python's fault handler writes the stack, deepest first."""
    lines = logs.read_end(child.log_path, start=child.log_start)
    fatal = next((i for i, line in enumerate(lines) if "Fatal Python error" in line), len(lines))
    stack = [match for line in lines[fatal:] if (match := _FRAME.match(line))]
    for match in stack:
        if (whose := whose_file(match["path"])) != "library":
            where = f"{match['path']}:{match['line']}, in {match['function']}"
            return f"in native code called from {'code of yours' if whose == 'yours' else 'postrl'} ({where})"
    return f"in native code called from {stack[0]['path']}:{stack[0]['line']}" if stack else ""


def _of_child(child: ChildProcess, left: dict[str, Any]) -> PostrlError:
    """The error that a child left behind; --debug shows the child's traceback with it."""
    error, log = error_from_wire(left), f"the traceback is in {child.log_path}"
    origin = left.get("origin") or {}
    who, at = child.name, origin.get("at") or ""
    if child.name == "trainer" and int(left.get("ranks") or 1) > 1:
        who = f"trainer (rank {left['rank']})"
    if type(error).__name__ == left["kind"]:
        error.hint = error.hint or f"see {child.log_path}"
    elif origin.get("of") == "yours":
        error.message = f"the {who} failed in code of yours with {error.message}\n    {at}"
        error.hint = log
    elif origin.get("of") == "memory":
        error.message = f"the {who} ran out of memory: {error.message}\n    {at}"
        error.hint = f"lower --max-tokens-per-microbatch or --num-generations; {log}"
    elif origin.get("of") in ("torch", "ranks"):
        what = "lost the other ranks" if lost_connection(left) else "failed inside torch"
        error.message = f"the {who} {what}: {error.message}\n    {at}"
        error.hint = f"{log}; CUDA_LAUNCH_BLOCKING=1 names the line of an error of a GPU"
    else:
        error.message = f"this is a bug in postrl: the {who} failed with {error.message}"
        error.hint = f"{log}; please report it with the output of `postrl env`"
    error.add_note(f"In the {who}:\n{left.get('traceback', '')}")
    return error
