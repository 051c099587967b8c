"""A long wait says what it waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SPEAK_AFTER = 60.0
"""Seconds after which a wait is named, and again."""


@contextmanager
def speaking(note: Callable[[str], None], what: str) -> Iterator[None]:
    """While the block waits, `note` hears of it every minute: "waited 60 s for <what>"."""
    over = threading.Event()

    def speak() -> None:
        waited = 0.0
        while not over.wait(SPEAK_AFTER):
            waited += SPEAK_AFTER
            note(f"waited {waited:.0f} s for {what}")

    thread = threading.Thread(target=speak, name=f"waiting for {what}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
