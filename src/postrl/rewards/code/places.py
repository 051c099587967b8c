"""What a sandboxed program sees of this machine's files and environment, and the folders it runs in."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterable

from postrl.rewards.code.confine import kernel, namespaces, tree

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONINTMAXSTRDIGITS": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
SYSTEM = [
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"),
    *("/etc/group", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/timezone"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf"),
]
"""Read-only: programs, libraries and the few settings that they read. No other user's data, no /etc/shadow."""
STRICT_HOME = namespaces.HOME
PREFIX = "postrl-box-"
STALE = 60.0
"""Seconds after which a folder that no process holds was left by one that was killed together with its keeper."""
CAP_CHOWN, CAP_SETGID, CAP_SETUID = 0, 6, 7


def environment(home: str) -> dict[str, str]:
    """All of a program's environment. Nothing of ours but where this interpreter may find its shared libraries."""
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {**ENVIRONMENT, **libraries, "HOME": home, "TMPDIR": home}


@functools.cache
def packages() -> list[str]:
    """The site-packages folders of this interpreter."""
    return [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]


@functools.cache
def readable() -> tuple[str, ...]:
    """The system and this interpreter with its packages: paths without links in them, and the links on the way."""
    prefixes = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    files = [os.path.dirname(os.__file__), os.path.dirname(os.path.realpath(sys.executable))]
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return visible([*SYSTEM, *prefixes, *files, os.path.dirname(sys.executable), *packages(), *libraries])


def visible(paths: Iterable[str]) -> tuple[str, ...]:
    """Existing paths in the order in which a new root can show them: folders from the outside in, then links."""
    found = {part for path in paths if os.path.isabs(path) and os.path.exists(path) for part in _chain(path)} - {"/"}
    return tuple(sorted(found, key=lambda path: (os.path.islink(path), len(path), path)))


def _chain(path: str, depth: int = 0) -> list[str]:
    """The links on the way to a path, each itself without links before its last part, and where they lead."""
    current = "/"
    parts = [part for part in path.split("/") if part]
    for i, part in enumerate(parts):
        current = os.path.join(current, part)
        if os.path.islink(current) and depth < 40:
            target = os.path.join(os.path.dirname(current), os.readlink(current), *parts[i + 1 :])
            return [current, *_chain(os.path.normpath(target), depth + 1)]
    return [current]


def may_drop_user(level: str) -> bool:
    """Whether we are root, may become anybody, and anybody can read this interpreter, its packages and folders in TMPDIR.

    At level strict the folders above them do not matter: the private root has its own.
    """
    return kernel.LINUX and os.geteuid() == 0 and _anybody_can_run(level == "strict", tempfile.gettempdir())


@functools.cache
def _anybody_can_run(private_root: bool, temporary: str) -> bool:
    if not all(kernel.has_capability(number) for number in (CAP_CHOWN, CAP_SETGID, CAP_SETUID)):
        return False
    needed = [sys.executable, os.__file__, *packages(), __file__, *([] if private_root else [temporary])]
    return all(_readable_by_anybody(os.path.realpath(path), above=not private_root) for path in needed)


def _readable_by_anybody(path: str, *, above: bool) -> bool:
    mode = os.stat(path).st_mode
    if not mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH):
        return False
    return not above or path == "/" or _readable_by_anybody(os.path.dirname(path), above=True)


def new_folder() -> tuple[str, int]:
    """A fresh folder for a program, and a descriptor that marks it as in use while any process holds it."""
    import fcntl

    folder = tempfile.mkdtemp(prefix=PREFIX)
    lock = os.open(folder, tree.FOLDER)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, lock


def sweep() -> None:
    """Remove folders of ours whose keepers were killed: those that no process holds any more."""
    import fcntl

    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):  # another user's, in use, or gone meanwhile
            found = os.lstat(path) if name.startswith(PREFIX) else None
            if found is None or found.st_uid != os.geteuid() or time.time() - found.st_ctime < STALE:
                continue
            lock = os.open(path, tree.FOLDER)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                tree.remove(path)
            finally:
                os.close(lock)
