"""Hostile programs, what they must not reach, and how to see that nothing of them is left.

Run as a script it tries all of them at one level and prints a line for each: `python hostile.py LEVEL`. It needs only
the standard library and postrl, so that the tests can run it as another user by an interpreter that this user can read.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from postrl.errors import UsageError
from postrl.rewards.code.confine import seccomp
from postrl.rewards.code.sandbox import LEVELS, Finished, Limits, Sandbox, choose

RUN = os.environ.setdefault("POSTRL_TEST_RUN", str(os.getpid()))
"""Of this process and those that it starts: others may run the same checks beside them."""
SECRET = f"the-secret-of-the-caller-{RUN}"
SLEEP = f"43210.{RUN}"
"""Seconds that what is left behind sleeps; its argument tells it from other processes."""
LIMITS = Limits(wall=20.0)

ATTEMPT = """
import ctypes, os, signal, sys, time
outside, caller, bystander, secret = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def attempt(what, action, *arguments):
    try:
        action(*arguments)
    except (OSError, ValueError, RuntimeError, MemoryError):
        return
    print("escaped:", what, flush=True)
"""

FILES = """
canary, inside = outside + "/canary", os.getcwd()
def write(path, mode="w"):
    with open(path, mode) as file:
        file.write("overwritten")
attempt("write", write, canary)
attempt("append", write, canary, "a")
attempt("create", write, outside + "/new")
attempt("create beside the folder", write, "../new")
attempt("create in /tmp", write, "/tmp/" + secret) if os.path.realpath("/tmp") in os.path.realpath(outside) else None
attempt("create in /var/tmp", write, "/var/tmp/" + secret)
attempt("truncate", os.truncate, canary, 0)
attempt("truncate by opening", os.open, canary, os.O_RDONLY | os.O_TRUNC)
attempt("mode", os.chmod, canary, 0)
attempt("times", os.utime, canary, (0, 0))
attempt("owner", os.chown, canary, 1, 1)
attempt("remove", os.unlink, canary)
attempt("rename", os.rename, canary, outside + "/renamed")
attempt("rename into the folder", os.rename, canary, "taken")
attempt("hard link", os.link, canary, "link")
attempt("folder", os.mkdir, outside + "/folder")
attempt("attribute", os.setxattr, canary, "user.x", b"x")
attempt("device", os.mknod, "device", 0o600 | 0o060000, os.makedev(254, 0))
os.symlink(canary, "symlink")
attempt("write through a link", write, "symlink")
attempt("read through a link", lambda: open("symlink").read())
os.symlink(outside, "folder")
attempt("write through a link to the folder", write, "folder/new")
attempt("read", lambda: open(canary).read())
attempt("list", os.listdir, outside)
attempt("read /etc/shadow", lambda: open("/etc/shadow").read())
attempt("write to the interpreter", write, os.__file__, "a")
attempt("write beside the program", write, os.path.dirname(__file__) + "/new")
attempt("chroot", os.chroot, ".")
write("own")
assert open("own").read() == "overwritten"
"""

PROCESSES = """
def peek(pid, name):
    with open(f"/proc/{pid}/{name}", "rb") as file:
        if not file.read(1):
            raise OSError("empty")
for pid in (caller, bystander):
    for name in ("environ", "maps", "cmdline"):
        attempt(f"/proc/PID/{name}", peek, pid, name)
    attempt("/proc/PID/mem", os.open, f"/proc/{pid}/mem", os.O_RDWR)
    attempt("/proc/PID/fd", os.listdir, f"/proc/{pid}/fd")
    attempt("signal 0", os.kill, pid, 0)
    attempt("SIGKILL", os.kill, pid, signal.SIGKILL)
    attempt("SIGKILL to a group", os.killpg, pid, signal.SIGKILL)
    attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL))
    attempt("priority", os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt("affinity", os.sched_setaffinity, pid, [0])
    import resource
    attempt("limits", resource.prlimit, pid, resource.RLIMIT_NOFILE, (3, 3))
    libc = ctypes.CDLL(None, use_errno=True)
    def traced():
        if libc.ptrace(16, pid, None, None) < 0:
            raise OSError
    attempt("ptrace", traced)
found = []
for pid in range(1, 40_000):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found += [pid] * (secret.encode() in file.read())
    except OSError:
        pass
if found or any(secret in value for value in os.environ.values()):
    print("escaped: the caller's environment", flush=True)
"""

INIT = """
import resource
assert os.getppid() == 1, "the parent is init"
for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU):
    attempt("limits of init", resource.prlimit, 1, number, (0, 0))
