"""Weights over NCCL, from the learner's rank 0 straight into the memory of the servers' GPUs.

Each server has a group of its own with rank 0, so that one that was restarted can join again without the others. The
weights travel in packed chunks: per chunk one `/update_weights` call says what is coming, while the same bytes are
broadcast to every group. vLLM's workers cut their packed buffers by a size given at the start; a chunk never passes
it, so one call is one broadcast. The servers need `--weight-transfer-config '{"backend": "nccl"}'`.

Not run by postrl's own tests without a GPU. What is imported from vLLM is imported here, in `_join`, and nowhere else
on the trainer's side.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postrl.errors import PostrlError, ServerError, UsageError, WaitTimeout
from postrl.run.waiting import in_thread
from postrl.servers.client import VLLMServer
from postrl.servers.lost import in_use
from postrl.weights.transport import NamedTensors, Pause, on_each

if TYPE_CHECKING:
    import torch

BACKEND = "nccl"
CHUNK_BYTES = 1 << 30
"""Most bytes of one broadcast, unless a single weight is larger. Each server holds two chunks for a moment."""


@dataclass
class _Chunk:
    """Weights that travel together."""

    names: list[str] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    nbytes: int = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self.names.append(name)
        self.tensors.append(tensor)
        self.nbytes += tensor.nbytes

    def update_info(self) -> dict[str, Any]:
        """What vLLM's NCCL backend must know to cut the bytes up again."""
        return {
            "names": self.names,
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in self.tensors],
            "shapes": [list(tensor.shape) for tensor in self.tensors],
        }

    def packed(self) -> torch.Tensor:
        """uint8 [nbytes]: the tensors' bytes one after the other."""
        import torch

        return torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in self.tensors])


def chunks(tensors: NamedTensors, dtype: str, device: Any, most_bytes: int = CHUNK_BYTES) -> Iterator[_Chunk]:
    """The weights on `device` in `dtype` (integers as they are), in chunks of at most `most_bytes`; a larger one is alone.

    vLLM's worker views the bytes in place, so a weight begins at a multiple of its element size or in a new chunk.
    """
    import torch

    wanted, chunk = getattr(torch, dtype), _Chunk()
    for name, tensor in tensors:
        sent = tensor.detach().to(device, wanted if tensor.is_floating_point() else tensor.dtype)
        if chunk.names and (chunk.nbytes + sent.nbytes > most_bytes or chunk.nbytes % sent.element_size()):
            yield chunk
            chunk = _Chunk()
        chunk.add(name, sent)
    if chunk.names:
        yield chunk


