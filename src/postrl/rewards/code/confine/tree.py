"""Remove a folder that a hostile program filled."""

from __future__ import annotations

import contextlib
import os
import stat
import time

FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
DEEPEST = 100


def remove(folder: str, within: float = 10.0) -> bool:
    """Remove a folder with everything in it, unreadable, deeply nested or full of links as it may be.

    Folders inside folders are moved up to the top before they are emptied, so depth costs neither recursion nor path
    length. Links are removed, never followed. Nothing may still write to it.

    Returns:
        Whether it is gone; what cannot be removed within `within` seconds stays.
    """
    deadline = time.monotonic() + within
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            os.unlink(folder)
            return True
        os.chmod(folder, 0o700)
        top = os.open(folder, FOLDER)
    except OSError:
        return not os.path.lexists(folder)
    try:
        while names := os.listdir(top):
            for name in names:
                if time.monotonic() > deadline:
                    return False
                if not _unlinked(name, top):
                    _empty(name, top)
        os.rmdir(folder)
    except OSError:
        return False
    finally:
        os.close(top)
    return True


def _unlinked(name: str, parent: int) -> bool:
    """Remove an entry unless it is a folder."""
    if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=parent)
    return True


def _empty(name: str, top: int) -> None:
    """Remove one folder of the top, after moving the folders in it to the top."""
    os.chmod(name, 0o700, dir_fd=top)
    folder = os.open(name, FOLDER, dir_fd=top)
    try:
        for entry in os.listdir(folder):
            if not _unlinked(entry, folder):
                os.chmod(entry, 0o700, dir_fd=folder)  # a folder that moves must be writable
                os.rename(entry, os.urandom(16).hex(), src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def measure(folder: str, most_files: int) -> tuple[int, int]:
    """Bytes on disk and number of entries, of which at most `most_files` are looked at. Links are not followed.

    Folders nested deeper than DEEPEST count as `most_files`: looking into them takes ever longer.
    """
    size, files, folders = 0, 0, [(folder, 0)]
    while folders and files < most_files:
        path, depth = folders.pop()
        if depth > DEEPEST:
            return size, most_files
        with contextlib.suppress(OSError), os.scandir(path) as entries:  # gone, or unreadable also for the program
            for entry in entries:
                files += 1
                found = entry.stat(follow_symlinks=False)
                size += 512 * found.st_blocks
                if stat.S_ISDIR(found.st_mode):
                    folders.append((entry.path, depth + 1))
                if files >= most_files:
                    break
    return size, files
