"""Reads what processes write to their logs: the new lines, the last ones, and the cause of an end."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_TERMINAL_CODE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# "(EngineCore pid=12) ERROR 11-29 16:50:56 [core.py:953] ", which vLLM puts before each line of a traceback, and
# "[rank0]: ", which torch does.
_PREFIX = re.compile(
    r"^(?:\(\w+ pid=\d+\) ?|\[(?:default|rank)\d+\]: ?)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt)(?:: .*)?$")
_ARGPARSE = re.compile(r"^[\w.-]+: error: (.*)$")
# Exceptions that only say that another process failed.
_ECHO = re.compile(
    r"See root cause above|See stack trace for root cause|check the stack trace above for the root cause"
    r"|ChildFailedError|SignalException|CalledProcessError|EngineDeadError|BrokenPipeError|ConnectionResetError|KeyboardInterrupt"
)
_LONGEST_CAUSE = 600


def read_end(path: str | Path, *, start: int = 0, limit: int = 1 << 18) -> list[str]:
    """The last lines of a log, at most `limit` bytes of it and nothing before byte `start`.

    Logs may hold what a model wrote: terminal codes and control characters are removed. Of a line that was drawn
    over (a progress bar), the last drawing is kept. An unreadable log has no lines.
    """
    try:
        with open(path, "rb") as log:
            end = log.seek(0, 2)
            begin = max(start, end - limit)
            log.seek(begin)
            text = log.read(limit).decode(errors="replace")
    except OSError:
        return []
    lines = text.replace("\r\n", "\n").split("\n")
    if begin > start:
        lines = lines[1:]  # most likely half a line
    lines = [_CONTROL.sub("", _TERMINAL_CODE.sub("", line.rstrip("\r").rpartition("\r")[2])).rstrip() for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def tail(path: str | Path, n: int = 20, *, start: int = 0) -> list[str]:
    """The last `n` lines of a log, cleaned as `read_end` does."""
    return read_end(path, start=start)[-n:]


def cause(path: str | Path, *, start: int = 0) -> str | None:
    """What a log says about why its process failed: the message of the last exception or usage error in it.

    Exceptions that only report the failure of another process of the same server or trainer are passed over, as long
    as there is another. None when the log has none.
    """
    lines = [_PREFIX.sub("", line, count=1) for line in read_end(path, start=start)]
    found = echo = None
    for i, line in enumerate(lines):
        if match := _ARGPARSE.match(line):
            found = match[1]
        elif _EXCEPTION.match(line):
            message = _whole_message(lines, i)
            if _ECHO.search(message):
                echo = message
            else:
                found = message
    return found or echo


def _whole_message(lines: list[str], i: int) -> str:
    """The exception at line i; pydantic puts what is wrong on the indented line below."""
    message = lines[i].strip()
    if "validation error" in message and i + 1 < len(lines):
        detail = lines[i + 1].strip().partition(" [type=")[0]
        message = detail.removeprefix("Value error, ")
    if len(message) > _LONGEST_CAUSE:
        message = message[:_LONGEST_CAUSE] + " ..."
    return message


class Tail:
    """New whole lines of a growing file, from byte `start` on; `Tail.at_end`: of what comes after what it has now."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self.path, self.offset = path, start

    @classmethod
    def at_end(cls, path: Path) -> Tail:
        return cls(path, start=path.stat().st_size if path.exists() else 0)

    def new_lines(self) -> list[str]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return []
        whole, newline, _ = data.rpartition(b"\n")
        self.offset += len(whole + newline)
        return [line for line in whole.decode(errors="replace").split("\n") if line]


@contextlib.contextmanager
def following(path: Path, show: Callable[[str], None], *, poll: float = 0.1) -> Iterator[None]:
    """Has a thread `show` each line that comes to a file within the block, the last ones before the block is left."""
    new, left = Tail.at_end(path), threading.Event()

    def follow() -> None:
        while not left.wait(poll):
            for line in new.new_lines():
                show(line)

    thread = threading.Thread(target=follow, daemon=True, name=f"following {path.name}")
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
        for line in new.new_lines():
            show(line)
