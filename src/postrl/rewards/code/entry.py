"""Where the processes of a sample begin: `python entry.py ROLE ARGUMENT...`, with a module of this folder as the role.

They import their modules by the usual names, but from a skeleton of the package: what its __init__ files import takes
a second and has no place beside a candidate.
"""

from __future__ import annotations

import importlib
import os
import sys
import types


def start(role: str, *arguments: str) -> None:
    for name in ("postrl", "postrl.rewards", "postrl.rewards.code"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules["postrl.rewards.code"].__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.argv[:] = ["solution.py"]
    importlib.import_module(f"postrl.rewards.code.{role}").main(*arguments)


if __name__ == "__main__":
    start(*sys.argv[1:])
