"""No program can steer or end what it runs beside: the init of its namespaces, other processes of its user."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from postrl.errors import UsageError
from postrl.rewards.code.confine import seccomp
from postrl.rewards.code.contained import Contained
from postrl.rewards.code.sandbox import Limits, Sandbox, SandboxError, choose

LIMITS = Limits(wall=20.0)
ON_A_PROCESS = """
import ctypes, errno, os, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
numbers, other = {numbers}, {other}
room = ctypes.create_string_buffer(256)
ctypes.memset(room, 0, 256)

def call(name, *arguments):
    ctypes.set_errno(0)
    done = libc.syscall(ctypes.c_long(numbers[name]), *arguments)
    return 0 if done >= 0 else ctypes.get_errno()

ATTACKS = {{
    "prlimit64": (other, 7, None, room), "sched_setaffinity": (other, 8, room), "sched_setscheduler": (other, 0, room),
    "sched_setattr": (other, room, 0), "sched_setparam": (other, room), "setpriority": (0, other, 5),
    "ioprio_set": (1, other, 0), "kill": (other, 0), "tkill": (other, 0), "tgkill": (other, other, 0),
    "rt_sigqueueinfo": (other, 0, room), "rt_tgsigqueueinfo": (other, other, 0, room), "pidfd_open": (other, 0),
    "ptrace": (16, other, 0, 0), "process_vm_readv": (other, room, 0, room, 0, 0), "kcmp": (other, other, 0, 0, 0),
    "process_vm_writev": (other, room, 0, room, 0, 0), "migrate_pages": (other, 0, 0, 0), "perf_event_open": (room, other, -1, -1, 0),
    "move_pages": (other, 0, 0, 0, 0, 0), "process_madvise": (-1, 0, 0, 0, 0), "pidfd_getfd": (-1, 0, 0), "keyctl": (0, 0, 0, 0, 0),
    "bpf": (0, 0, 0), "userfaultfd": (0,), "setpriority of a user": (2, 0, 5), "ioprio_set of a user": (3, 0, 0),
}}
for name, arguments in ATTACKS.items():
    numbers[name] = numbers[name.split()[0]]
    if call(name, *arguments) != errno.EPERM:
        print("allowed:", name)
for name in {objects}:
    if call(name, 12345, 0, 0, 0, 0, 0) != errno.EPERM:
        print("allowed:", name)
for path in (f"/proc/{{other}}/oom_score_adj", "/proc/self/oom_score_adj", f"/proc/{{other}}/mem"):
    try:
        open(path, "w").write("0")
        print("allowed:", path)
    except OSError:
        pass
own = os.getpid()
resource.prlimit(own, resource.RLIMIT_CORE, (0, 0))
resource.prlimit(0, resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.sched_setaffinity(own, os.sched_getaffinity(own))
os.setpriority(os.PRIO_PROCESS, own, 19)
os.close(os.pidfd_open(own))
os.kill(own, 0)
print("done")
"""
SYSTEM_V = [name for name in seccomp.NUMBERS if name.startswith(("shm", "sem", "msg", "mq_"))]


def chosen(level: str) -> Sandbox:
    try:
        return choose(level)
    except UsageError as error:
        pytest.skip(str(error))


def run(box: Sandbox, tmp_path, source: str):
    program = tmp_path / "program.py"
    program.write_text(source, encoding="utf-8")
    return box.run(program, limits=LIMITS)


@pytest.mark.parametrize("level", ["strict", "landlock"])
def test_system_calls_that_name_a_process_reach_the_program_only(level, tmp_path):
    column = seccomp.ARCHITECTURES[os.uname().machine][0]
    numbers = {name: pair[column] for name, pair in seccomp.NUMBERS.items() if pair[column] is not None}
    strict = level == "strict"
    source = ON_A_PROCESS.format(
        numbers=numbers, other=1 if strict else os.getpid(), objects=[] if strict else SYSTEM_V
    )
    finished = run(chosen(level), tmp_path, source)
    assert finished.stdout.decode() == "done\n", finished.stderr.decode()


def test_every_system_v_and_posix_message_call_is_known_on_both_architectures():
    assert len(SYSTEM_V) == 18
    for column in (0, 1):
        assert len({seccomp.NUMBERS[name][column] for name in SYSTEM_V}) == 18


def test_what_fails_after_the_program_began_is_its_own_doing():
    said = b"keeper 1\nrunning\nerror of init: OSError: no descriptors\nended 1 20 3000\n"
    assert outcome(said).limit == "sandbox"
    assert outcome(b"keeper 1\nrunning\nerror TimeoutError: still alive\n").status < 0


@pytest.mark.parametrize(
    "said", [b"", b"keeper 1\nerror OSError: no memory\n", b"keeper 1\nrunning\n", b"keeper 1\nrunning\ntold to end\n"]
)
def test_what_fails_before_or_is_ended_from_outside_is_no_verdict(said):
    with pytest.raises(SandboxError):
        outcome(said)


def outcome(said: bytes):
    """What a caller concludes from the words of a keeper that has ended."""
    ours, theirs = socket.socketpair()
    theirs.sendall(said)
    theirs.close()
    with Contained(ours, Path("/nonexistent/box"), [None, None, None], 100, 10, 1 << 30) as contained:
        return contained.outcome


HOSTILE = {
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "fills its folder": "while True: open(str(id(object())) + str(len(__import__('os').listdir('.'))), 'wb').write(b'x' * (1 << 20))",
    "opens all files": "import os\nheld = []\nwhile True: held.append(os.dup(0))",
    "closes all": "import os\nos.closerange(0, 4096)\nraise SystemExit(3)",
    "starts processes": "import os\nwhile True: os.fork()",
    "takes all memory": "held = []\nwhile True: held.append(bytearray(1 << 26))",
    "signals everybody": "import os\nos.kill(-1, 9)\nos.kill(1, 9)\nraise SystemExit(3)",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("level", ["strict", "landlock"])
def test_a_program_that_exhausts_what_it_has_is_wrong_and_the_sandbox_works_on(level, source, tmp_path):
    box = chosen(level)
    program = tmp_path / "program.py"
    program.write_text(source, encoding="utf-8")
    assert box.run(program, limits=Limits(wall=2.0)).status != 0
    program.write_text("print('next')", encoding="utf-8")
    assert box.run(program, limits=LIMITS).stdout == b"next\n"
