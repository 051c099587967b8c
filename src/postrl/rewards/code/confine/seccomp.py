"""The system call filter: what a candidate has no honest use for, or could harm others with, fails with EPERM.

A list of what is denied rather than of what is allowed, since numpy and its relatives use much of the kernel. Calls
newer than `LAST_KNOWN` and those whose arguments a filter cannot see (clone3, openat2, io_uring) do not exist (ENOSYS),
for which the C library has a fallback. A process of another architecture (32-bit code) is killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

from . import kernel

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
LAST_KNOWN = 462

NUMBERS: dict[str, tuple[int | None, int | None]] = {  # name: (x86_64, aarch64)
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chmod": (90, None),
    "chown": (92, None), "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112),
    "clone": (56, 220), "clone3": (435, 435), "creat": (85, None), "delete_module": (176, 106),
    "fanotify_init": (300, 262), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "fchown": (93, 55), "fchownat": (260, 54), "fcntl": (72, 25), "finit_module": (313, 273), "fork": (57, None),
    "fremovexattr": (199, 16), "fsconfig": (431, 431), "fsetxattr": (190, 7), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "futimesat": (261, None), "init_module": (175, 105),
    "inotify_add_watch": (254, 27), "inotify_init": (253, None), "inotify_init1": (294, 26), "io_setup": (206, 0),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29),
    "ioperm": (173, None), "iopl": (172, None), "ioprio_set": (251, 30), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129),
    "lchown": (94, None), "lookup_dcookie": (212, 18), "lremovexattr": (198, 15), "lsetxattr": (189, 6),
    "mbind": (237, 235), "memfd_create": (319, 279), "memfd_secret": (447, 447), "migrate_pages": (256, 238),
    "modify_ldt": (154, None), "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "move_pages": (279, 239), "mq_getsetattr": (245, 185), "mq_notify": (244, 184),
    "mq_open": (240, 180), "mq_timedreceive": (243, 183), "mq_timedsend": (242, 182), "mq_unlink": (241, 181),
    "msgctl": (71, 187), "msgget": (68, 186), "msgrcv": (70, 188), "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264), "nfsservctl": (180, 42), "open": (2, None), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "openat": (257, 56), "openat2": (437, 437), "perf_event_open": (298, 241),
    "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41), "prctl": (157, 167),
    "prlimit64": (302, 261), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "reboot": (169, 142), "removexattr": (197, 14), "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "semctl": (66, 191),
    "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192),
    "set_mempolicy": (238, 237), "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268),
    "setpriority": (141, 140), "settimeofday": (164, 170), "setxattr": (188, 5), "shmat": (30, 196),
    "shmctl": (31, 195), "shmdt": (67, 197), "shmget": (29, 194),
    "socket": (41, 198), "socketpair": (53, 199), "swapoff": (168, 225), "swapon": (167, 224), "sync": (162, 81),
    "syncfs": (306, 267), "sysfs": (139, None), "syslog": (103, 116), "tgkill": (234, 131), "tkill": (200, 130),
    "truncate": (76, 45), "umount2": (166, 39), "unshare": (272, 97), "uselib": (134, None),
    "userfaultfd": (323, 282), "ustat": (136, None), "utime": (132, None), "utimensat": (280, 88),
    "utimes": (235, None), "vfork": (58, None), "vhangup": (153, 58),
}  # fmt: skip

NEVER = """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig
    fsmount fsopen fspick init_module inotify_add_watch inotify_init inotify_init1 io_setup ioperm iopl kcmp
    kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages modify_ldt mount mount_setattr move_mount
    move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open personality pidfd_getfd
    pivot_root process_madvise process_mrelease process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot
    request_key set_mempolicy setdomainname sethostname setns settimeofday socket swapoff swapon sync syncfs sysfs
    syslog umount2 unshare uselib userfaultfd ustat vhangup
"""
"""The network is among them: `socket`. A pair of connected local sockets (asyncio needs one) is allowed."""

MISSING = "clone3 io_uring_enter io_uring_register io_uring_setup memfd_create memfd_secret openat2"
"""memfd: memory outside the address space that RLIMIT_AS counts."""

WITHOUT_NAMESPACES = """
    fork ioprio_set mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd
    pidfd_send_signal semctl semget semop semtimedop shmat shmctl shmdt shmget vfork
"""
"""Where no namespace contains them: new processes, and System V and POSIX objects, which outlive their maker and which
whoever guesses their number can use."""

SIGNALS = "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open"
OF_A_PROCESS = "prlimit64 sched_setaffinity sched_setscheduler sched_setparam sched_setattr"
"""Limits and scheduling of the process in the first argument; 0 is the caller itself."""
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
INIT = 1

ATTRIBUTES = """
    chmod chown fchmod fchmodat fchmodat2 fchown fchownat fremovexattr fsetxattr futimesat lchown lremovexattr
    lsetxattr removexattr setxattr truncate utime utimensat utimes
