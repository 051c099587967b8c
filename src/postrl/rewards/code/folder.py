"""The files of tests and candidate, each with a folder of its own: what has changed in one, made in the other."""

from __future__ import annotations

import importlib
import os
import stat

LARGEST_FILES = 4 << 20
"""Bytes of the files that change between two looks."""


class Folder:
    """The folder of this process, as the other one last knew it. Regular files and folders only."""

    def __init__(self) -> None:
        self.path = os.getcwd()
        self.known = self._look()

    def changes(self) -> dict[str, bytes | bool]:
        """What is new since the last look: the contents of files, True for a folder, False for what is gone.

        Raises:
            MemoryError: it is too much.
        """
        now = self._look()
        found: dict[str, bytes | bool] = dict.fromkeys(self.known.keys() - now.keys(), False)
        size = 0
        for name in sorted(name for name, state in now.items() if self.known.get(name) != state):
            found[name] = now[name] == () or self._content(name)
            size += len(content) if type(content := found[name]) is bytes else 0
            if size > LARGEST_FILES:
                raise MemoryError("files of more than 4 MiB do not pass between tests and candidate")
        self.known = now
        return found

    def apply(self, changes: dict[str, bytes | bool]) -> None:
        """Make what the other side says that has changed. Nothing outside of the folder, and nothing through a link."""
        for name in sorted(changes):
            parts = name.split("/")
            if not all(parts) or {".", ".."} & {*parts} or any(map(os.path.islink, self._above(parts))):
                raise ValueError("a file that is not in the folder")
            self._make(os.path.join(self.path, name), changes[name])
        self.known = self._look()

    def _make(self, path: str, content: bytes | bool) -> None:
        if type(content) is bytes:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(path, flags, 0o600), "wb") as file:
                file.write(content)
        elif content:
            os.makedirs(path, exist_ok=True)
        elif os.path.isdir(path):
            importlib.import_module("shutil").rmtree(path)
        elif os.path.lexists(path):
            os.remove(path)

    def _above(self, parts: list[str]) -> list[str]:
        return [os.path.join(self.path, *parts[:count]) for count in range(1, len(parts))]

    def _content(self, name: str) -> bytes:
        with open(os.open(os.path.join(self.path, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(LARGEST_FILES + 1)

    def _look(self) -> dict[str, tuple[int, ...]]:
        """Each path with what changes when it does; () for a folder."""
        found: dict[str, tuple[int, ...]] = {}
        for above, folders, files in os.walk(self.path):
            for name in (*folders, *files):
                path = os.path.join(above, name)
                state = os.lstat(path)
                relative = os.path.relpath(path, self.path)
                if stat.S_ISDIR(state.st_mode):
                    found[relative] = ()
                elif stat.S_ISREG(state.st_mode):
                    found[relative] = (state.st_mtime_ns, state.st_size, state.st_ino)
        return found
