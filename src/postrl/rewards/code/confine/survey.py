"""Which mechanisms work here, each tried in a process of its own. For `postrl env`."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable

from . import kernel, landlock, limits, seccomp


def main() -> None:
    """One line each on standard output: mechanism, yes or no, note, separated by tabs."""
    for name, attempt in MECHANISMS.items():
        works, note = _tried(attempt)
        sys.stdout.write(f"{name}\t{'yes' if works else 'no'}\t{note}\n")
        sys.stdout.flush()


def _tried(attempt: Callable[[], str]) -> tuple[bool, str]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            works, note = b"+", attempt()
        except Exception as error:  # no function of that name, refused, or not on this system
            works, note = b"-", str(error)
        os.write(write, works + note.replace("\t", " ").replace("\n", " ").encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text[:1] == "+", text[1:] if text else "the attempt was killed"


def _rlimits() -> str:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
    return "memory, processor time, files" + (", not the number of root's processes" if os.getuid() == 0 else "")


def _namespace(flag: int) -> Callable[[], str]:
    def attempt() -> str:
        root = kernel.has_capability(kernel.CAP_SYS_ADMIN)
        kernel.call("unshare", flag | (0 if root else kernel.CLONE_NEWUSER))
        return "as root" if root else "with a user namespace"

    return attempt


def _user_namespace() -> str:
    kernel.call("unshare", kernel.CLONE_NEWUSER)
    return ""


def _user_drop() -> str:
    uid = limits.private_user(os.getpid())
    limits.become(uid)
    return f"a user id for each program, from {limits.PRIVATE_USERS} on" if uid != limits.NOBODY else "only nobody"


def _landlock() -> str:
    version = landlock.version()
    kernel.no_new_privileges()
    landlock.restrict(read=[], write=[])
    return f"version {version}"


def _seccomp() -> str:
    if not seccomp.supported():
        raise OSError(f"no table for {os.uname().machine}")
    kernel.no_new_privileges()
    seccomp.restrict(fork=False, threads=False, namespaces=False, attributes=False)
    return ""


def _subreaper() -> str:
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    return ""


def _no_new_privileges() -> str:
    kernel.no_new_privileges()
    return ""


def _pidfd() -> str:
    os.pidfd_open(os.getpid())
    return ""


MECHANISMS = {
    "setrlimit": _rlimits,
    "user namespace": _user_namespace,
    "process namespace": _namespace(kernel.CLONE_NEWPID),
    "network namespace": _namespace(kernel.CLONE_NEWNET),
    "IPC namespace": _namespace(kernel.CLONE_NEWIPC),
    "mount namespace": _namespace(kernel.CLONE_NEWNS),
    "uid drop": _user_drop,
    "Landlock": _landlock,
    "seccomp": _seccomp,
    "no_new_privs": _no_new_privileges,
    "subreaper": _subreaper,
    "pidfd": _pidfd,
}
