"""Real processes and real signals: whatever happens, nobody is left behind."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from postrl.errors import ChildError, WaitTimeout
from postrl.host.stopping import FROM_OUTSIDE, STOP_SIGNALS
from postrl.launch.process import ChildProcess, Supervisor

from .support import FAMILY, NOTE, PATIENCE, SLEEPER, STUBBORN, lives, noted, python, wait_for

# Stands for the launcher: starts the program in argv[2] as its child, does argv[3], and waits.
LAUNCHER = """
import os, sys, time
from postrl.launch.process import ChildProcess, Supervisor
folder, code, more = sys.argv[1:]
child = [sys.executable, "-c", code, folder]
options = dict(log_path=os.path.join(folder, "log"), grace=0.5)
exec(more)
time.sleep(600)
"""
START = "kept = ChildProcess('child', child, **options)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts ChildProcesses that end with the test."""
    with Supervisor(grace=0.0) as children:
        yield lambda code, *args, **options: children.start(
            "child", python(code, tmp_path, *args), log_path=tmp_path / "logs" / "child.log", grace=0.5, **options
        )


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Any]:
    started = []

    def start_launcher(code: str, more: str = START) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(python(LAUNCHER, tmp_path, code, more)))
        return started[-1]

    yield start_launcher
    for process in started:
        process.kill()
        process.wait()


def assert_all_gone(pids: list[int]) -> None:
    wait_for(f"{pids} to end", lambda: not any(lives(pid) for pid in pids))


# -- the launcher ends ---------------------------------------------------------------------------------------------


def test_sigkill_of_the_launcher_leaves_nothing_of_a_family_with_a_daemon(launcher: Any, tmp_path: Path) -> None:
    process = launcher(FAMILY)
    family = noted(tmp_path, "main", "daemon")
    process.kill()
    assert_all_gone(family)


def test_sigkill_of_the_launcher_ends_a_stopped_child(launcher: Any, tmp_path: Path) -> None:
    process = launcher(FAMILY)
    family = noted(tmp_path, "main", "daemon")
    os.kill(family[0], signal.SIGSTOP)
    process.kill()
    assert_all_gone(family)


def test_a_fork_of_the_launcher_that_outlives_it_does_not_keep_the_children_alive(
    launcher: Any, tmp_path: Path
) -> None:
    fork = """
if os.fork() == 0:
    exec(open(os.path.join(folder, "note.py")).read().format(name="fork"))
    time.sleep(600)
"""
    (tmp_path / "note.py").write_text("open(os.path.join(folder, '{name}.pid'), 'w').write(str(os.getpid()))")
    process = launcher(SLEEPER, START + fork)
    (child,) = noted(tmp_path, "main")
    wait_for("the fork", lambda: (tmp_path / "fork.pid").exists() and (tmp_path / "fork.pid").read_text())
    fork_pid = int((tmp_path / "fork.pid").read_text())
    process.kill()
    assert_all_gone([child])
    assert lives(fork_pid)
    os.kill(fork_pid, signal.SIGKILL)


def test_sigterm_to_a_supervising_launcher_ends_its_children_and_shows_in_its_exit_code(
    launcher: Any, tmp_path: Path
) -> None:
    process = launcher(SLEEPER, "with Supervisor() as s: s.start('child', child, **options); time.sleep(600)")
    child = noted(tmp_path, "main")
    process.terminate()
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert not lives(child[0])


def test_a_second_signal_during_the_stop_cuts_the_grace_short(launcher: Any, tmp_path: Path) -> None:
    child = NOTE + "signal.signal(15, lambda *_: note('asked')); note('main')\nwhile True: time.sleep(600)"
    process = launcher(child, "with Supervisor(grace=3600) as s: s.start('child', child, **options); time.sleep(600)")
    (pid,) = noted(tmp_path, "main")
    process.terminate()
    noted(tmp_path, "asked")
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE)
    assert not lives(pid)


# -- the command ends ----------------------------------------------------------------------------------------------


def test_sigkill_of_the_command_ends_the_daemon_it_left(start: Any, tmp_path: Path) -> None:
    child = start(FAMILY)
    main, daemon = noted(tmp_path, "main", "daemon")
    assert child.main_pid == main
    os.kill(main, signal.SIGKILL)
    assert child.wait(PATIENCE) == 128 + signal.SIGKILL
    assert not lives(daemon)


