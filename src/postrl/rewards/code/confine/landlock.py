"""Landlock (Linux 5.13): what of the file system a process may read and write, by no one's leave but its own."""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from . import kernel

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION, PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file rights that a version knows; from version 5 on they are the same."""
TCP = 0b11
"""Version 4: bind and connect."""
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
"""Version 6: neither reaches a process outside."""


def version() -> int:
    """The kernel's Landlock version (its ABI number), 0 where there is none."""
    try:
        return kernel.syscall("landlock_create_ruleset", CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)
    except OSError:
        return 0


def restrict(*, read: list[str], write: list[str]) -> None:
    """Allow reading (and executing) beneath `read`, everything beneath `write`, and nothing else of the file system.

    Paths that do not exist are left out. Needs no_new_privs. From version 4 on TCP is denied, from version 6 on
    signals and abstract sockets to the outside.

    Raises:
        OSError: the kernel has no Landlock.
    """
    abi = version()
    everything = RIGHTS[min(abi, 5)] if abi else 0
    attributes = struct.pack("QQQ", everything, TCP * (abi >= 4), ABSTRACT_SOCKETS_AND_SIGNALS * (abi >= 6))
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = kernel.syscall("landlock_create_ruleset", CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    for path in read:
        _allow(rules, path, READ)
    for path in write:
        _allow(rules, path, everything)
    kernel.syscall("landlock_restrict_self", RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(beneath).st_mode):
        rights &= ON_FILES
    rule = struct.pack("=Qi", rights & RIGHTS[min(version(), 5)], beneath)
    kernel.syscall("landlock_add_rule", ADD_RULE, rules, PATH_BENEATH, rule, 0)
    os.close(beneath)
