"""Files and folders that are there whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Where to write the file: it takes the name `target` when the block ends well, and is gone when it does not."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def write_whole(target: Path, text: str) -> None:
    """The text as a whole file; what UTF-8 does not know in it is escaped."""
    with whole_file(target) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A new folder to fill: it takes the name `target`, which must be free or an empty folder, when the block ends well, and
    is gone when it does not. What a killed process leaves behind is called .NAME-..."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    part.mkdir()
    try:
        yield part
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