attempt("limits of init, read", resource.prlimit, 1, resource.RLIMIT_NOFILE)
attempt("affinity of init", os.sched_setaffinity, 1, [0])
attempt("scheduling of init", os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
attempt("parameters of init", os.sched_setparam, 1, os.sched_param(0))
for which, who in ((os.PRIO_PROCESS, 1), (os.PRIO_USER, 0), (os.PRIO_USER, os.getuid()), (os.PRIO_PGRP, 0), (os.PRIO_PGRP, 1)):
    attempt(f"priority {which} {who}", os.setpriority, which, who, 19)
libc = ctypes.CDLL(None, use_errno=True)
def ioprio(which, who):
    if libc.syscall(ctypes.c_long(IOPRIO), which, who, 3 << 13) < 0:
        raise OSError
for which, who in ((1, 1), (2, 1), (3, 0), (3, os.getuid())):
    attempt(f"i/o priority {which} {who}", ioprio, which, who)
for name in ("oom_score_adj", "oom_adj", "mem", "timerslack_ns", "coredump_filter", "comm"):
    attempt(name + " of init", lambda: open(f"/proc/1/{name}", "w").write("1"))
attempt("descriptors of init", os.listdir, "/proc/1/fd")
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGCHLD):
    try:
        os.kill(1, number)
    except OSError:
        pass
# what is its own is its own
resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, 0, 5)
child = __import__("subprocess").Popen(["sleep", "60"])
os.setpriority(os.PRIO_PROCESS, child.pid, 5)
child.kill()
"""

KILL_ALL = """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
for target in (-1, os.getppid(), -os.getppid() if os.getppid() > 1 else 1):
    try:
        os.kill(target, signal.SIGKILL)
    except OSError:
        pass
print("alive")
"""

DAEMON = """
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/sleep", ["sleep", "SECONDS"])
        os._exit(0)
except OSError:
    pass
print("done", flush=True)
""".replace("SECONDS", SLEEP)

GRANDCHILD = """
import subprocess
try:
    subprocess.Popen(["/bin/sleep", "SECONDS"])
except OSError:
    pass
print("done", flush=True)
""".replace("SECONDS", SLEEP)

FORK_BOMB = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

NETWORK = """
import socket
def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(1)
        s.connect(address)
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET, 40):
    attempt(f"socket of family {family}", socket.socket, family, socket.SOCK_RAW if family == 17 else socket.SOCK_STREAM)
attempt("a path socket", connect, socket.AF_UNIX, outside + "/socket")
attempt("an abstract socket", connect, socket.AF_UNIX, "\\0" + secret)
attempt("a socket pair of the internet", socket.socketpair, socket.AF_INET)
try:
    names = [name for _, name in socket.if_nameindex()]
except OSError:
    names = []
if set(names) - {"lo"}:
    print("escaped: interfaces", names)
import asyncio
assert asyncio.run(asyncio.sleep(0, "asyncio works")) == "asyncio works"
"""

CALLS = """
import errno
libc = ctypes.CDLL(None, use_errno=True)
for name, number, arguments in %r:
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) != -1 or ctypes.get_errno() not in (
        errno.EPERM, errno.ENOSYS):
        print("escaped:", name, errno.errorcode.get(ctypes.get_errno()), flush=True)