"""
"""Changes to files that Landlock does not see (truncate: before its version 3)."""

CLONE_THREAD = 0x00010000
AF_UNIX = 1
TIOCSTI, TIOCLINUX, TIOCSCTTY, FIOSETOWN, SIOCSPGRP = 0x5412, 0x541C, 0x540E, 0x8901, 0x8902
F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE = 8, 10, 15, 1024
PR_SCHED_CORE = 62
ALL = 0xFFFFFFFF

LOAD, JUMP_EQUAL, JUMP_GREATER, AND, RETURN = 0x20, 0x15, 0x25, 0x54, 0x06
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
OFFSET_NUMBER, OFFSET_ARCHITECTURE, OFFSET_ARGUMENTS = 0, 4, 16


def supported() -> bool:
    """Whether there is a table for this machine (64-bit x86 or ARM)."""
    return os.uname().machine in ARCHITECTURES and sys.maxsize > 2**32


class Filter:
    """A filter under construction: instructions of the classic Berkeley packet filter, one rule after the other."""

    def __init__(self) -> None:
        self.column, architecture = ARCHITECTURES[os.uname().machine]
        self.code = [
            _op(LOAD, OFFSET_ARCHITECTURE),
            _op(JUMP_EQUAL, architecture, 1, 0),
            _op(RETURN, KILL_PROCESS),
            _op(LOAD, OFFSET_NUMBER),
            _op(JUMP_GREATER, LAST_KNOWN, 0, 1),
            _op(RETURN, ERRNO | errno.ENOSYS),
        ]

    def deny(self, names: str, code: int = errno.EPERM) -> None:
        for name in names.split():
            number = NUMBERS[name][self.column]
            if number is not None:
                self.code += [_op(JUMP_EQUAL, number, 0, 1), _op(RETURN, ERRNO | code)]

    def deny_if(self, names: str, argument: int, mask: int, value: int, equal: bool = True) -> None:
        """Deny when the low half of an argument, masked, equals the value; with `equal=False`, when it differs."""
        for name in names.split():
            number = NUMBERS[name][self.column]
            if number is not None:
                self.code += [
                    _op(JUMP_EQUAL, number, 0, 5),
                    _op(LOAD, OFFSET_ARGUMENTS + 8 * argument),
                    _op(AND, mask),
                    _op(JUMP_EQUAL, value, *((0, 1) if equal else (1, 0))),
                    _op(RETURN, ERRNO | errno.EPERM),
                    _op(LOAD, OFFSET_NUMBER),
                ]

    def deny_unless(self, names: str, argument: int, values: tuple[int, ...]) -> None:
        """Deny when the low half of an argument is not one of the values."""
        for name in names.split():
            number = NUMBERS[name][self.column]
            if number is not None:
                self.code += [
                    _op(JUMP_EQUAL, number, 0, len(values) + 3),
                    _op(LOAD, OFFSET_ARGUMENTS + 8 * argument),
                    *(_op(JUMP_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)),
                    _op(RETURN, ERRNO | errno.EPERM),
                    _op(LOAD, OFFSET_NUMBER),
                ]

    def install(self) -> None:
        """For this thread and all it starts, for good. Needs no_new_privs."""
        code = b"".join([*self.code, _op(RETURN, ALLOW)])
        buffer = ctypes.create_string_buffer(code)
        program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
        kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.c_char_p(program))


def restrict(*, namespaces: bool, fork: bool, threads: bool, attributes: bool) -> None:
    """Install the filter for a candidate's process.

    Args:
        namespaces: it has its own process and IPC namespaces, so that signals and shared objects stay inside.
        fork: it may start processes.
        threads: it may start threads.
        attributes: it may change modes, owners and times of files.
    """
    rules = Filter()
    rules.deny(NEVER)
    rules.deny(MISSING, errno.ENOSYS)
    rules.deny_if("socketpair", 0, ALL, AF_UNIX, equal=False)
    for request in (TIOCSTI, TIOCLINUX, TIOCSCTTY, FIOSETOWN, SIOCSPGRP):
        rules.deny_if("ioctl", 1, ALL, request)
    rules.deny_if("clone", 0, kernel.CLONE_NEW, 0, equal=False)
    if not threads:
        rules.deny_if("clone", 0, CLONE_THREAD, CLONE_THREAD)
    if not fork:
        rules.deny("fork vfork")
        rules.deny_if("clone", 0, CLONE_THREAD, 0)
    rules.deny_if("prctl", 0, ALL, PR_SCHED_CORE)
    if namespaces:
        _leave_init_alone(rules)
    else:
        _leave_others_alone(rules)
    if not attributes:
        rules.deny(ATTRIBUTES)
        truncate_without_writing = os.O_TRUNC
        rules.deny_if("open", 1, os.O_ACCMODE | os.O_TRUNC, truncate_without_writing)
        rules.deny_if("openat", 2, os.O_ACCMODE | os.O_TRUNC, truncate_without_writing)
    rules.install()


def _leave_others_alone(rules: Filter) -> None:
    """Signals, limits and priorities only for the process itself."""
    rules.deny(WITHOUT_NAMESPACES)
    rules.deny_unless(SIGNALS, 0, (os.getpid(),))
    for command in (F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE):
        rules.deny_if("fcntl", 1, ALL, command)
    rules.deny_unless(OF_A_PROCESS, 0, (0, os.getpid()))
    rules.deny_unless("setpriority", 1, (0, os.getpid()))
    rules.deny_unless("setpriority", 0, (PRIO_PROCESS,))


def _leave_init_alone(rules: Filter) -> None:
    """Init of the process namespace, which holds the program to its limits and has its user. Signals from inside do not
    reach it; limits, priorities and scheduling would."""
    rules.deny_if(f"{SIGNALS} {OF_A_PROCESS}", 0, ALL, INIT)
    for call, one_process in (("setpriority", PRIO_PROCESS), ("ioprio_set", IOPRIO_WHO_PROCESS)):
        rules.deny_if(call, 1, ALL, INIT)
        rules.deny_unless(call, 0, (one_process,))  # all processes of a user or a group: init is among them


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