@pytest.mark.parametrize(
    ("code", "expected"), [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", 143)]
)
def test_the_exit_code_is_the_commands(start: Any, code: str, expected: int) -> None:
    child = start(code)
    assert child.wait(PATIENCE) == expected
    assert child.poll() == expected


def test_a_command_that_does_not_exist_ends_with_127_and_is_named_in_the_log(tmp_path: Path) -> None:
    child = ChildProcess("child", ["/no/such/program"], log_path=tmp_path / "log")
    assert child.wait(PATIENCE) == 127
    assert "/no/such/program" in child.log_tail()[-1]
    assert child.main_pid is None


def test_the_command_gets_its_own_double_dash(start: Any, tmp_path: Path) -> None:
    child = start("import sys; print(sys.argv[2:])", "--", "-x")
    child.wait(PATIENCE)
    assert child.log_tail() == ["['--', '-x']"]


# -- stop ----------------------------------------------------------------------------------------------------------


def test_stop_lets_a_child_clean_up(start: Any, tmp_path: Path) -> None:
    child = start(NOTE + "signal.signal(15, lambda *_: sys.exit(9)); note('main'); time.sleep(600)")
    noted(tmp_path, "main")
    child.stop()
    assert child.poll() == 9


def test_stop_lets_a_stopped_child_clean_up_too(start: Any, tmp_path: Path) -> None:
    child = start(NOTE + "signal.signal(15, lambda *_: sys.exit(9)); note('main'); time.sleep(600)")
    os.kill(noted(tmp_path, "main")[0], signal.SIGSTOP)
    child.stop()
    assert child.poll() == 9


def test_stop_kills_what_ignores_sigterm_after_the_grace(start: Any, tmp_path: Path) -> None:
    child = start(STUBBORN)
    noted(tmp_path, "main")
    child.stop(grace=0.2)
    assert child.poll() == 128 + signal.SIGKILL


def test_killing_a_child_leaves_none_of_its_shared_memory(start: Any, tmp_path: Path) -> None:
    code = """
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=64)
print(memory.name, flush=True)
"""
    child = start(STUBBORN.replace("note('main')", code + "note('main')"))
    noted(tmp_path, "main")
    segment = Path("/dev/shm") / child.log_tail()[0]
    assert segment.exists()
    child.stop(grace=0.0)
    assert child.poll() == 128 + signal.SIGKILL
    assert not segment.exists()


def test_stop_may_be_called_twice_and_after_the_end(start: Any) -> None:
    child = start("pass")
    child.wait(PATIENCE)
    child.stop()
    child.stop()
    assert child.poll() == 0


def test_stop_works_through_a_stopped_reaper(start: Any, tmp_path: Path) -> None:
    child = start(NOTE + "signal.signal(15, lambda *_: sys.exit(9)); note('main'); time.sleep(600)")
    noted(tmp_path, "main")
    os.kill(child.pid, signal.SIGSTOP)
    child.stop()
    assert child.poll() == 9


def test_when_the_reaper_is_killed_the_command_dies_with_it_and_stop_finds_the_rest(start: Any, tmp_path: Path) -> None:
    child = start(FAMILY)
    main, daemon = noted(tmp_path, "main", "daemon")
    os.kill(child.pid, signal.SIGKILL)
    assert_all_gone([main])
    assert child.poll() == 128 + signal.SIGKILL
    assert lives(daemon)
    child.stop()
    assert not lives(daemon)


def test_sigterm_to_the_reaper_ends_everything(start: Any, tmp_path: Path) -> None:
    child = start(SLEEPER)
    (main,) = noted(tmp_path, "main")
    os.kill(child.pid, signal.SIGTERM)
    child.wait(PATIENCE)
    assert not lives(main)


BLOCKED = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(8))
signal.signal(signal.SIGINT, lambda *_: sys.exit(9))
from postrl.host.stopping import stay_blocked
stay_blocked()
note('main')
time.sleep(600)
"""


@pytest.mark.parametrize(
    "block, code", [(FROM_OUTSIDE, 9), (STOP_SIGNALS, 128 + signal.SIGKILL)], ids=["server", "rank"]
)
def test_signals_to_every_process_reach_no_command_that_has_them_blocked(
    start: Any, tmp_path: Path, block: Any, code: int
) -> None:
    child = start(NOTE + BLOCKED, block=block)
    (main,) = noted(tmp_path, "main")
    for number in block:
        for process in psutil.Process(child.pid).children(recursive=True):  # Python's resource tracker among them
            process.send_signal(number)
        os.kill(child.pid, number)
    time.sleep(0.5)
    assert child.poll() is None and lives(main)
    child.stop()
    assert child.poll() == code


# -- signals, pipes and files --------------------------------------------------------------------------------------


def test_signals_go_to_the_command_and_ctrl_c_of_the_reaper_goes_nowhere(start: Any, tmp_path: Path) -> None:
    code = "try:\n    note('main'); time.sleep(600)\nexcept KeyboardInterrupt:\n    sys.exit(7)"
    child = start(NOTE + code)
    noted(tmp_path, "main")
    os.kill(child.pid, signal.SIGINT)
    child.signal(signal.SIGINT)
    assert child.wait(PATIENCE) == 7


def test_a_child_inherits_no_descriptor_of_ours_or_of_another_child(start: Any, tmp_path: Path) -> None:
    start(SLEEPER)
    second = start(NOTE + "print(sorted(os.listdir('/proc/self/fd')))")
    second.wait(PATIENCE)
    # 0, 1, 2 and the one that lists.
    assert second.log_tail() == ["['0', '1', '2', '3']"]


def test_losing_one_childs_pipe_ends_that_child_and_no_other(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    children = []
    for folder in folders:
        folder.mkdir()
        children.append(ChildProcess(folder.name, python(FAMILY, folder), log_path=folder / "log", grace=0.5))
    first, second = (noted(folder, "main", "daemon") for folder in folders)
    children[0]._control.close()  # what the end of the launcher does to each of them
    assert_all_gone(first)
    assert all(lives(pid) for pid in second)
    children[1].stop(grace=0.0)


def test_stdin_bytes_arrive_whole_in_every_process_that_reads_them_and_nowhere_else(start: Any) -> None:
    secret = b"s3cret" + os.urandom(1 << 20)
    code = """