class NcclTransport:
    """Publishes weights to `servers` over NCCL. Lives on the learner's rank 0, whose tensors are on a CUDA device.

    Args:
        servers: all samplers of the run. Their GPUs are not the learner's: NCCL wants one process per GPU.
        dtype: the servers' dtype, "bfloat16" or "float32".
        host: address of this host, as the servers reach it.
        server_deadline: seconds to wait for a server that is down, and for one to join.
        chunk_timeout: seconds one broadcast may take before the run stops.
        pause: what becomes of requests in flight.

    Raises:
        UsageError: there is no CUDA device.
    """

    def __init__(
        self,
        servers: Sequence[VLLMServer],
        dtype: str,
        *,
        host: str = "127.0.0.1",
        server_deadline: float = 900.0,
        chunk_timeout: float = 300.0,
        pause: Pause | None = None,
    ) -> None:
        import torch

        if not torch.cuda.is_available():
            raise UsageError("the nccl transport needs a CUDA device", hint="use the disk transport")
        self.servers = list(servers)
        self.pause = pause or Pause()
        self.dtype = dtype
        self.host = host
        self.server_deadline = server_deadline
        self.chunk_timeout = chunk_timeout
        self._device = torch.cuda.current_device()
        self._groups: dict[str, tuple[str, Any]] = {}  # by server: which start of it joined, the communicator

    def push(self, tensors: NamedTensors, version: int) -> None:
        """See `WeightTransport.push`. After a failure the servers are unusable, and so is this transport: a server that is
        lost in the middle of a push stops the run."""
        for server in self.servers:
            self.admit(server)
        self.servers = in_use(self.servers)
        on_each(self.servers, self.pause)
        try:
            on_each(self.servers, lambda server: server.start_weight_update())
            for chunk in chunks(tensors, self.dtype, self._device):
                self.send(chunk)
            on_each(self.servers, lambda server: server.finish_weight_update(version))
        except PostrlError as error:
            raise ServerError(
                f"the push of weight version {version} over NCCL failed: {error.message}",
                hint=f"{', '.join(s.url for s in self.servers)} may hold part of a model: restart them",
            ) from error
        on_each(self.servers, lambda server: server.resume())
        for server in self.servers:
            if (found := server.weight_info()) != version:
                raise ServerError(f"{server.url} says weight version {found} after a push of {version}")

    def send(self, chunk: _Chunk) -> None:
        """Broadcast one chunk to all servers while they are told what comes.

        Raises:
            ServerError: a server refused it.
            WaitTimeout: it did not arrive in time; the broadcast hangs on in a daemon thread.
        """
        import torch

        packed, info = chunk.packed(), chunk.update_info()

        def broadcast() -> None:
            with torch.cuda.device(self._device):
                stream = torch.cuda.current_stream()
                # The bytes were packed on the stream of the caller's thread.
                stream.wait_stream(packing)
                for server in self.servers:
                    self._groups[server.url][1].broadcast(packed, src=0, stream=stream)
                stream.synchronize()

        packing = torch.cuda.current_stream()
        calls = [
            in_thread(lambda server=server: server.update_weights(info, self.chunk_timeout))  # type: ignore[misc]
            for server in self.servers
        ]
        what = f"a chunk of {packed.nbytes / 1e9:.2f} GB ({chunk.names[0]} ...)"
        wait_for([in_thread(broadcast), *calls], what, self.chunk_timeout)

    def admit(self, server: VLLMServer) -> None:
        """Bring a server into its group, if it is new or was restarted since the last push.

        One that the run gives up while it is waited for stays out.
        """
        try:
            server.wait_until_healthy(self.server_deadline)
        except ServerError:
            if server.lost:
                return
            raise
        instance = str(server.server_info()["vllm_config"].get("instance_id"))
        joined, group = self._groups.get(server.url, ("", None))
        if joined == instance:
            return
        if group is not None:
            group.destroy()
        port, world_size = _free_port(self.host), 1 + server.world_size()
        info = init_info(self.host, port, world_size)
        # Both sides wait for each other, so both run at the same time.
        calls = [
            in_thread(lambda: _join(self.host, port, world_size, self._device)),
            in_thread(lambda: server.init_weight_transfer(info, self.server_deadline)),
        ]
        wait_for(calls, f"{server.url} to join the NCCL group at {self.host}:{port}", self.server_deadline)
        self._groups[server.url] = instance, calls[0].result()

    def close(self) -> None:
        for _, group in self._groups.values():
            group.destroy()
        self._groups.clear()


def wait_for(calls: list[Future[Any]], what: str, deadline_s: float) -> None:
    """Wait for all; the first error ends the wait, because the other side of a broadcast will wait for ever."""
    done, pending = wait(calls, timeout=deadline_s, return_when=FIRST_EXCEPTION)
    for call in done:
        if error := call.exception():
            raise error if isinstance(error, PostrlError) else ServerError(f"waiting for {what}: {error}") from error
    if pending:
        raise WaitTimeout(
            f"waited {deadline_s:g} s for {what}", hint="look at the servers' logs, and set NCCL_DEBUG=INFO"
        )


def init_info(host: str, port: int, world_size: int) -> dict[str, Any]:
    """What a server's workers need to join the group that rank 0 opens at host:port."""
    return {
        "master_address": host, "master_port": port, "rank_offset": 1, "world_size": world_size,
        # A worker closes a buffer when it has more bytes than this, which a chunk of ours only has at its end.
        "packed": True, "packed_buffer_size_bytes": CHUNK_BYTES,
    }  # fmt: skip


def _free_port(host: str) -> int:
    with socket.socket() as free:
        free.bind((host, 0))
        return int(free.getsockname()[1])


def _join(host: str, port: int, world_size: int, device: int) -> Any:
    """Open the group as its rank 0 and wait for the server's workers: vLLM's own communicator, as on the other side."""
    import torch
    from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

    torch.cuda.set_device(device)
    return stateless_init_process_group(host, port, 0, world_size, device)
