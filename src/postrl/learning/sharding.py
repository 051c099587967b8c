"""Ranks, devices and FSDP2 sharding on a named mesh. The same code with gloo on CPUs and nccl on GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from postrl.learning.body import Body

COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""Longer than rank 0 may wait for rollouts: the other ranks stand in a collective meanwhile."""


@dataclass(frozen=True)
class Ranks:
    """This process among the learner's."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Every value summed over the ranks, in float64 (exact for counts)."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: list[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.MAX)

    def add(self, tensor: Tensor) -> Tensor:
        """The tensor summed over the ranks, in place, on every rank."""
        if self.size > 1 and tensor.numel():
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, message: bytes | None) -> bytes:
        """Rank 0's bytes, on every rank. Raw bytes: nothing is pickled."""
        if self.size == 1:
            return message or b""
        length = torch.tensor([len(message or b"")], dtype=torch.int64, device=self.device)
        dist.broadcast(length, 0)
        if self.is_main:
            body = torch.frombuffer(bytearray(message or b"\0"), dtype=torch.uint8).to(self.device)
        else:
            body = torch.empty(max(1, int(length)), dtype=torch.uint8, device=self.device)
        dist.broadcast(body, 0)
        return body.cpu().numpy().tobytes()[: int(length)]

    def _reduce(self, values: list[float], op: Any) -> list[float]:
        if self.size == 1 or not values:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op)
        return [float(v) for v in tensor.tolist()]


def this_rank() -> Ranks:
    """Join the process group that `accelerate launch` set up; alone when it set up none."""
    from accelerate import PartialState

    cpu = not torch.cuda.is_available()
    state = PartialState(cpu=cpu, timeout=COLLECTIVE_TIMEOUT)
    return Ranks(state.process_index, state.num_processes, state.device)


def leave_ranks() -> None:
    """Leave the process group at the end of a run, on all ranks: a rank that ends with its threads at work may be aborted."""
    if dist.is_initialized():
        dist.destroy_process_group()


def shard(module: Body, ranks: Ranks, compute_dtype: torch.dtype) -> bool:
    """Shard a model over the ranks and set its compute dtype; returns whether that was needed.

    One rank computing in float32 keeps the plain module. bfloat16 compute with float32 master weights is FSDP2's
    mixed precision, on one rank as on many.
    """
    plain = ranks.size == 1 and compute_dtype == torch.float32 and ranks.device.type == "cpu"
    if plain:
        return False
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not dist.is_initialized():
        _group_of_one(ranks.device)
    mesh = init_device_mesh(ranks.device.type, (1, ranks.size, 1), mesh_dim_names=("replicate", "shard", "cp"))
    mixed = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for layer in _layers(module):
        fully_shard(layer, mesh=mesh["shard"], mp_policy=mixed)
    for part in module.in_float32:
        fully_shard(part, mesh=mesh["shard"])
    fully_shard(module, mesh=mesh["shard"], mp_policy=mixed)
    return True


def _group_of_one(device: torch.device) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=COLLECTIVE_TIMEOUT)  # type: ignore[attr-defined]


def _layers(module: Body) -> list[nn.Module]:
    """The repeated blocks, as transformers names them; each is gathered and freed on its own."""
    names = set(getattr(module.transformer, "_no_split_modules", None) or ())
    return [layer for layer in module.modules() if type(layer).__name__ in names]


def whole(tensor: Tensor) -> Tensor:
    """A sharded parameter as a full tensor (a collective), a plain one as itself."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def saved_state(model: nn.Module, weights: Iterable[tuple[str, Tensor]], ranks: Ranks) -> dict[str, Tensor]:
    """`weights`, and the buffers that `model` is saved with: whole, on the CPU of rank 0; empty on the others (a collective)."""
    saved = model.state_dict().keys()
    buffers = ((name, buffer) for name, buffer in model.named_buffers() if name in saved)
    state = {}
    for name, tensor in chain(weights, buffers):
        gathered = whole(tensor.detach())
        if ranks.is_main:
            state[name] = gathered.cpu()
    return state
