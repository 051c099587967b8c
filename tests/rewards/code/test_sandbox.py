"""The sandbox as its callers use it: what a program gets, how it ends, which limits hold. Attacks: test_hygiene.py."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from postrl.errors import UsageError
from postrl.rewards.code import places, starter
from postrl.rewards.code.confine import program as confined
from postrl.rewards.code.confine import tree
from postrl.rewards.code.sandbox import LEVELS, Contained, Finished, Limits, Sandbox, SandboxError, choose, survey
from rewards.code.hostile import settled
from rewards.groups import PATIENCE

PIPE, NULL = subprocess.PIPE, subprocess.DEVNULL
ROOMY = Limits(wall=PATIENCE)


@pytest.fixture(params=LEVELS)
def box(request) -> Sandbox:
    return chosen(request.param)


@pytest.fixture(params=LEVELS[:2])
def boundary(request) -> Sandbox:
    return chosen(request.param)


@pytest.fixture
def strict() -> Sandbox:
    return chosen("strict")


def chosen(level: str) -> Sandbox:
    try:
        return choose(level)
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def write(tmp_path):
    def write(source: str) -> Path:
        program = tmp_path / "program.py"
        program.write_text(source)
        return program

    return write


@pytest.fixture
def run(write):
    def run(box: Sandbox, source: str, *arguments: str, stdin: bytes = b"", limits: Limits = ROOMY) -> Finished:
        return box.run(write(source), arguments, stdin=stdin, limits=limits)

    return run


@pytest.fixture
def start(write):
    """Start without pipes; closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def start(box: Sandbox, source: str, **settings) -> Contained:
            settings = {"stdout": NULL, "stderr": NULL, "limits": ROOMY, **settings}
            return stack.enter_context(box.start(write(source), **settings))

        yield start


# -- what a program gets -------------------------------------------------------------------------------------------------


def test_a_program_talks_over_its_standard_streams(box, run):
    finished = run(box, "import sys\na, b = map(int, input().split())\nprint(a + b)\nsys.exit(3)", stdin=b"3 4\n")
    assert (finished.stdout, finished.stderr, finished.status) == (b"7\n", b"", 3)
    assert not finished.timed_out
    assert not finished.output_overflow
    assert finished.outcome.limit is None


def test_it_runs_as_main_with_its_arguments_in_an_empty_folder_of_its_own(box, run):
    source = """
import os, sys
print(__name__, sys.argv[1:], os.listdir(), os.path.basename(__file__), sys.path[0] in ("", os.getcwd()))
open("file", "w").write("x")
print(os.listdir(), os.path.dirname(__file__) in sys.path, os.path.samefile(os.environ["HOME"], "."))
import tempfile
with tempfile.TemporaryFile() as file:
    file.write(b"temporary files work")
"""
    finished = run(box, source, "one", "two words")
    assert finished.stdout.decode().splitlines() == [
        "__main__ ['one', 'two words'] [] program.py False",
        "['file'] False True",
    ]
    assert finished.stderr == b""


