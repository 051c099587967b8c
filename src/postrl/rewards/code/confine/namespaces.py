"""Level strict: namespaces of its own, and in them a root directory that holds only what a program needs.

    keeper   `enter`: new user (unless root), process, network, IPC and host name namespaces for its children
    init     `build_root`: a mount namespace with a new root, read-only but for the program's folder

An ordinary user becomes root of a user namespace for the moment that this takes. Root itself needs none: the program
gets a user id of its own instead (`limits.private_user`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat

from . import kernel

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_RECURSIVE, AT_FDCWD = 0x8000, -100
MOUNT_SETATTR = 442
DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
HOME = "/box"
"""The program's folder as it sees it: a file system in memory that ends with its namespace."""
WRITABLE = [HOME, "/dev/shm", *(f"/dev/{name}" for name in DEVICES)]
SHARED_MEMORY = 64 << 20


def enter() -> None:
    """Unshare from the rest of the machine. Raises OSError naming what was refused."""
    flags = kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if kernel.has_capability(kernel.CAP_SYS_ADMIN):
        _unshare("process, network and IPC namespaces", flags)
        return
    uid, gid = os.geteuid(), os.getegid()
    _unshare("user, process, network and IPC namespaces", flags | kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def build_root(at: str, readable: list[str], *, size: int, files: int, owner: tuple[int, int]) -> None:
    """Replace `/` by a new root mounted at the folder `at`, and go to the empty folder HOME in it.

    Args:
        readable: absolute paths that exist in the new root as they are outside, read-only. Missing ones are left out.
        size: bytes that all files in HOME may take.
        files: how many there may be.
        owner: user and group of HOME.
    A container that hides parts of its own /proc does not allow a new one; then there is none.
    """
    _unshare("mount namespace", kernel.CLONE_NEWNS)
    _mount("", "/", "", MS_REC | MS_PRIVATE)
    _mount("tmpfs", at, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in readable:
        _show(path, at)
    for folder in ("proc", "dev/shm", HOME[1:]):
        os.makedirs(f"{at}/{folder}", mode=0o755)
    for name in DEVICES:
        _touch(f"{at}/dev/{name}")
    for name, target in LINKS.items():
        os.symlink(target, f"{at}/dev/{name}")
    _make_read_only(at)
    for name in DEVICES:
        _mount(f"/dev/{name}", f"{at}/dev/{name}", "", MS_BIND)
    owned = f"mode=700,uid={owner[0]},gid={owner[1]},nr_inodes={files}"
    _mount("tmpfs", at + HOME, "tmpfs", MS_NOSUID | MS_NODEV, f"{owned},size={size}")
    _mount("tmpfs", f"{at}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, f"{owned},size={SHARED_MEMORY}")
    with contextlib.suppress(OSError):
        _mount("proc", f"{at}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    _make_root(at)


def _show(path: str, at: str) -> None:
    """Make a path of the old root visible in the new one: links as links, folders and files by a bind mount."""
    target = at + path
    if os.path.lexists(target) or not os.path.exists(path):
        return
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if stat.S_ISDIR(os.stat(path).st_mode):
        os.mkdir(target, 0o755)
    else:
        _touch(target)
    _mount(path, target, "", MS_BIND | MS_REC)


def _make_read_only(at: str) -> None:
    """Everything mounted so far, with what was mounted below it."""
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY | MS_NOSUID | MS_NODEV)  # the first flags have the same values
    kernel.syscall(
        "mount_setattr", MOUNT_SETATTR, AT_FDCWD, os.fsencode(at), AT_RECURSIVE, attributes, ctypes.c_size_t(32)
    )


def _make_root(at: str) -> None:
    os.chdir(at)
    kernel.call("pivot_root", b".", b".")
    kernel.call("umount2", b".", MNT_DETACH)
    os.chdir(HOME)


def _unshare(what: str, flags: int) -> None:
    try:
        kernel.call("unshare", flags)
    except OSError as error:
        raise OSError(error.errno, f"no new {what}: {os.strerror(error.errno or 0)}") from None


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    texts = (os.fsencode(source), os.fsencode(target), os.fsencode(kind))
    try:
        kernel.call("mount", *texts, ctypes.c_ulong(flags), os.fsencode(options))
    except OSError as error:
        raise OSError(error.errno, f"mount at {target}: {os.strerror(error.errno or 0)}") from None


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
