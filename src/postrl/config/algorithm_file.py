"""An algorithm of the user's: a `Preset` in a Python file, `--algorithm my_algo.py:MyAlgo`."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from postrl.algorithms.presets import Preset, is_file
from postrl.errors import UsageError
from postrl.user_code import run_file

FORM = "write it as file.py:NAME, with NAME = postrl.algorithms.Preset(...) in the file (docs/algorithms.md)"


def check_preset(name: str) -> None:
    """Find, without running it, what keeps `file.py:NAME` from being an algorithm. For the launcher.

    Raises:
        UsageError: the file is missing, is no Python, or does not define NAME.
    """
    if not is_file(name):
        return
    path, attribute = _parts(name)
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"the algorithm file {path} is not Python: {error}", hint=FORM) from error
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    if attribute not in names | imported:
        raise UsageError(f"algorithm is {name!r}, and {path} does not define {attribute}", hint=FORM)


def load_preset(name: str) -> str | Preset:
    """The preset that `file.py:NAME` means; any other name is returned as it is. Runs the file.

    Raises:
        UsageError: the file or the name is missing, the file fails, or what it holds is no preset.
    """
    if not is_file(name):
        return name
    path, attribute = _parts(name)
    found = getattr(_run(path.resolve()), attribute, None)
    if not isinstance(found, Preset):
        what = "nothing of this name" if found is None else f"a {type(found).__name__} there"
        raise UsageError(f"algorithm is {name!r}, and {path} holds {what}", hint=FORM)
    if found.settings:
        raise UsageError(
            f"{path} gives {attribute} settings of its own ({', '.join(found.settings)}), which come too late from a file",
            hint="give them as flags or with --config; those of an algorithm that a script registers count",
        )
    return found


def _parts(name: str) -> tuple[Path, str]:
    place, _, attribute = name.rpartition(":")
    path = Path(place).expanduser()
    if not path.is_file():
        raise UsageError(f"algorithm is {name!r}, and there is no file {path.absolute()}", hint=FORM)
    return path, attribute


@cache
def _run(path: Path) -> Any:
    try:
        return run_file(path)
    except Exception as error:
        raise UsageError(
            f"the algorithm file {path} cannot be run: {type(error).__name__}: {error}",
            hint=f"`python {path}` shows where; {FORM}",
        ) from error
