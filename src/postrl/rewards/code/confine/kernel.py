"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEW = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_SECCOMP = 1, 4, 15, 22
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
LAST_CAPABILITY = 63
"""Above the last one of any kernel."""
CAP_SYS_ADMIN = 21

LINUX = sys.platform == "linux"
if os.name == "posix":
    libc = ctypes.CDLL(None, use_errno=True)
if LINUX:
    libc.syscall.restype = ctypes.c_long


def call(name: str, *arguments: object) -> int:
    """A function of the C library that returns -1 on error. Raises OSError naming the function."""
    result: int = getattr(libc, name)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def syscall(name: str, number: int, *arguments: object) -> int:
    """A system call by number. Raises OSError naming it."""
    result: int = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, value: object = 0, third: object = 0) -> int:
    return call("prctl", option, _word(value), _word(third), _word(0), _word(0))


def set_name(name: str) -> None:
    """What ps and top call this process."""
    if LINUX:
        prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()))


def no_new_privileges() -> None:
    """set-user-id programs and file capabilities give nothing any more, here and in every child."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent() -> None:
    """SIGKILL when the parent ends. The caller checks that it had not ended before."""
    prctl(PR_SET_PDEATHSIG, 9)


def has_capability(number: int) -> bool:
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False


def bound_capabilities() -> None:
    """No file that is executed can give a capability back."""
    for number in range(LAST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError:  # unknown to this kernel, or no right to: then no_new_privs has to do
            return


def drop_capabilities() -> None:
    version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
    call("capset", version_3, (ctypes.c_uint32 * 6)())


def _word(value: object) -> object:
    return ctypes.c_ulong(value) if isinstance(value, int) else value
