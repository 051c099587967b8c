"""A long wait says what it waits for, and Ctrl-C ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

T = TypeVar("T")

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


@asynccontextmanager
async def speaking_of(note: Callable[[str], None], what: Callable[[], str]) -> AsyncIterator[None]:
    """The same in an event loop, by its clock, of what changes meanwhile."""

    async def speak() -> None:
        now = asyncio.get_running_loop().time
        since = now()
        while True:
            await asyncio.sleep(SPEAK_AFTER)
            note(f"waited {now() - since:.0f} s for {what()}")

    task = asyncio.create_task(speak())
    try:
        yield
    finally:
        task.cancel()


def in_thread(act: Callable[[], T]) -> Future[T]:
    """Like an executor, but in a daemon thread: neither Ctrl-C nor the end of the process waits for what hangs in it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
