"""The code that the processes of a sample run, compiled once for all of them.

They cannot write bytecode, and an interpreter that does not either (PYTHONDONTWRITEBYTECODE, a read-only installation)
would have each of them compile anew, which takes longer than the rest of a sample.
"""

from __future__ import annotations

import functools
import marshal
import os
import tempfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

from postrl.rewards.code.entry import PACKAGE

FOLDER = Path(__file__).parent
PACKAGES = ("postrl", "postrl.rewards", PACKAGE, f"{PACKAGE}.confine")
MODULES = (
    "candidate", "confine.kernel", "confine.landlock", "emptiness", "entry", "expect", "folder", "handles", "harness", "hide", "prelude",
    "pytest_api", "script", "shared", "standins", "tester", "wire",
)  # fmt: skip


@functools.cache
def code_fd() -> int:
    """A descriptor of a file with the code of all modules by name. It is open for reading only: what a candidate could
    write there, the tests of the next would run."""
    codes = dict.fromkeys(PACKAGES) | {f"{PACKAGE}.{name}": _code(name) for name in MODULES}
    with tempfile.NamedTemporaryFile(prefix="postrl-code-") as file:
        file.write(marshal.dumps(codes))
        file.flush()
        return os.open(file.name, os.O_RDONLY | os.O_CLOEXEC)


def _code(name: str) -> object:
    path = FOLDER.joinpath(*name.split(".")).with_suffix(".py")
    return SourceFileLoader(name, str(path)).get_code(name)
