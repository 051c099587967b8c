"""Small programs that tests start as children, and ways to see which of them live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PATIENCE = 120.0
"""Seconds a test waits for something that takes milliseconds on an idle machine."""
SLOW = 900.0
"""The same for programs that import torch."""

NOTE = """
import os, signal, sys, time
folder = sys.argv[1]
def note(name):
    with open(os.path.join(folder, name + ".tmp"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(os.path.join(folder, name + ".tmp"), os.path.join(folder, name + ".pid"))
"""
SLEEPER = NOTE + "note('main'); time.sleep(600)"
STUBBORN = NOTE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); note('main'); time.sleep(600)"
# A main process, and a daemon that left its session and its parent; both ignore SIGTERM and SIGHUP.
FAMILY = (
    NOTE
    + """
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note("daemon")
        time.sleep(600)
    os._exit(0)
os.wait()
note("main")
time.sleep(600)
"""
)


def python(code: str, *args: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, args)]


def wait_for(what: str, condition: Callable[[], object], patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience:g} s for {what}"
        time.sleep(0.02)


def noted(folder: Path, *names: str) -> list[int]:
    """The pids that children noted under these names, once all have."""
    paths = [folder / f"{name}.pid" for name in names]
    wait_for(f"{names} to start", lambda: all(path.exists() for path in paths))
    return [int(path.read_text()) for path in paths]


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
