"""Where the processes of a sample begin: `python entry.py ROLE CODE_FD ARGUMENT...`, with a module of this folder as the
role, and the code of all of them behind a descriptor (see `bundle`).
"""

from __future__ import annotations

import importlib
import marshal
import os
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from collections.abc import Mapping

PACKAGE = "postrl.rewards.code"


class Bundle:
    """Imports modules whose code is at hand; the code of a package is None: what their __init__ files import takes a
    second and has no place beside a candidate."""

    def __init__(self, codes: Mapping[str, types.CodeType | None]) -> None:
        self.codes = codes

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self.codes:
            return None
        return ModuleSpec(name, self, is_package=self.codes[name] is None)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        code = self.codes[module.__name__]
        if code is not None:
            exec(code, vars(module))


def start(role: str, code_fd: str, *arguments: str) -> None:
    codes = marshal.loads(read_all(int(code_fd)))  # the caller's, through a file that nobody can write
    os.close(int(code_fd))
    sys.meta_path.insert(0, Bundle(codes))
    sys.argv[:] = ["solution.py"]
    importlib.import_module(f"{PACKAGE}.{role}").main(*arguments)


def read_all(fd: int) -> bytes:
    """All of a file that other processes read at the same time: without the position that they share."""
    data = b""
    while piece := os.pread(fd, 1 << 20, len(data)):
        data += piece
    return data


if __name__ == "__main__":
    start(*sys.argv[1:])
