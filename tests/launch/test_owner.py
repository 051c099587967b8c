"""A run's folder has one owner: real processes that hold it, die with it, and start at the same time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from postrl.config import GRPOConfig
from postrl.errors import UsageError, WaitTimeout
from postrl.launch import owner
from postrl.launch.owner import owning, refuse_if_owned, run_folder_of, writing_as_rank
from postrl.run.folder import RunFolder

HOLD = """
import os, subprocess, sys, time
from postrl.launch.owner import owning, writing_as_rank
from postrl.run.folder import RunFolder
with {how}(RunFolder(sys.argv[1])):
    child = os.fork()                          # as multiprocessing does
    if not child:
        time.sleep(60)
    sleeper = subprocess.Popen(["sleep", "60"])
    print(child, sleeper.pid, flush=True)
    time.sleep(60)
"""


class Holder:
    """A process that holds a folder, with a forked and a started child."""

    def __init__(self, path: Path, how: str = "owning") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(how=how), str(path)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.children = [int(pid) for pid in self.process.stdout.readline().split()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def holding(tmp_path):
    held = []

    def start(how="owning"):
        held.append(Holder(tmp_path / "run", how))
        return held[-1]

    yield start
    for holder in held:
        holder.close()


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def config(folder: RunFolder, **options) -> GRPOConfig:
    return GRPOConfig(model="m", dataset=["arithmetic"], output_dir=str(folder.path), **options)


# -- one owner ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_is_told_who_has_the_folder(folder, holding, resume):
    folder.prepare(config(folder, seed=1))
    first = holding()
    with (
        pytest.raises(
            UsageError, match=rf"a run goes on in .*: pid {first.process.pid} on {socket.gethostname()}, since "
        ),
        run_folder_of(config(folder, seed=1, resume=resume)),
    ):
        pass
    assert GRPOConfig.from_yaml(folder.config).seed == 1
    with pytest.raises(UsageError, match="a run goes on"):
        refuse_if_owned(folder)


def test_a_killed_owner_leaves_nothing_locked_while_its_children_live(folder, holding):
    holding().kill()
    refuse_if_owned(folder)
    with owning(folder):
        pass


START = """
import datetime, sys
from postrl.run import folder as run_folder
from postrl.config import GRPOConfig
from postrl.errors import UsageError, WaitTimeout
from postrl.launch.owner import run_folder_of

class SameSecond(datetime.datetime):
    now = classmethod(lambda cls: datetime.datetime(2026, 1, 1))

run_folder.datetime = SameSecond
print(flush=True)
sys.stdin.readline()
try:
    with run_folder_of(GRPOConfig(model="m", dataset=["arithmetic"], output_dir=sys.argv[1] if sys.argv[1:] else None)) as (_, it):
        print(it.path, flush=True)
        sys.stdin.readline()
except UsageError as error:
    print(error.message, flush=True)
"""


def started_at_once(n: int, *args: str, cwd: Path) -> list[str]:
    """What `n` processes say whose runs start at the same time and then go on."""
    ran = [
        subprocess.Popen(
            [sys.executable, "-c", START, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd
        )
        for _ in range(n)
    ]
    for process in ran:
        process.stdout.readline()
    for process in ran:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.stdout.readline().strip() for process in ran]
    for process in ran:
        process.communicate("end\n")
    return said


def test_of_several_that_start_at_once_in_a_folder_one_gets_it(tmp_path):
    said = started_at_once(4, "run", cwd=tmp_path)
    assert said.count("run") == 1
    assert sum(line.startswith("a run goes on in run: pid ") for line in said) == 3


def test_runs_of_a_sweep_that_start_in_the_same_second_get_folders_of_their_own(tmp_path):
    said = started_at_once(4, cwd=tmp_path)
    name = "runs/m-arithmetic-20260101-000000"
    assert sorted(said) == [name, f"{name}-2", f"{name}-3", f"{name}-4"]
    configs = [GRPOConfig.from_yaml(tmp_path / line / "config.yaml") for line in said]
    assert {config.run_name for config in configs} == {Path(line).name for line in said}


def test_a_name_that_was_given_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with run_folder_of(GRPOConfig(model="m", dataset=["arithmetic"], run_name="mine")) as (named, folder):
        assert (named.run_name, str(folder.path)) == ("mine", "runs/mine")


def test_a_trainer_of_the_same_process_is_named_as_such(folder):
    with (
        owning(folder),
        pytest.raises(UsageError, match="another trainer of this process") as caught,
        owning(folder),
    ):
        pass
    assert "trainer.close()" in caught.value.hint


# -- ranks of a launcher that is gone ----------------------------------------------------------------------------------


def test_the_next_owner_waits_for_the_ranks_of_the_one_before(folder, holding, monkeypatch):
    folder.logs.mkdir(parents=True)
    rank = holding("writing_as_rank")
    monkeypatch.setattr(owner, "RANKS_TIMEOUT", 0.3)
    with pytest.raises(WaitTimeout, match="trainer ranks of an earlier run"), owning(folder):
        pass
    rank.kill()
    with owning(folder), writing_as_rank(folder):
        pass


# -- files that cannot be locked -----------------------------------------------------------------------------------------


@pytest.fixture
def no_locks(monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


def left_by(folder: RunFolder, **who) -> None:
    folder.logs.mkdir(parents=True, exist_ok=True)
    (folder.logs / "owner.lock").write_text(json.dumps({"since": "2026-01-01 00:00:00", **who}))


def test_without_locks_a_live_owner_of_this_machine_is_known_by_its_pid(folder, no_locks):
    left_by(folder, pid=os.getppid(), host=socket.gethostname())
    with pytest.raises(UsageError, match=f"pid {os.getppid()}"), owning(folder):
        pass


def test_without_locks_an_owner_elsewhere_is_told(folder, no_locks, capsys):
    left_by(folder, pid=7, host="node-3")
    with owning(folder):
        pass
    assert "cannot be locked" in capsys.readouterr().err.replace("\n", " ")


def test_a_forked_child_that_leaves_the_block_touches_nothing(tmp_path):
    code = f"""
import os, sys
from postrl.launch.owner import owning
from postrl.run.folder import RunFolder
with owning(RunFolder({str(tmp_path / "run")!r})):
    if os.fork() == 0:
        file = open({str(tmp_path / "mine")!r}, "w")  # gets the number of the lock
        file.write("kept"); file.flush()
        sys.exit(0)
    print(os.wait()[1], flush=True)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "0\n"
    assert (tmp_path / "mine").read_text() == "kept"
