"""Python for child processes: none of them imports from the working folder, and all of them write UTF-8.

A folder in which people work holds rewards named math.py, notes named types.py, and the folders wandb/ and datasets/ that
tools leave there. Python puts that folder at the head of the search path, under `-m`, under `-c` and for an empty entry of
PYTHONPATH, and multiprocessing hands it on. Only the process of a reward function looks there, and there last.

    [*python(), "-m", "postrl", "worker"]       with the environment {**os.environ, **for_children()}
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping

SAFE, SEARCH, ENCODING, MODE = "PYTHONSAFEPATH", "PYTHONPATH", "PYTHONIOENCODING", "PYTHONUTF8"
BEFORE = {name: f"POSTRL_GIVEN_{name}" for name in (SAFE, SEARCH, ENCODING, MODE)}
"""Variable -> the one that keeps what the user had given."""
OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
"""The folder that postrl itself is imported from."""


def python() -> list[str]:
    """The interpreter of a child, as the head of its argv."""
    return [sys.executable, "-P"]


def for_children() -> dict[str, str | None]:
    """Changes of the environment (None: remove) that keep a child, and what it starts, off the working folder, and to UTF-8."""
    given = {name: os.environ.get(before, os.environ.get(name)) for name, before in BEFORE.items()}
    searched = os.environ.get(SEARCH, "").split(os.pathsep)
    kept = os.pathsep.join(entry for entry in searched if entry and not is_working_folder(entry))
    changes: dict[str, str | None] = {SAFE: "1", SEARCH: kept or None, ENCODING: "utf-8:backslashreplace"}
    if sys.getfilesystemencoding().lower() == "utf-8":  # else names of files would mean others there
        changes[MODE] = "1"
    return changes | {BEFORE[name]: value or "" for name, value in given.items()}


def child_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment with `for_children` and then `changes` (None: remove), for subprocess."""
    merged: dict[str, str | None] = {**os.environ, **for_children(), **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


def as_the_user_gave_it(environment: MutableMapping[str, str]) -> None:
    """Take `for_children` back, for the programs that a user's own code starts."""
    for name, before in BEFORE.items():
        if before in environment:
            given = environment.pop(before)
            environment.pop(name, None)
            if given:
                environment[name] = given


def leave_working_folder() -> None:
    """Take the working folder from this process's own path, where `python -m` or PYTHONPATH has put it before Python's library.

    For the command line, as early as may be: what Python itself imports before it is Python's affair.
    """
    library = os.path.dirname(os.__file__)
    ahead = sys.path.index(library) if library in sys.path else 0
    sys.path[:ahead] = [entry for entry in sys.path[:ahead] if not is_working_folder(entry)]


def is_working_folder(entry: str) -> bool:
    """Whether an entry of the search path is the working folder, and postrl does not happen to lie there."""
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # removed meanwhile
        return entry in ("", ".")
    return os.path.realpath(entry) == here != OURS
