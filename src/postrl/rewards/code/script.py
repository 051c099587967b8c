"""The process of a stdio test: runs the candidate as a script, on real pipes.

The source comes from a descriptor, so that the folder it runs in is empty.
"""

from __future__ import annotations

import os

DOES_NOT_COMPILE = 97
"""Exit status. A script may choose it, too: it fails either way."""


def main(source_fd: str) -> None:
    import json  # in here: the caller imports this module for its constant
    import sys

    from postrl.rewards.code import hide, prelude
    from postrl.rewards.code.entry import read_all

    alternatives, readable = json.loads(read_all(int(source_fd)))
    os.close(int(source_fd))
    del sys.meta_path[0]  # that of `entry`
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
