"""A long wait says what it waits for, and Ctrl-C ends it."""

from __future__ import annotations

import subprocess
import sys
import threading

from postrl.run import waiting
from postrl.run.waiting import speaking


def test_a_long_wait_is_named_again_and_again(monkeypatch):
    monkeypatch.setattr(waiting, "SPEAK_AFTER", 0.01)
    notes: list[str] = []
    twice = threading.Event()

    def note(text: str) -> None:
        notes.append(text)
        if len(notes) == 2:
            twice.set()

    with speaking(note, "the servers"):
        assert twice.wait(30)
    assert all(text.startswith("waited ") and text.endswith(" s for the servers") for text in notes)


def test_a_short_wait_is_silent_and_leaves_no_thread():
    notes: list[str] = []
    before = set(threading.enumerate())
    with speaking(notes.append, "nothing"):
        pass
    assert (notes, set(threading.enumerate()) - before) == ([], set())


ENDLESS = """
import os, signal, threading
from concurrent.futures import wait
from postrl.run.waiting import in_thread
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    wait([in_thread(threading.Event().wait)])
except KeyboardInterrupt:
    print("interrupted")
"""


def test_neither_ctrl_c_nor_the_end_of_the_process_waits_for_what_hangs_in_a_thread():
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0)
