from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from postrl.rewards.calling.process import _spawn
from rewards.groups import PATIENCE, lives, wait_until, workers_of

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


def test_a_worker_ends_with_its_request_pipe():
    child = _spawn(None)
    os.close(child.requests)
    assert child.process.wait(PATIENCE) == -signal.SIGKILL
    os.close(child.replies)


@pytest.mark.parametrize("end", ["SIGKILL", "os._exit"])
def test_nothing_outlives_the_parent_however_it_ends(tmp_path, end):
    """Three workers: one idle whose function started a process, one in a C call that never ends, one idle built-in."""
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT)
    mode = "hang" if end == "SIGKILL" else "leave"
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path), mode])
    try:
        wait_until((tmp_path / "ready").exists, "the workers")
        child = int((tmp_path / "child").read_text())
        if end == "SIGKILL":
            assert len(workers_of(parent.pid)) >= 3
            assert lives(child)
            os.kill(parent.pid, signal.SIGKILL)
        parent.wait(PATIENCE)
        wait_until(lambda: not workers_of(parent.pid) and not lives(child), "the end of all workers")
    finally:
        parent.kill()
        parent.wait()
        for process in workers_of(parent.pid):
            process.kill()
