"""Parts are looked up by name in tables; a wrong name is answered with the right ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def lookup(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry called `name`. Raises ValueError that lists the known names."""
    if name not in table:
        raise ValueError(f"{what} is {name!r}, expected one of {', '.join(table)}")
    return table[name]
