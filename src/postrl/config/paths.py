"""Which part of a setting's value is a path: `setting(..., path=KIND)` in `postrl.config.settings` names the kind, once.

    change_paths(f, ["math", "my.py:score"], os.path.abspath)     for the field `reward`: ["math", "/here/my.py:score"]

A kind says of a text what stands before the path, the path, and what stands behind it; None where the text is a name.
Files are looked for in `base` where only their existence tells a path from a name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any

from postrl.algorithms.presets import is_file
from postrl.algorithms.refused import flag
from postrl.errors import UsageError
from postrl.models.folder import is_path
from postrl.models.packaged import PACKAGED
from postrl.rows.recipes import find_recipe, is_file_name

Part = tuple[str, str, str]
Kind = Callable[[str, Path], Part | None]


def path_itself(text: str, base: Path) -> Part | None:
    """A file or folder and nothing else."""
    return ("", text, "") if text else None


def place_to_write(text: str, base: Path) -> Part | None:
    """A folder that need not be there yet."""
    return path_itself(text, base)


def folder_or_name(text: str, base: Path) -> Part | None:
    """A model: a folder, where it is written as one or there is one; else a name of the hub or a packaged one."""
    if not text or text in PACKAGED:
        return None
    return ("", text, "") if is_path(text) or (base / text).exists() else None


def data_or_name(text: str, base: Path) -> Part | None:
    """A data set, with a weight (FILE=0.5) or a split (FILE:test) behind it."""
    for path, behind in (_weighed(text), _split(text), (text, "")):
        if find_recipe(path) is None and path and is_file_name(path, base):
            return "", path, behind
    return None


def path_with_name(text: str, base: Path) -> Part | None:
    """FILE or NAME=FILE."""
    name, equals, path = text.partition("=")
    if not equals or (base / text).exists():
        return path_itself(text, base)
    return name + equals, path, ""


def function(text: str, base: Path) -> Part | None:
    """file.py:function; the model of NAME:MODEL; else a name."""
    place, colon, name = text.rpartition(":")
    first, _, value = text.partition(":")
    if value and first in OF_A_MODEL:
        part = folder_or_name(value, base)
        return part and (f"{first}:", part[1], "")
    if colon and (is_file(text) or place.endswith(".py") or os.sep in place):
        return "", place, colon + name
    return None


def option(text: str, base: Path) -> Part | None:
    """NAME.KEY=VALUE of a built-in reward whose option KEY is a path."""
    place, equals, value = text.partition("=")
    name, _, key = place.strip().rpartition(".")
    kind = OPTIONS.get((name, key)) if equals else None
    part = kind(value, base) if kind else None
    return part and (place + equals, part[1], "")


OF_A_MODEL = ("reward_model",)
"""Built-in rewards that NAME:MODEL gives their model."""
OPTIONS: dict[tuple[str, str], Kind] = {
    ("judge", "rubric"): path_itself,
    ("reward_model", "chat_template"): path_itself,
    ("reward_model", "model"): folder_or_name,
}
"""Options of built-in rewards that are paths."""


def change_paths(
    f: Field[Any], value: Any, change: Callable[[str], str], base: str | os.PathLike[str] | None = None
) -> Any:
    """The value of setting `f` with `change` applied to each path in it; other settings, and names, stay.

    Args:
        base: the folder in which relative paths lie; default: the working folder.
    """
    kind: Kind | None = f.metadata.get("path")
    if kind is None or value is None:
        return value
    if isinstance(value, list | tuple):
        return [_changed(kind, item, change, Path(base or "")) for item in value]
    return _changed(kind, value, change, Path(base or ""))


def from_home(f: Field[Any], value: Any) -> Any:
    """A setting with ~ and ~USER in its paths as home folders. Variables such as $DATA are the shell's affair.

    Raises:
        UsageError: there is no such user, or no home folder.
    """

    def expanded(path: str) -> str:
        found = os.path.expanduser(path)
        if found.startswith("~"):
            user = found.partition("/")[0]
            why = "this user has no home folder: HOME is not set" if user == "~" else f"there is no user {user[1:]}"
            raise UsageError(f"{f.name} is {path}, and {why}", hint=f"write the whole path, or ./{path} for a name")
        return found

    return change_paths(f, value, expanded)


def _changed(kind: Kind, value: Any, change: Callable[[str], str], base: Path) -> Any:
    part = kind(os.fspath(value), base) if isinstance(value, str | os.PathLike) else None
    return part[0] + change(part[1]) + part[2] if part else value


def beside(f: Field[Any], value: Any, file: Path) -> Any:
    """A setting of a config file as the working folder has it: relative paths in the file start from its folder.

    Raises:
        UsageError: nothing is there, and something of this name is in the working folder.
    """
    here, folder = Path(), file.parent
    if f.metadata.get("path") is None or folder.absolute() == here.absolute():
        return value

    def moved(path: str) -> str:
        return path if path.startswith("~") else os.path.join(folder, path) if path != "." else str(folder)

    def refuse(path: str) -> str:
        if not os.path.isabs(path) and os.path.exists(path) and not os.path.exists(moved(path)):
            raise UsageError(
                f"{file}: {f.name} is {path}, and paths in a config file start from its folder: there is no "
                f"{moved(path)}, only a {path} in the working folder",
                hint=f"write {os.path.relpath(path, folder)} there, or give {flag(f.name)} on the command line",
            )
        return path

    if f.metadata["path"] is not place_to_write:
        change_paths(f, value, refuse, here)
    return change_paths(f, value, moved, folder)


def lasting(f: Field[Any], value: Any, folder: Path) -> Any:
    """A setting as it is written into a config file in `folder`: paths are absolute, and `folder` itself is "."."""

    def absolute(path: str) -> str:
        place = Path(path).expanduser().absolute()
        return "." if place == folder.absolute() else str(place)

    return change_paths(f, value, absolute)


def same(f: Field[Any], before: Any, now: Any) -> bool:
    """Whether two values of a setting mean the same. What is gone from its old place may lie elsewhere now: there the
    names of files and folders count."""
    if change_paths(f, before, _real) == change_paths(f, now, _real):
        return True
    moved = not any(map(os.path.exists, _places(f, before) - _places(f, now)))
    return moved and change_paths(f, before, _name) == change_paths(f, now, _name)


def _places(f: Field[Any], value: Any) -> set[str]:
    found: set[str] = set()

    def note(path: str) -> str:
        found.add(_real(path))
        return path

    change_paths(f, value, note)
    return found


def _real(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


def _name(path: str) -> str:
    return os.path.basename(_real(path))


def _weighed(text: str) -> tuple[str, str]:
    name, equals, number = text.rpartition("=")
    try:
        float(number)
    except ValueError:
        return "", ""
    return name, equals + number


def _split(text: str) -> tuple[str, str]:
    name, colon, split = text.rpartition(":")
    return ("", "") if "/" in split else (name, colon + split)
