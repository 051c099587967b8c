"""From an unconfined process to the program: the steps of each level, in order, and what no kernel limit can hold."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal

from . import channel, kernel, landlock, limits, namespaces, seccomp, tree

SAMPLE = 0.1
"""Seconds between two looks at the memory of many processes, the number of threads, the size of a folder."""
DEVICES = ["/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]
PROC = ["/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/sys/devices/system/cpu"]

TYPE_CHECKING = False  # for type checkers, without the time that importing `typing` takes
if TYPE_CHECKING:
    from .channel import Job


def start(job: Job, up: int) -> int:
    """Start the program's process. Returns 0 in it, confined; in the keeper the id of its child.

    Raises:
        OSError: something of the confinement failed, in whichever process.
    """
    if job["level"] == "strict":
        return _start_in_namespaces(job, up)
    if kernel.LINUX:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    uid = limits.private_user(keeper) if job["drop"] else None
    if uid is not None:
        os.chown(job["folder"], uid, uid)
    child = os.fork()
    if child == 0:
        _confine(job, keeper, uid)
        _enter(job, up)
    elif kernel.LINUX:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return child


# -- strict ------------------------------------------------------------------------------------------------------------


def _start_in_namespaces(job: Job, up: int) -> int:
    uid = limits.private_user(os.getpid()) if job["drop"] and kernel.has_capability(kernel.CAP_SYS_ADMIN) else None
    namespaces.enter()
    keeper = os.pidfd_open(os.getpid())
    child = os.fork()
    if child:
        os.close(keeper)
        return child
    _confine_init(job, uid)
    kernel.die_with_parent()  # not earlier: a change of user forgets it
    if _ends(keeper, 0):
        os._exit(1)
    os.close(keeper)
    program = os.fork()
    seccomp.restrict(fork=bool(os.getuid()) and not program, threads=job["threads"], namespaces=True, attributes=True)
    if program:
        _be_init(job, up, program)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # its own /proc/self is its own again
    others = 1 if uid else 2  # of this user in these namespaces: init, and the keeper unless that is root
    limits.apply({**job, "processes": job["processes"] + others})
    os.setsid()
    _enter(job, up)
    return 0


def _confine_init(job: Job, uid: int | None) -> None:
    """Everything but the filter and the limits. The program gets it by inheritance."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a process 1 receives only what it has a handler for
    _prefer_for_oom()
    owner = (os.getuid(), os.getgid()) if uid is None else (uid, uid)
    namespaces.build_root(job["folder"], job["readable"], size=job["disk"], files=job["files"], owner=owner)
    kernel.no_new_privileges()
    kernel.bound_capabilities()
    if uid is not None:
        limits.become(uid)
    kernel.drop_capabilities()
    if landlock.version():
        landlock.restrict(read=["/"], write=namespaces.WRITABLE)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # the program cannot look into init


def _be_init(job: Job, up: int, program: int) -> None:
    """Reap what ends and hold the memory of all processes together to the limit. Never returns.

    What fails here ends the program, too; whether that had begun decides whose failure it is (`contained.Outcome`).
    """
    try:
        _watch(job, up, program)
    except Exception as error:
        channel.say(up, f"error of init: {type(error).__name__}: {error}")
        os._exit(1)  # the kernel ends all processes of the namespace with it


def _watch(job: Job, up: int, program: int) -> None:
    for fd in (0, 1, 2, *job["pass_fds"]):
        os.close(fd)
    watched = os.pidfd_open(program)
    while True:
        _ends(watched, SAMPLE)
        pid = 1
        while pid:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == program:
                channel.say(up, channel.end_line(status, usage))
                os._exit(0)
        if limit := _passed_together(job):
            channel.say(up, f"limit {limit}")
            os.kill(-1, signal.SIGKILL)


def _passed_together(job: Job) -> str | None:
    """The limit that all processes of this namespace together have passed."""
    pages = tasks = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        if name == "1":  # init
            continue
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{name}/statm", encoding="utf-8") as statm,
        ):  # OSError: ended meanwhile
            _, resident, shared = statm.read().split()[:3]
            pages += int(resident) - int(shared)
            tasks += os.stat(f"/proc/{name}/task").st_nlink - 2
    if tasks > job["processes"]:  # the kernel counts them, too, but not those of user 0
        return "processes"
    return "memory" if pages * resource.getpagesize() > job["memory"] else None


def _ends(pidfd: int, within: float) -> bool:
    """Whether a process ends within so many seconds."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(1000 * within))


# -- landlock and basic ------------------------------------------------------------------------------------------------


def _confine(job: Job, keeper: int, uid: int | None) -> None:
    os.setsid()
    if kernel.LINUX:
        _prefer_for_oom()
        kernel.no_new_privileges()
        kernel.bound_capabilities()
    if uid is not None:
        limits.become(uid)
    if kernel.LINUX:
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        kernel.die_with_parent()  # not earlier: a change of user forgets it
    if os.getppid() != keeper:
        os._exit(1)
    if job["level"] == "landlock":
        read = [*job["readable"], *DEVICES, *PROC, f"/proc/{os.getpid()}"]
        landlock.restrict(read=read, write=[job["folder"], os.devnull])
    if job["filter"]:  # no process can be started, threads are counted by the keeper: RLIMIT_NPROC would count others
        limits.apply({**job, "processes": None})
        attributes = job["level"] == "basic"
        seccomp.restrict(fork=False, threads=job["threads"], namespaces=False, attributes=attributes)
    else:
        counted = limits.processes_of_this_user() + job["processes"] if kernel.LINUX else None
        limits.apply({**job, "processes": counted})


def passed_limit(job: Job, child: int) -> str | None:
    """The limit that the program has passed and that the kernel does not hold it to."""
    try:
        threads = os.stat(f"/proc/{child}/task").st_nlink - 2
    except OSError:  # it has just ended, or there is no /proc
        threads = 0
    if threads > job["processes"]:
        return "processes"
    size, files = tree.measure(job["folder"], job["files"])
    return "disk" if size > job["disk"] or files >= job["files"] else None


# -- both --------------------------------------------------------------------------------------------------------------


def _enter(job: Job, up: int) -> None:
    """The last step: nothing of ours stays open, and the caller hears that the program begins."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kernel.set_name("python")
    channel.say(up, "running")
    opened_here = range(3, 64 + len(job["pass_fds"]))  # few are open, and each took the lowest number
    for fd in {up, job["lock"], *opened_here}.difference(job["pass_fds"]):
        with contextlib.suppress(OSError):  # not open
            os.close(fd)


def _prefer_for_oom() -> None:
    """When the machine runs out of memory the kernel ends this process and not the trainer."""
    with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as score:
        score.write("1000")
