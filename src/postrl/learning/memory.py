"""Memory of a trainer rank: what it used at most, whether it ran out."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

import torch

from postrl.errors import PostrlError

OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What torch says when the memory of a CPU is full, or that of a GPU for what its own allocator does not give."""


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)


@contextlib.contextmanager
def room_for(what: str, *, hint: str) -> Iterator[None]:
    """Full memory in this block as one message.

    Raises:
        PostrlError: there is no room for `what`.
    """
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise PostrlError(f"out of memory for {what}", hint=hint) from error


def peak_memory_gb(device: torch.device) -> float:
    """Peak memory so far in GB: of the GPU, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
