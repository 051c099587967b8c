"""Which trainer rank this process is, as accelerate launch and torchrun say in its environment; alone without them."""

from __future__ import annotations

import os


def rank() -> int:
    return int(os.environ.get("RANK") or 0)


def local_rank() -> int:
    """Among those of this machine."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


def is_main() -> bool:
    """Whether it is the one that speaks and writes."""
    return rank() == 0
