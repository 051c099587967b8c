from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from postrl.rewards import resolve
from postrl.rewards.calling.child import Child, Killed
from rewards.groups import PATIENCE, lives, reward_processes_of, wait_until

SCRIPT = """
import asyncio, os, subprocess, sys, time
from pathlib import Path
from postrl.rewards import RewardRunner, resolve
from postrl.types import Group, Rollout

here = Path(sys.argv[1])

def starts_a_child(completions):
    (here / "child").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
    return [1.0] * len(completions)

def busy(completions):
    (here / "called").touch()
    base = 9
    return [base ** base ** base]

async def main():
    runner = RewardRunner([resolve(starts_a_child), resolve(busy), resolve("math")], timeout=1000)
    await runner.start()
    rollout = Rollout("p", 0, [1], [2], [0.0], [], "stop", completion="text")
    await runner.score(Group("p", 0, "p", None, {}, [rollout], ("starts_a_child",)))
    task = asyncio.ensure_future(runner.score(Group("p", 0, "p", None, {}, [rollout], ("busy",))))
    while not (here / "called").exists():
        await asyncio.sleep(0.01)
    (here / "ready").touch()
    if sys.argv[2] == "hang":
        await task
    os._exit(0)

asyncio.run(main())
"""


def started() -> Child:
    spec = resolve("arithmetic").to_wire()
    child = Child(
        "postrl.rewards.calling.serving",
        first={"spec": spec, "settings": {}},
        loaded=dict,
        load_timeout=PATIENCE,
        log_path=None,
    )
    child.start()
    return child


def test_a_child_ends_with_the_socket_of_who_holds_it():
    child = started()
    child._channel.close()
    assert child._process.wait(PATIENCE) == -signal.SIGKILL
    child.end()


def test_a_child_outlives_the_thread_that_started_it():
    children = []
    thread = threading.Thread(target=lambda: children.append(started()))
    thread.start()
    thread.join(PATIENCE)
    (child,) = children
    first = child.pid
    request = {"inputs": {"completions": ["7"], "answer": [7]}, "count": 1}
    assert child.ask(request, PATIENCE, "a call", dict)["statuses"] == ["correct"]
    assert child.pid == first is not None
    child.end()


def test_a_child_that_was_killed_is_not_started_again():
    child = started()
    child.kill()
    with pytest.raises(Killed):
        child.ask({}, PATIENCE, "a call", dict)
    child.end()
    with pytest.raises(Killed):
        child.start()


@pytest.mark.parametrize("end", ["SIGKILL", "os._exit"])
def test_nothing_outlives_the_parent_however_it_ends(tmp_path, end):
    """Three processes: one idle whose function started a process, one in a C call that never ends, one idle built-in."""
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT)
    mode = "hang" if end == "SIGKILL" else "leave"
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path), mode])
    try:
        wait_until((tmp_path / "ready").exists, "the processes")
        child = int((tmp_path / "child").read_text())
        if end == "SIGKILL":
            assert len(reward_processes_of(parent.pid)) >= 3
            assert lives(child)
            os.kill(parent.pid, signal.SIGKILL)
        parent.wait(PATIENCE)
        wait_until(lambda: not reward_processes_of(parent.pid) and not lives(child), "the end of all of them")
    finally:
        parent.kill()
        parent.wait()
        for process in reward_processes_of(parent.pid):
            process.kill()
