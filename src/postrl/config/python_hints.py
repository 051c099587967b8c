"""Hints for a script: what is a flag at the command line is an argument there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import get_args, get_type_hints

from postrl import errors
from postrl.config.settings import Settings
from postrl.errors import PostrlError

_KINDS = {f.name: str(f.type) for f in fields(Settings)}
_FLAG = re.compile(r"--(no-)?([a-z][a-z0-9-]*)(?:[ =]([\w./:{}+=-]+))?")
_VALUE = re.compile(r"-?[\d.]+(e-?\d+)?|[A-Z_]{3,}|[\w./:-]*[/.:=]\w[\w./:=-]*")
"""A number, a placeholder, a path or NAME=VALUE: other words behind a flag belong to the sentence."""


def in_python(hint: str) -> str:
    """`--output-dir RUN --resume` as `output_dir=RUN resume=True`; command lines of postrl stay."""
    return hint if "postrl " in hint else _FLAG.sub(_argument, hint)


def _argument(flag: re.Match[str]) -> str:
    name, value = flag[2].replace("-", "_"), flag[3] or ""
    if name not in _KINDS:
        return flag[0]
    rest = f" {value}" if value else ""
    if _KINDS[name].startswith("bool"):
        return f"{name}={not flag[1]}{rest}"
    word = value.rstrip(".,;:")
    if not (_VALUE.fullmatch(word) or word in _choices(name)):
        return name + rest
    plain = (word[0].isupper() and "=" not in word) or word[0] in "-.0123456789"
    shown = word if plain else repr(word)
    return f"{name}={f'[{shown}]' if _KINDS[name].startswith('list') else shown}{value[len(word) :]}"


@cache
def _choices(name: str) -> tuple[str, ...]:
    kind = get_type_hints(Settings)[name]
    return tuple(choice for part in (kind, *get_args(kind)) for choice in get_args(part) if isinstance(choice, str))


@contextmanager
def hints_in_python() -> Iterator[None]:
    """Around what a script calls: errors that leave it speak its language. A command calls the same, and keeps its flags."""
    if errors.at_command_line:
        yield
        return
    try:
        yield
    except PostrlError as error:
        error.hint = in_python(error.hint)
        if "\n  " in error.message:  # several, each with its hint
            error.message = in_python(error.message)
        raise
