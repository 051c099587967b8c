"""What every transport of weights to the samplers promises, whatever carries them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from postrl.errors import PostrlError, ServerError, WaitTimeout
from postrl.run.waiting import in_thread
from postrl.servers.api import NOT_OURS
from postrl.servers.client import PauseMode, VLLMServer
from postrl.servers.lost import in_use

if TYPE_CHECKING:
    import torch

NamedTensors = Iterable[tuple[str, "torch.Tensor"]]
"""Every weight of the model once, full (not a shard), under its Hugging Face name; of tied ones only the embedding."""


@dataclass(frozen=True, slots=True)
class Pause:
    """What happens to requests in flight while the weights change."""

    mode: PauseMode = "keep"
    """See `VLLMServer.pause`."""
    clear_cache: bool = True
    """Drop keys and values, so that kept requests are computed again under the new weights."""
    timeout: float = 60.0
    """Seconds the servers have to come to rest."""

    @classmethod
    def of(cls, in_flight: str, drain: float) -> Pause:
        """For the setting `in_flight`; `drain`: seconds the longest request may take, for "wait"."""
        mode: PauseMode = "wait" if in_flight == "wait" else "abort" if in_flight == "abort" else "keep"
        return cls(mode, in_flight != "keep_kv", 60.0 + (drain if mode == "wait" else 0.0))

    def __call__(self, server: VLLMServer) -> None:
        server.pause(self.mode, self.clear_cache, self.timeout)


class WeightTransport(Protocol):
    """Carries the learner's weights to the samplers.

    Rank 0 owns it. Gathering a sharded weight is a collective, so the other ranks iterate over their `tensors` at the
    same time and throw them away.
    """

    def push(self, tensors: NamedTensors, version: int) -> None:
        """Publish the weights; returns when every sampler serves that version.

        Raises:
            ServerError: a sampler failed half-way. It holds part of a model and is paused: restart it.
            WaitTimeout: a sampler did not come back, or did not answer.
        """
        ...

    def close(self) -> None: ...


def on_each(servers: Sequence[VLLMServer], act: Callable[[VLLMServer], None]) -> None:
    """Run `act` at once on all servers that the run has not given up, and wait for all.

    Raises:
        PostrlError: the error of the one that failed; a ServerError that lists them all where several did. What fails
            on a server that is given up by then is none, unless no other is left.
    """
    left = in_use(servers)
    futures = [in_thread(partial(act, server)) for server in left]
    wait(futures)
    errors = [
        error
        for server, future in zip(left, futures, strict=True)
        if (error := future.exception()) is not None and not (isinstance(error, PostrlError) and server.lost)
    ]
    for error in errors:
        if len(errors) == 1 or not isinstance(error, PostrlError):
            raise error
    if errors:
        raise ServerError("\n".join(str(error) for error in errors))
    in_use(left)


def holds(server: VLLMServer, version: int, model: str | None) -> bool:
    """Whether a server says that it holds what was pushed. An adapter has no version but its name."""
    return server.weight_info() == version if model is None else model in server.adapters()


def fell(server: VLLMServer, version: int, model: str | None = None) -> bool:
    """Whether a server that failed is down, or back with other weights than those of `version`."""
    time.sleep(1.0)  # a dying one may answer once more
    try:
        return not holds(server, version, model)
    except (ServerError, WaitTimeout):
        return True


def swap_weights(server: VLLMServer, version: int, load: Callable[[], None], pause: Pause | None = None) -> None:
    """Pause, load, name the version, resume, and check that the server agrees.

    Args:
        load: hands the weights over; called between the start and the end of vLLM's update session.
        pause: what becomes of requests in flight; default: they are kept and computed again under the new weights.

    Raises:
        ServerError: it failed. A server that cannot begin is resumed and holds what it held; from then on it may hold part
            of a model and is left paused, so that nothing wrong is sampled from it.
    """
    (pause or Pause())(server)
    _start_update(server)
    try:
        load()
        server.finish_weight_update(version)
        server.resume()
        found = server.weight_info()
    except PostrlError as error:
        raise ServerError(
            f"{server.url} failed in the middle of the update to weight version {version}: {error.message}",
            hint="it may hold part of a model and is unusable until it is restarted",
        ) from error
    if found != version:
        raise ServerError(
            f"{server.url} says weight version {found} after a push of {version}",
            hint="another run may use the same server; give each run its own",
        )


def _start_update(server: VLLMServer) -> None:
    """Begin vLLM's update session; one that a learner left open when it was killed is ended first."""
    try:
        server.start_weight_update()
    except ServerError as error:
        try:
            server.finish_weight_update(NOT_OURS)
        except ServerError:  # none was open, and nothing has changed
            server.resume()
            raise error from None
        server.start_weight_update()
