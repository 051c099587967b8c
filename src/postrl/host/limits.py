"""What a machine may lack: a short and writable TMPDIR, a home that can be written, open files. Handled, or named."""

from __future__ import annotations

import atexit
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from postrl.errors import UsageError

Say = Callable[[str], None]

LONGEST_TMPDIR = 64
"""Bytes of TMPDIR up to which the sockets that we, multiprocessing and vLLM make in it have names that Unix allows (107)."""
SHORT = ("/tmp", "/var/tmp", "/dev/shm")
MOST_FILES = 65536
"""Open files that a process of a run is allowed, where the hard limit does not say less."""
OTHER_FILES = 192
"""Open files of a process beside its connections: libraries, logs, pipes to reward processes."""
MOST_CONNECTIONS = 512
"""Requests at one server at the same time."""


def settle(say: Say, *, servers: int = 0) -> None:
    """Prepare this process and its children for what is unusual on this machine; `say` gets a line for each thing.

    Args:
        servers: vLLM servers of the run.

    Raises:
        UsageError: there is no folder for temporary files.
    """
    settle_temporary(say)
    settle_caches(say)
    settle_files(say, servers)


def settle_temporary(say: Say) -> None:
    """A TMPDIR that cannot be used gives way to the one that Python falls back to; one that is too long gets a short name."""
    given = os.environ.get("TMPDIR")
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UsageError(
            f"no folder for temporary files can be written: TMPDIR is {given or 'not set'}, and neither can /tmp be",
            hint="set TMPDIR to a folder that exists and can be written",
        ) from error
    if given and not _is_writable(Path(given)):
        what = "cannot be written" if Path(given).exists() else "does not exist"
        say(f"TMPDIR is {given}, which {what}: temporary files go to {folder}")
        os.environ["TMPDIR"] = folder
    if len(os.fsencode(folder)) > LONGEST_TMPDIR:
        os.environ["TMPDIR"] = tempfile.tempdir = _short_name(folder)


def _short_name(folder: str) -> str:
    """A link to a folder, removed with this process: what is written there stays where the user wants it."""
    for place in filter(None, (os.environ.get("XDG_RUNTIME_DIR"), *SHORT)):
        if len(os.fsencode(place)) > LONGEST_TMPDIR // 2:
            continue
        try:
            holder = tempfile.mkdtemp(prefix="postrl-", dir=place)
        except OSError:
            continue
        link = os.path.join(holder, "tmp")
        os.symlink(os.path.abspath(folder), link)
        atexit.register(_remove, holder, os.getpid())
        return link
    raise UsageError(
        f"TMPDIR is {folder}, too long for the names of sockets in it, and {', '.join(SHORT)} cannot be written",
        hint=f"set TMPDIR to a folder with a path of at most {LONGEST_TMPDIR} bytes",
    )


def _remove(holder: str, process: int) -> None:
    if os.getpid() == process:  # not in what was forked from it
        if tempfile.tempdir == os.path.join(holder, "tmp"):
            tempfile.tempdir = None
        shutil.rmtree(holder, ignore_errors=True)


def settle_caches(say: Say) -> None:
    """Where the home folder cannot be written, caches go to TMPDIR; what the hub's cache holds already is still read."""
    home = os.path.expanduser("~")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    if os.path.isabs(cache) and _may_make(Path(cache)):
        return
    # realpath: by a short name it would be gone with this process
    place = os.path.join(os.path.realpath(tempfile.gettempdir()), f"postrl-cache-{os.getuid()}")
    os.makedirs(place, mode=0o700, exist_ok=True)
    found = os.lstat(place)
    if found.st_uid != os.getuid() or os.path.islink(place):
        raise UsageError(f"{place} belongs to someone else", hint="set XDG_CACHE_HOME to a folder of your own")
    hub = os.path.join(cache, "huggingface")
    if os.path.isdir(hub):
        os.environ.setdefault("HF_HOME", hub)
    os.environ["XDG_CACHE_HOME"] = place
    for variable in ("TRITON_HOME", "FLASHINFER_WORKSPACE_BASE", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "MPLCONFIGDIR"):
        os.environ.setdefault(variable, place)
    if not os.path.isabs(home):
        os.environ["HOME"] = place
    say(f"{cache} cannot be written: caches go to {place}; set XDG_CACHE_HOME (or HOME) to keep them elsewhere")


def settle_files(say: Say, servers: int = 0) -> None:
    """Raise the limit of open files as far as it may be, and say how many would be wanted where that is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    wanted = OTHER_FILES + MOST_CONNECTIONS * servers
    if servers and soft != resource.RLIM_INFINITY and soft < wanted:
        say(
            f"at most {soft} files may be open here (ulimit -Hn): each of {servers} server(s) gets {connections(servers)} "
            f"requests at a time instead of {MOST_CONNECTIONS}; {wanted} files would do"
        )


def connections(servers: int) -> int:
    """Requests that one of so many servers may have at the same time, as the limit of open files allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(8, min(MOST_CONNECTIONS, (soft - OTHER_FILES) // max(1, servers)))


def _is_writable(folder: Path) -> bool:
    """Whether a file can be made there; os.access says yes to root on file systems that take none."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _may_make(folder: Path) -> bool:
    """Whether a folder is there, or can be made, and written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return _is_writable(folder)
