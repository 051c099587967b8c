"""The process of a stdio test: runs the candidate as a script, on real pipes.

    entry.py script SOURCE_FD

The source comes from a descriptor, so that the folder it runs in is empty.
"""

from __future__ import annotations

import os

DOES_NOT_COMPILE = 97
"""Exit status. A script may choose it, too: it fails either way."""


def main(source_fd: str) -> None:
    import json  # in here: the caller imports this module for its constant
    import sys

    from postrl.rewards.code import prelude

    alternatives, readable = json.loads(_read(int(source_fd)))
    os.close(int(source_fd))
    if readable:
        from postrl.rewards.code import hide

        hide.read_only_from(readable)
    try:
        (code,) = prelude.compile_first(alternatives)
    except SyntaxError:
        os._exit(DOES_NOT_COMPILE)
    names = vars(sys.modules["__main__"])
    names.clear()
    names.update(__name__="__main__", __file__="solution.py", __builtins__=__builtins__, __spec__=None, __doc__=None)
    prelude.provide(code, names)
    exec(code, names)


def _read(fd: int) -> bytes:
    """All of a file that other tests read at the same time: without its shared position."""
    data = b""
    while piece := os.pread(fd, 1 << 20, len(data)):
        data += piece
    return data