import hashlib, os
from postrl.run.stdin import read_stdin
def read(): print(hashlib.sha256(read_stdin()).hexdigest(), "s3cret" in open("/proc/self/environ").read(), flush=True)
read()
if os.fork() == 0:
    read()
else:
    os.wait()
"""
    child = start(code, stdin=secret)
    assert child.wait(PATIENCE) == 0
    assert child.log_tail() == [f"{hashlib.sha256(secret).hexdigest()} False"] * 2


def test_without_stdin_bytes_a_child_reads_nothing(start: Any) -> None:
    child = start("from postrl.run.stdin import read_stdin; print(read_stdin())")
    child.wait(PATIENCE)
    assert child.log_tail() == ["b''"]


def test_env_adds_to_ours_and_none_removes(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("GONE", "1")
    child = start(
        "import os; print([os.environ.get(k) for k in ('KEPT', 'GONE', 'NEW')])", env={"GONE": None, "NEW": "2"}
    )
    child.wait(PATIENCE)
    assert child.log_tail() == ["['1', None, '2']"]


def test_waiting_too_long_names_the_child_and_its_log(start: Any, tmp_path: Path) -> None:
    child = start(SLEEPER)
    with pytest.raises(WaitTimeout, match=r"child \(pid \d+\) has not ended within 0.1 s") as error:
        child.wait(0.1)
    assert "child.log" in error.value.hint


# -- the log -------------------------------------------------------------------------------------------------------


def test_a_log_is_appended_to_and_the_tail_is_of_this_process_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for word in ("before", "now"):
        child = ChildProcess("child", python(f"print({word!r})"), log_path=log)
        child.wait(PATIENCE)
    assert log.read_text() == "before\nnow\n"
    assert child.log_tail() == ["now"]


def test_a_dead_child_is_named_with_its_exit_code_its_last_lines_and_its_log(tmp_path: Path) -> None:
    code = "import sys; print('a line'); sys.exit('the reason')"
    with pytest.raises(ChildError) as error, Supervisor() as children:
        children.start("rollout worker", python(code), log_path=tmp_path / "worker.log").wait(PATIENCE)
        children.check()
    assert "rollout worker ended with exit code 1" in error.value.message
    assert error.value.message.endswith("    a line\n    the reason")
    assert str(tmp_path / "worker.log") in error.value.hint


def test_a_killed_child_is_named_with_its_signal(start: Any, tmp_path: Path) -> None:
    child = start(SLEEPER)
    os.kill(noted(tmp_path, "main")[0], signal.SIGKILL)
    child.wait(PATIENCE)
    assert "exit code 137 (SIGKILL)" in child.failure().message
    assert "memory" in child.failure().hint


# -- the supervisor ------------------------------------------------------------------------------------------------


def test_exit_code_0_is_a_failure_unless_the_child_may_finish(tmp_path: Path) -> None:
    with Supervisor() as children:
        children.start("trainer", python("pass"), log_path=tmp_path / "t", may_finish=True).wait(PATIENCE)
        children.check()
        children.start("server", python("pass"), log_path=tmp_path / "s").wait(PATIENCE)
        with pytest.raises(ChildError, match="server ended with exit code 0"):
            children.check()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_any_way_out_of_the_block_ends_the_children(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), Supervisor() as children:
        children.start("child", python(SLEEPER, tmp_path), log_path=tmp_path / "log")
        pids = noted(tmp_path, "main")
        raise error
    assert not lives(pids[0])
    assert not lives(children.children[0].pid)


def test_the_supervisor_gives_signal_handlers_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Supervisor():
        pass
    assert signal.getsignal(signal.SIGTERM) == before


# -- imports -------------------------------------------------------------------------------------------------------


def test_the_launcher_imports_neither_torch_nor_vllm() -> None:
    modules = "reaper, process, placement, accelerate, vllm, pool, logs, ports"
    code = f"import sys; from postrl.launch import {modules}; print({{'torch', 'transformers', 'vllm'}} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.fixture(scope="module", autouse=True)
def started_before() -> set[psutil.Process]:
    """Children of other tests, such as the sandbox's fork server, which lives as long as this process."""
    return set(psutil.Process().children(recursive=True))


def test_no_child_of_this_file_is_left(started_before: set[psutil.Process]) -> None:
    """Last in the file: what the tests above started is gone."""
    left = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    assert not {*left} - started_before
