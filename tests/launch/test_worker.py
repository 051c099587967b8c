"""The rollout worker's process, in whose place small programs listen, die and freeze."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postrl.errors import ChildError, RewardError, WaitTimeout, error_to_wire
from postrl.launch.process import Supervisor
from postrl.launch.worker import WorkerProcess
from postrl.run.folder import RunFolder
from postrl.run.messages import connect

from .support import PATIENCE, lives, python, wait_for

LISTENER = """
import os, socket, sys
path = sys.argv[1]
if os.path.exists(path):
    sys.exit("the address is taken")
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
while True:
    server.accept()[0].sendall(str(os.getpid()).encode())
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Makes workers that are ended with the test."""
    folder = RunFolder(tmp_path / "run")
    path = tmp_path / "socket" / "worker.sock"
    path.parent.mkdir()
    made: list[WorkerProcess] = []
    with Supervisor(grace=0.0) as children:

        def start(code: str) -> Any:
            return children.start("worker", python(code, path), log_path=folder.logs / "worker.log", may_finish=True)

        def make(code: str = LISTENER, **options: Any) -> WorkerProcess:
            made.append(WorkerProcess(lambda: start(code), folder, path, **options))
            return made[-1]

        yield make
        for each in made:
            each.end()


def pid_at(path: Path) -> int | None:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            return int(client.recv(64))
    except (OSError, ValueError):  # ValueError: it died on the way
        return None


def wait_for_pid(kept: WorkerProcess) -> int:
    wait_for("an answer", lambda: pid_at(kept.socket))
    pid = pid_at(kept.socket)
    assert pid is not None
    return pid


def kill(worker: WorkerProcess) -> None:
    pid = worker.process.main_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for("the reaper to notice", lambda: worker.process.poll() is not None)


def notes(worker: WorkerProcess) -> list[str]:
    return (worker.folder.logs / "notes.log").read_text().splitlines()


def test_a_killed_worker_is_started_again_at_the_same_address_and_that_is_noted(worker: Any) -> None:
    kept = worker()
    kept.wait_until_ready()
    first = wait_for_pid(kept)
    kill(kept)
    kept.check()
    assert wait_for_pid(kept) != first
    assert notes(kept) == [
        "the rollout worker ended with exit code 137 (SIGKILL) and is started again; what it was working on is asked for again"
    ]


def test_many_threads_that_look_at_once_start_one(worker: Any) -> None:
    kept = worker()
    kept.wait_until_ready()
    kill(kept)
    threads = [threading.Thread(target=kept.check) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert wait_for_pid(kept) == kept.process.main_pid
    assert len(notes(kept)) == 1


def test_the_background_watch_starts_it_again_until_it_may_not(worker: Any) -> None:
    kept = worker(max_restarts=1)
    kept.wait_until_ready()
    kept.watch_in_background(0.02)
    for _ in range(2):
        os.kill(wait_for_pid(kept), signal.SIGKILL)

    def given_up() -> str:
        try:
            kept.check()
        except ChildError as error:
            return error.message
        return ""

    wait_for("the end", given_up)
    assert "worker ended with exit code 137 (SIGKILL)" in given_up()
    assert given_up().endswith("(restarted 1 times within 1800 s)")
    with pytest.raises(WaitTimeout, match="nothing will answer"):
        connect(f"unix:{kept.socket}", timeout=PATIENCE)


def test_a_worker_that_left_an_error_is_not_started_again(worker: Any) -> None:
    kept = worker()
    kept.wait_until_ready()
    kept.folder.save_error("worker", {**error_to_wire(RewardError("score is broken")), "traceback": "..."})
    kill(kept)
    for _ in range(2):  # whoever looks hears it
        with pytest.raises(RewardError, match="score is broken"):
            kept.check()
    assert not (kept.folder.logs / "notes.log").exists()


def test_a_worker_that_dies_before_it_listens_is_an_error_of_the_start(worker: Any) -> None:
    with pytest.raises(ChildError, match=r"(?s)exit code 3.*no data here"):
        worker("import sys; print('no data here'); sys.exit(3)").wait_until_ready()


def test_a_worker_that_ends_well_stays_ended(worker: Any) -> None:
    kept = worker("pass")
    kept.process.wait(PATIENCE)
    ended = kept.process
    kept.check()
    assert kept.process is ended


def test_a_worker_that_is_stopped_for_too_long_is_replaced(worker: Any) -> None:
    kept = worker(frozen_after=0.3)
    kept.wait_until_ready()
    frozen = wait_for_pid(kept)
    os.kill(frozen, signal.SIGSTOP)

    def replaced() -> bool:
        kept.check()
        return kept.process.main_pid != frozen

    wait_for("another process", replaced)
    assert not lives(frozen)
    assert "was stopped for 0.3 s and is started again" in notes(kept)[0]
    assert wait_for_pid(kept) != frozen


def test_a_worker_that_goes_on_soon_stays(worker: Any) -> None:
    kept = worker()
    kept.wait_until_ready()
    pid = wait_for_pid(kept)
    os.kill(pid, signal.SIGSTOP)
    kept.check()
    os.kill(pid, signal.SIGCONT)
    wait_for("it to go on", lambda: pid_at(kept.socket) == pid)
    kept.check()
    assert kept.process.main_pid == pid


def test_nothing_is_started_once_the_end_has_begun(worker: Any) -> None:
    kept = worker()
    kept.wait_until_ready()
    kept.end()
    kill(kept)
    dead = kept.process
    kept.check()
    assert kept.process is dead