"""
QUESTIONABLE = {
    "add_key": (), "bpf": (0, 0, 0), "clone3": (0, 0), "fanotify_init": (0, 0), "fsopen": (0, 0), "inotify_init1": (0,),
    "io_uring_setup": (1, 0), "kcmp": (), "keyctl": (0, -3, 0), "memfd_create": (0, 0), "memfd_secret": (0,),
    "mount": (), "mount_setattr": (), "name_to_handle_at": (), "open_by_handle_at": (), "open_tree": (),
    "openat2": (), "perf_event_open": (), "personality": (0xFFFFFFFF,), "pidfd_getfd": (), "pivot_root": (),
    "process_vm_readv": (), "process_vm_writev": (), "ptrace": (), "quotactl": (), "reboot": (), "request_key": (),
    "setns": (0, 0), "sync": (), "syslog": (), "unshare": (0x10000000,), "userfaultfd": (0,),
}  # fmt: skip
"""System calls with arguments with which they would succeed, or fail in another way, where they are not refused."""

SYSTEM_V = {
    "mq_open": (0, 0), "mq_unlink": (0,), "mq_timedsend": (99, 0, 0, 0, 0), "mq_timedreceive": (99, 0, 0, 0, 0),
    "mq_notify": (99, 0), "mq_getsetattr": (99, 0, 0), "msgget": (0, 0o1600), "msgsnd": (99, 0, 0, 0),
    "msgrcv": (99, 0, 0, 0, 0), "msgctl": (99, 0, 0), "semget": (0, 1, 0o1600), "semop": (99, 0, 1),
    "semtimedop": (99, 0, 1, 0), "semctl": (99, 0, 0, 0), "shmget": (0, 4096, 0o1600), "shmat": (99, 0, 0),
    "shmctl": (99, 0, 0), "shmdt": (4096,),
}  # fmt: skip
"""The same, where no namespace holds what they make."""

PRIVILEGES = """
import resource
fields = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line) if os.path.exists("/proc/self") else {}
for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
    if int(fields.get(name, "0"), 16):
        print("escaped:", name, fields[name])
if fields and fields["NoNewPrivs"].strip() != "1":
    print("escaped: new privileges")