def test_it_is_given_an_environment_made_from_scratch(box, run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PYTHONSTARTUP", "x")
    names = set(run(box, "import os\nprint(*os.environ)").stdout.decode().split())
    # The fork server may have been started after some package (opencv does) set the path of its own libraries.
    assert names - {"LD_LIBRARY_PATH"} == {*places.ENVIRONMENT, "HOME", "TMPDIR"}


def test_hashes_repeat_integers_may_be_long_and_text_is_utf_8(box, run):
    source = "import sys\nprint(hash('a'), len(str(10**5000)), sys.stdout.encoding, sys.flags.no_user_site, '\\u00e9')"
    first, second = run(box, source).stdout, run(box, source).stdout
    assert first == second
    assert first.decode().split()[1:] == ["5001", "utf-8", "1", "\u00e9"]


def test_installed_packages_can_be_imported(box, run):
    if importlib.util.find_spec("numpy") is None:
        pytest.skip("numpy is not installed")
    finished = run(box, "import numpy\nprint((numpy.ones((200, 200)) @ numpy.ones((200, 200))).sum())")
    assert finished.stdout == b"8000000.0\n", finished.stderr.decode()


def test_what_an_interpreter_offers_interactively_is_there(box, run):
    finished = run(box, "print(callable(quit), callable(copyright), callable(help))\nexit(4)")
    assert (finished.stdout, finished.status) == (b"True True True\n", 4)


def test_the_standard_streams_can_be_opened_by_descriptor_and_by_path(box, run):
    source = (
        "print(open(0).readline(), end='')\nopen('/dev/null', 'w').write('x')\n"
        "for path, mode in (('/dev/stdout', 'w'), ('/dev/stderr', 'w'), ('/dev/fd/1', 'w')):\n"
        "    open(path, mode).write(path)\n"
    )
    finished = run(box, source, stdin=b"one\n")
    assert finished.status == 0, finished.stderr.decode()
    assert (sorted(finished.stdout), finished.stderr) == (sorted(b"one\n/dev/stdout/dev/fd/1"), b"/dev/stderr")


@pytest.mark.parametrize("path", ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_standard_input_can_be_opened_by_its_paths_as_root_too(box, run, path):
    finished = run(box, f"print(open({path!r}).read(), end='')", stdin=b"one\ntwo\n")
    assert finished.stdout == b"one\ntwo\n", finished.stderr.decode()


def test_an_uncaught_exception_ends_it_like_any_python_program(box, run):
    source = "import atexit\natexit.register(print, 'at exit')\nprint('before')\n1 / 0"
    finished = run(box, source)
    assert (finished.stdout, finished.status) == (b"before\nat exit\n", 1)
    assert b"ZeroDivisionError" in finished.stderr


@pytest.mark.parametrize(
    ("source", "stdout", "stderr", "status"),
    [
        ("out = open(1, 'w')\nout.write('never closed')", b"never closed", b"", 0),
        ("import sys\nsys.exit('a message')", b"", b"a message\n", 1),
        ("import sys\nsys.exit()", b"", b"", 0),
        ("import sys\nsys.exit(256 + 7)", b"", b"", 7),
        ("import threading, time\nthreading.Timer(0.1, print, ['waited for']).start()", b"waited for\n", b"", 0),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=[600], daemon=True).start()", b"", b"", 0),
        ("import atexit, os\natexit.register(os._exit, 5)", b"", b"", 5),
        ("import sys\nprint('x')\nsys.stdout.close()", b"x\n", b"", 0),
        ("import os\nprint('buffered')\nos._exit(0)", b"", b"", 0),
        ("import sys\nsys.stdout = None", b"", b"", 0),
    ],
)
def test_it_ends_as_the_interpreter_does(strict, run, source, stdout, stderr, status):
    finished = run(strict, source)
    assert (finished.stdout, finished.stderr, finished.status) == (stdout, stderr, status)


def test_a_traceback_shows_the_program_only(strict, run):
    assert run(strict, "def f(): raise ValueError('x')\nf()").stderr.decode().count("File ") == 2


def test_nothing_of_the_confinement_can_be_imported_by_accident(box, run):
    finished = run(box, "import sys\nprint([name for name in sys.modules if 'confine' in name])\nimport keeper")
    assert finished.stdout == b"[]\n"
    assert b"ModuleNotFoundError" in finished.stderr


def test_it_inherits_the_descriptors_it_was_passed_and_no_others(box, start):
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    for fd in others:
        os.set_inheritable(fd, True)
    read, write = os.pipe()
    source = f"""
import os
found = []
for fd in range(3, 256):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
os.write({write}, repr(found).encode())
"""
    contained = start(box, source, pass_fds=[write])
    os.close(write)
    assert contained.wait(PATIENCE) == 0
    assert os.read(read, 1000).decode() == f"[{write}]"
    assert os.read(read, 1000) == b""
    for fd in (read, *others):
        os.close(fd)


def test_threads_with_large_stacks_run_unless_they_are_forbidden(box, run, start):
    source = """
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(64 << 20)
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
thread = threading.Thread(target=lambda: print(depth(20000)))
thread.start()
thread.join()
"""
    assert run(box, source).stdout == b"20000\n"
    if box.filtered:
        assert start(box, source, threads=False).wait(PATIENCE) == 1


def test_recursion_through_c_code_has_room_on_the_stack(box, run):
    source = """
import functools, sys
sys.setrecursionlimit(10**6)
@functools.cache
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
print(depth(20000))
"""
    assert run(box, source).stdout == b"20000\n"


def test_processes_of_its_own_are_allowed_where_they_are_contained(strict, run):
    source = """
import multiprocessing, subprocess
print(subprocess.run(["echo", "a process"], capture_output=True, text=True).stdout, end="")
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(abs, [-1, -2]))
"""
    finished = run(strict, source)
    assert finished.stdout == b"a process\n[1, 2]\n", finished.stderr.decode()


# -- how it ends ---------------------------------------------------------------------------------------------------------


def test_a_program_that_ignores_signals_and_exceptions_ends_at_its_wall_limit(box, run):
    source = """
import signal
for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGXCPU):
    signal.signal(number, signal.SIG_IGN)
print("before", flush=True)
while True:
    try:
        while True: pass
    except BaseException:
        pass
"""
    finished = run(box, source, limits=Limits(wall=2.0))
    assert (finished.stdout, finished.status, finished.timed_out) == (b"before\n", -signal.SIGKILL, True)


def test_the_wall_limit_holds_without_anyone_waiting(box, start):
    contained = start(box, "import time\ntime.sleep(600)", limits=Limits(wall=0.3))
    assert contained.wait(PATIENCE) == -signal.SIGKILL
    assert contained.outcome.limit == "wall"


def test_communicate_has_a_wall_limit_of_its_own(box, write):
    program = write("import time\ntime.sleep(600)")
    with box.start(program, stdin=PIPE, stdout=PIPE, stderr=PIPE, limits=ROOMY) as contained:
        assert contained.communicate(b"", wall=0.3).timed_out


def test_processor_time_is_limited(strict, run):
    finished = run(strict, "while True: pass", limits=Limits(wall=PATIENCE, cpu=1))
    assert (finished.status, finished.outcome.limit) == (-signal.SIGXCPU, "cpu")


def test_processor_time_is_limited_also_when_its_signal_is_caught(box, run):
    limits = Limits(wall=PATIENCE, cpu=1)
    finished = run(box, "import signal\nsignal.signal(signal.SIGXCPU, print)\nwhile True: pass", limits=limits)
    assert (finished.status, finished.outcome.limit) == (-signal.SIGKILL, "cpu")
    assert finished.outcome.cpu >= 1


def test_the_signal_that_ended_it_is_told(box, run):
    assert run(box, "import os\nos.abort()").status == -signal.SIGABRT
    assert run(box, "import os\nos.kill(os.getpid(), 15)").status == -signal.SIGTERM
    assert run(box, "import ctypes\nctypes.string_at(0)").status == -signal.SIGSEGV


def test_kill_ends_it_from_any_thread_and_close_may_be_called_twice(box, start):
    contained = start(box, "import time\ntime.sleep(600)")
    assert contained.poll() is None
    threading.Timer(0.2, contained.kill).start()
    assert contained.wait(PATIENCE) == -signal.SIGKILL
    contained.kill()
    contained.close()
    contained.close()
    assert contained.poll() == -signal.SIGKILL
    assert not contained.folder.exists()
    assert settled() == []


def test_a_program_that_is_killed_before_it_began_counts_as_killed(box, start):
    contained = start(box, "import time\ntime.sleep(600)")
    contained.kill()
    assert contained.wait(PATIENCE) == -signal.SIGKILL
    assert not contained.folder.exists()


def test_input_that_is_not_read_and_input_of_any_size_are_fine(box, run):
    assert run(box, "print('done')", stdin=b"x" * 10_000_000).stdout == b"done\n"
    finished = run(box, "import sys\nprint(len(sys.stdin.read()))", stdin=b"x" * 3_000_000)
    assert finished.stdout == b"3000000\n"


def test_many_run_at_once_from_many_threads(box, write):
    program = write("import sys\nprint(int(input()) ** 2)")
    found: dict[int, bytes] = {}

    def square(n: int) -> None:
        found[n] = box.run(program, stdin=b"%d\n" % n, limits=ROOMY).stdout

    threads = [threading.Thread(target=square, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == {n: b"%d\n" % n**2 for n in range(12)}


def test_nothing_stays_open_in_the_caller(box, run):
    run(box, "pass")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for source in ("print(1)", "import os\nos.abort()"):
        run(box, source)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE] == []


# -- limits --------------------------------------------------------------------------------------------------------------


def test_a_flood_on_standard_output_ends_the_program_and_is_cut(box, run):
    finished = run(box, "while True: print('x' * 4000)", limits=Limits(wall=PATIENCE, output=100_000))
    assert finished.output_overflow
    assert finished.stdout == (b"x" * 4000 + b"\n")[:4001] * 24 + b"x" * (100_000 - 24 * 4001)
    assert not finished.timed_out


def test_a_flood_on_standard_error_is_only_cut(box, run):
    source = "import sys\nsys.stderr.write('y' * 500_000)\nprint('done')"
    finished = run(box, source, limits=Limits(wall=PATIENCE, output=100_000))
    assert (finished.stdout, len(finished.stderr), finished.output_overflow) == (b"done\n", 100_000, False)


def test_memory_is_limited(box, run):
    source = "try:\n    bytearray(1 << 30)\nexcept MemoryError:\n    print('refused')"
    assert run(box, source, limits=Limits(wall=PATIENCE, memory=512 << 20)).stdout == b"refused\n"


def test_memory_of_many_processes_is_limited_together(strict, run):
    source = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        block = bytearray(os.urandom(1)) * (100 << 20)
        time.sleep(600)
time.sleep(600)
"""
    finished = run(strict, source, limits=Limits(wall=PATIENCE, memory=300 << 20))
    assert (finished.status, finished.outcome.limit) == (-signal.SIGKILL, "memory")


def test_the_size_of_a_file_is_limited(box, run):
    source = """
try:
    with open("file", "wb", buffering=0) as file:
        while True: file.write(b"x" * 100_000)
except OSError as error:
    print(error.errno, __import__("os").stat("file").st_size)
"""
    assert run(box, source, limits=Limits(wall=PATIENCE, file_size=1_000_000)).stdout == b"27 1000000\n"


def test_the_size_of_its_folder_is_limited(box, run):
    source = """
for number in range(10_000):
    with open(f"file-{number}", "wb") as file:
        file.write(b"x" * 500_000)
"""
    finished = run(box, source, limits=Limits(wall=PATIENCE, disk=20_000_000))
    if box.level == "strict":  # a file system of that size
        assert b"No space left" in finished.stderr
    else:
        assert (finished.status, finished.outcome.limit) == (-signal.SIGKILL, "disk")


def test_the_number_of_files_in_its_folder_is_limited(box, run):
    source = "import os, time\nfor n in range(300): os.close(os.open(str(n), os.O_CREAT))\ntime.sleep(600)"
    finished = run(box, source, limits=Limits(wall=PATIENCE, files=200))
    assert b"No space left" in finished.stderr if box.level == "strict" else finished.outcome.limit == "disk"


def test_the_number_of_open_files_is_limited(box, run):
    finished = run(box, "files = [open('/dev/null') for _ in range(100)]")
    assert b"Too many open files" in finished.stderr


def test_the_number_of_processes_and_threads_is_limited(box, run):
    source = """
import os, threading, time
threading.stack_size(1 << 16)
count = 0
try:
    while count < 1000:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        count += 1
except RuntimeError:
    pass
print(count, flush=True)
if count == 1000: time.sleep(600)
os._exit(0)
"""
    finished = run(box, source, limits=Limits(wall=PATIENCE, processes=20))
    if box.level == "strict":
        assert finished.stdout == b"19\n"
    else:
        assert finished.outcome.limit == "processes"


def test_processes_started_by_root_s_sandbox_belong_to_somebody_else(strict, run):
    uid = int(run(strict, "import os\nprint(os.getuid())").stdout)
    assert uid == os.getuid() if os.getuid() else uid > 0


# -- what is left --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mess",
    [
        "os.mkdir('closed', 0)",
        "os.makedirs('a/b')\nopen('a/b/c', 'w')\nos.chmod('a/b', 0)\nos.chmod('a', 0)\nos.chmod('.', 0)",
        "for _ in range(2000): os.mkdir('d'); os.chdir('d')",
        "os.symlink('/', 'root')\nos.symlink('.', 'self')\nos.mkfifo('fifo')\nopen(b'\\xff\\n', 'w')",
        "os.mkdir('a')\n" + "for n in range(100): os.mkdir(f'a/{n}'); open(f'a/{n}/file', 'w')",
    ],
)
def test_the_folder_is_removed_whatever_the_program_made_of_it(box, write, mess):
    source = "import contextlib, os\nwith contextlib.suppress(PermissionError):\n" + "".join(
        f"    {line}\n" for line in mess.splitlines()
    )
    contained = box.start(write(source), stdout=NULL, stderr=NULL, limits=ROOMY)
    assert contained.folder.exists()
    assert contained.wait(PATIENCE) is not None
    contained.close()
    assert not contained.folder.exists()


def test_a_tree_is_removed_without_following_its_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    folder = tmp_path / "folder"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    (folder / "a" / "b" / "link").symlink_to(outside)
    (folder / "a" / "b").chmod(0)
    assert tree.remove(str(folder))
    assert not folder.exists()
    assert (outside / "file").read_text() == "kept"
    assert tree.remove(str(folder))


def test_folders_that_killed_keepers_left_are_swept_later(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(places, "STALE", -1.0)
    used, lock = places.new_folder()
    left = tmp_path / f"{places.PREFIX}left"
    left.mkdir()
    (left / "file").write_text("x")
    other = tmp_path / "of-somebody-else"
    other.mkdir()
    places.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([Path(used).name, "of-somebody-else"])
    os.close(lock)


GRADINGS = """
import subprocess, sys, threading, time
from pathlib import Path
from postrl.rewards.code.sandbox import Limits, choose
box, running = choose(sys.argv[1]), []
def grade():
    running.append(box.start(Path(sys.argv[2]), limits=Limits(wall=300), stdout=2, stderr=2, pass_fds=[2]))
threads = [threading.Thread(target=grade) for _ in range(64)]
for thread in threads: thread.start()
for thread in threads: thread.join()  # the threads that started them are gone: the sandboxes are not
print("started", flush=True)
time.sleep(600)
"""
RUNNING = """
import os, time
try:
    if os.fork() == 0:
        os.setsid()
except OSError:
    pass
os.write(2, b".")
time.sleep(600)
"""


def test_nothing_survives_a_caller_that_is_killed_in_the_middle_of_64_gradings(box, write, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    caller = subprocess.Popen(
        [sys.executable, "-c", GRADINGS, box.level, write(RUNNING)],
        stdout=PIPE, stderr=PIPE, env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert caller.stdout is not None
    assert caller.stderr is not None
    assert caller.stdout.readline() == b"started\n"
    beats = 0
    while beats < 64:
        beats += len(os.read(caller.stderr.fileno(), 4096))
    caller.kill()
    caller.communicate()
    assert settled(caller.pid) == []
    end = time.monotonic() + 60.0
    while list(temporary.iterdir()) and time.monotonic() < end:  # a keeper's last act
        time.sleep(0.02)
    assert list(temporary.iterdir()) == []


def test_a_program_outlives_the_thread_that_started_it(box, write):
    found: list[Contained] = []
    program = write("import time\ntime.sleep(0.5)\nprint('done')")
    starting = threading.Thread(
        target=lambda: found.append(box.start(program, stdin=PIPE, stdout=PIPE, stderr=PIPE, limits=ROOMY))
    )
    starting.start()
    starting.join()
    with found[0] as contained:
        assert contained.communicate(b"", PATIENCE).stdout == b"done\n"


def test_a_killed_keeper_takes_the_program_with_it_and_is_no_verdict(box, start, tmp_path):
    read, write = os.pipe()
    contained = start(box, "import time\nprint('running', flush=True)\ntime.sleep(600)", stdout=write)
    os.close(write)
    assert os.read(read, 100) == b"running\n"
    os.kill(contained.pid, signal.SIGKILL)
    assert os.read(read, 100) == b"", "the program's end closes the pipe"
    os.close(read)
    with pytest.raises(SandboxError, match="killed from outside"):
        contained.wait(PATIENCE)
    contained.close()
    assert not contained.folder.exists()
    assert settled() == []


# -- the fork server -----------------------------------------------------------------------------------------------------


def test_init_that_fails_beside_a_program_is_the_program_s_end_and_no_failure_of_the_sandbox(monkeypatch):
    """Whatever a program may do to it: a failure that counted as the sandbox's would be no verdict, instead of a 0."""
    monkeypatch.setattr(confined, "_watch", lambda *_: os.listdir("/there is no such folder"))
    if (child := os.fork()) == 0:
        confined._be_init({}, -1, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_killed_fork_server_is_no_verdict_and_is_replaced(box, start, run):
    contained = start(box, "import time\ntime.sleep(600)")
    assert contained.wait(0.1) is None
    starter._server.process.kill()
    with pytest.raises(SandboxError, match="told to end"):
        contained.wait(PATIENCE)
    assert not contained.folder.exists()
    assert run(box, "print('again')").stdout == b"again\n"


def test_a_fork_of_the_caller_has_a_fork_server_of_its_own(box, run):
    run(box, "pass")
    child = os.fork()
    if not child:
        status = 1
        try:
            status = int(run(box, "print('from the fork')").stdout != b"from the fork\n")
            starter._end()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert settled(child) == []
    assert run(box, "print('still here')").stdout == b"still here\n"


def test_where_nothing_can_be_started_that_is_no_verdict_and_nothing_stays_open(box, run, monkeypatch):
    run(box, "pass")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(SandboxError, match="cannot start"):
        run(box, "pass")
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_arguments_may_be_long(strict, run):
    assert run(strict, "import sys\nprint(len(sys.argv[1]))", "x" * 1_000_000).stdout == b"1000000\n"


def test_programs_do_not_share_what_is_random(box, run):
    source = "import os, random, uuid\nprint(random.random(), os.urandom(8), uuid.uuid4())"
    assert len(set(run(box, source).stdout.split()) & set(run(box, source).stdout.split())) == 0


def test_the_fork_server_ends_with_the_process_that_used_it(tmp_path):
    source = (
        "from postrl.rewards.code.sandbox import choose\nprint(choose('basic').about)\nimport os\nprint(os.getpid())"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert settled(int(done.stdout.split()[-1])) == []


# -- choosing ------------------------------------------------------------------------------------------------------------


def test_auto_is_the_strongest_level_that_works():
    working = []
    for level in LEVELS:
        with contextlib.suppress(UsageError):
            working.append(choose(level))
    assert choose("auto").level == working[0].level
    assert choose("auto").about.startswith(f"{working[0].level}: ")
    assert choose("basic").about.endswith("not a security boundary")


def test_an_unknown_level_is_an_error_that_names_the_levels():
    with pytest.raises(UsageError, match="strict, landlock, basic"):
        choose("strictest")


WITHOUT = """
import sys
from postrl.rewards.code.confine import kernel, seccomp
from postrl.rewards.code.sandbox import choose, survey
seccomp.NUMBERS |= {"landlock_create_ruleset": (444, 444)}
kernel.no_new_privileges()
rules = seccomp.Filter()
rules.deny(sys.argv[1])
rules.install()
for level in ("strict", "landlock", "auto"):
    try:
        print(choose(level).about)
    except Exception as error:
        print(type(error).__name__, str(error).replace("\\n", " "))
print([name for name, works, _ in survey() if not works])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="refuses system calls with seccomp")
@pytest.mark.parametrize(
    ("refused", "strict", "landlock", "auto"),
    [
        ("unshare", "UsageError .* no new .*namespaces.*hint: .*user namespaces.*--sandbox landlock or basic", "landlock: ", "landlock: "),
        ("unshare landlock_create_ruleset", "UsageError", "UsageError .*landlock.*hint: .*kernel.*--sandbox basic", "basic: "),
        ("mount", "UsageError .* mount at", "landlock: ", "landlock: "),
    ],
)  # fmt: skip
def test_a_named_level_fails_closed_where_something_of_it_is_missing(refused, strict, landlock, auto):
    done = subprocess.run([sys.executable, "-c", WITHOUT, refused], capture_output=True, text=True, timeout=PATIENCE)
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr
    for line, expected in zip(lines, (strict, landlock, auto), strict=False):
        assert re.match(expected, line), line
    assert ("Landlock" in lines[3]) == ("landlock" in refused)


def test_the_program_does_not_run_when_the_confinement_fails(strict, write, monkeypatch):
    job = Sandbox._job
    monkeypatch.setattr(Sandbox, "_job", lambda *given: {**job(*given), "disk": "no size"})
    with strict.start(write("print('ran')"), stdin=PIPE, stdout=PIPE, stderr=PIPE) as contained:
        with pytest.raises(SandboxError, match="mount at"):
            contained.communicate(b"", PATIENCE)
        assert not contained.stdout.read()


def test_the_survey_names_every_mechanism_with_whether_it_works():
    rows = {name: works for name, works, _ in survey()}
    assert set(rows) >= {"setrlimit", "process namespace", "Landlock", "seccomp", "subreaper", "no_new_privs", "pidfd"}
    if chosen("auto").level == "strict":
        assert rows["process namespace"]
        assert rows["seccomp"]


def test_a_limit_of_ours_that_is_lower_stays(box, run):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    source = "import resource\nprint(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    finished = run(box, source, limits=Limits(wall=PATIENCE, open_files=hard + 1))
    assert finished.stdout.decode().split() == [str(hard), str(hard)]
