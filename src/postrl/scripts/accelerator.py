"""What scripts read of TRL's `trainer.accelerator`: which process this is, and a few ways to wait, print and unwrap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from postrl.config.script_reads import this_device
from postrl.host.ranks import local_rank, rank, world_size


class Processes:
    """This process among those of `accelerate launch`, by accelerate's names."""

    @property
    def process_index(self) -> int:
        return rank()

    @property
    def local_process_index(self) -> int:
        return local_rank()

    @property
    def num_processes(self) -> int:
        return world_size()

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    @property
    def device(self) -> Any:
        """The torch.device of this process."""
        return this_device()

    def wait_for_everyone(self) -> None:
        """Return when every process is here."""
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.barrier()

    def unwrap_model(self, model: Any, *_: Any, **__: Any) -> Any:
        """The model itself: postrl shards in place and wraps nothing."""
        return model

    def print(self, *values: Any, **how: Any) -> None:
        """Print in the main process alone."""
        if self.is_main_process:
            print(*values, **how)  # noqa: T201 (it is what the script asks for)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Around what every process does alike. They need not wait for each other here."""
        yield