for name in ("AS", "CPU", "FSIZE", "NOFILE", "CORE"):
    number = getattr(resource, "RLIMIT_" + name)
    attempt("raised " + name, resource.setrlimit, number, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    soft, hard = resource.getrlimit(number)
    attempt("raised a little " + name, resource.setrlimit, number, (hard + 1, hard + 1))
attempt("priority", os.nice, -5)
attempt("host name", __import__("socket").sethostname, "other")
attempt("another user", os.setuid, 12345)
"""


@contextlib.contextmanager
def surroundings() -> Iterator[list[str]]:
    """What a program must not reach: a file, two sockets, a process, our environment. Gives the program's arguments."""
    outside = Path(tempfile.mkdtemp(prefix="outside-"))
    canary = outside / "canary"
    canary.write_text("intact")
    canary.chmod(0o640)
    before = os.stat(canary)
    os.environ["POSTRL_TEST_TOKEN"] = SECRET
    bystander = subprocess.Popen(["sleep", "600"])
    sockets = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    sockets[0].bind(str(outside / "socket"))
    sockets[1].bind("\0" + SECRET)
    for one in sockets:
        one.listen()
    try:
        yield [str(outside), str(os.getpid()), str(bystander.pid), SECRET]
        assert bystander.poll() is None, "a process outside was killed"
        after = os.stat(canary)
        assert canary.read_text() == "intact"
        assert (before.st_mode, before.st_mtime_ns, before.st_uid) == (after.st_mode, after.st_mtime_ns, after.st_uid)
        assert sorted(os.listdir(outside)) == ["canary", "socket"], os.listdir(outside)
    finally:
        del os.environ["POSTRL_TEST_TOKEN"]
        for one in sockets:
            one.close()
        bystander.kill()
        bystander.wait()
        for path in outside.iterdir():
            path.unlink()
        outside.rmdir()


def run(box: Sandbox, source: str, arguments: list[str], limits: Limits = LIMITS) -> Finished:
    """Run a program from its source, by a file in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="program-") as folder:
        program = Path(folder, "program.py")
        program.write_text(source)
        finished = box.run(program, arguments, limits=limits)
        assert os.listdir(folder) == ["program.py"]
    return finished


def left_behind(parent: int | None = None) -> list[str]:
    """Processes that sandboxes of this process (or of a killed `parent`) left, keepers included; zombies count. The
    fork server of a process that lives is no such thing."""
    ours = re.compile(rf"forkserver\.main\(\)\0\d+\0{parent or os.getpid()}\0$|^(/bin/)?sleep\0{re.escape(SLEEP)}\0$")
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            command = Path("/proc", name, "cmdline").read_text(errors="replace")
            serves = Path("/proc", name, "comm").read_text() == "postrl-forks\n" and parent is None
            if ours.search(command) and not serves:
                found.append(f"{name}: {command}")
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    zombies = [pid for pid in children.read_text().split() if _is_zombie(pid)] if children.exists() else []
    return found + [f"{pid}: zombie" for pid in zombies]


def _is_zombie(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def settled(parent: int | None = None, within: float = 60.0) -> list[str]:
    """What is still left after that time."""
    deadline = time.monotonic() + within
    while (left := left_behind(parent)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


# -- the checks: each runs a program and says what is wrong, or nothing ---------------------------------------------------


def _contained(source: str, box: Sandbox, arguments: list[str]) -> str:
    finished = run(box, ATTEMPT + source, arguments)
    problems = finished.stdout.decode() + finished.stderr.decode()
    return problems or ("" if finished.status == 0 else f"status {finished.status}")


def files(box: Sandbox, arguments: list[str]) -> str:
    return _contained(FILES, box, arguments)


def processes(box: Sandbox, arguments: list[str]) -> str:
    return _contained(PROCESSES, box, arguments)


def network(box: Sandbox, arguments: list[str]) -> str:
    return _contained(NETWORK, box, arguments)


def privileges(box: Sandbox, arguments: list[str]) -> str:
    return _contained(PRIVILEGES, box, arguments)


def _number(name: str) -> int:
    number = seccomp.NUMBERS[name][seccomp.ARCHITECTURES[os.uname().machine][0]]
    assert number is not None
    return number


def system_calls(box: Sandbox, arguments: list[str]) -> str:
    refused = QUESTIONABLE if box.level == "strict" else QUESTIONABLE | SYSTEM_V
    return _contained(CALLS % ([(name, _number(name), given) for name, given in refused.items()],), box, arguments)


def init(box: Sandbox, arguments: list[str]) -> str:
    return _contained(INIT.replace("IOPRIO", str(_number("ioprio_set"))), box, arguments)


def kill_all(box: Sandbox, arguments: list[str]) -> str:
    finished = run(box, ATTEMPT + KILL_ALL, arguments)
    return "" if (finished.stdout, finished.status) == (b"alive\n", 0) else repr(finished)


def daemon(box: Sandbox, arguments: list[str]) -> str:
    finished = run(box, ATTEMPT + DAEMON, arguments)
    return "" if (finished.stdout, finished.timed_out) == (b"done\n", False) else repr(finished)


def grandchild(box: Sandbox, arguments: list[str]) -> str:
    """It keeps the output pipes open; the end of the program counts, not the end of the streams."""
    finished = run(box, ATTEMPT + GRANDCHILD, arguments)
    return "" if (finished.stdout, finished.timed_out) == (b"done\n", False) else repr(finished)


def fork_bomb(box: Sandbox, arguments: list[str]) -> str:
    finished = run(box, ATTEMPT + FORK_BOMB, arguments, Limits(wall=1.5))
    return "" if finished.timed_out else repr(finished)


BOUNDARIES = ("strict", "landlock")
CHECKS = {
    check.__name__: (check, LEVELS) for check in (network, privileges, system_calls, kill_all, daemon, grandchild)
}
CHECKS |= {"fork_bomb": (fork_bomb, LEVELS), "files": (files, BOUNDARIES), "processes": (processes, BOUNDARIES)}
CHECKS |= {"init": (init, ("strict",))}


def check(name: str, level: str) -> str:
    """What is wrong with one check at one level; nothing if all is well."""
    function, levels = CHECKS[name]
    if level not in levels:
        return ""
    with temporary_folder() as folder, surroundings() as arguments:
        there = set(os.listdir(folder))
        problem = function(choose(level), arguments)
        left = settled() + sorted(set(os.listdir(folder)) - there)
    return "; ".join([*filter(None, [problem]), *left])


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """The place for all temporary files: what stands there is ours."""
    with tempfile.TemporaryDirectory(prefix="temporary-") as folder:
        os.chmod(folder, 0o755)  # else a program of root's could not have a user id of its own
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            yield folder
        finally:
            tempfile.tempdir = before


def main(level: str) -> None:
    try:
        print(choose(level).about, flush=True)
    except UsageError as error:
        print(f"unavailable: {error}")
        return
    for name in CHECKS:
        problem = check(name, level)
        print(f"{name}: {problem or 'ok'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
