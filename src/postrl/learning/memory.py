"""Memory of a trainer rank: what it used at most, whether it ran out, giving back what it freed."""

from __future__ import annotations

import contextlib
import ctypes
import resource

import torch


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def peak_memory_gb(device: torch.device) -> float:
    """Peak memory so far in GB: of the GPU, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def give_back_memory() -> None:
    """Hand the process's freed memory back to the machine.

    glibc keeps the holes that activations leave in its heap, and the next large tensor grows the heap all the same:
    without this a trainer on a CPU keeps half as much again as it uses.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
