"""What every sampler does: prompt tokens in, completion tokens with log-probs and version spans out."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from postrl.types import FinishReason, VersionSpan

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. Training rollouts use the whole distribution (top_p 1, no penalties): what importance
    correction assumes."""

    temperature: float
    """0: greedy."""
    max_tokens: int
    stop: tuple[str, ...] = ()
    """Texts that end a completion."""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to sample."""

    prompt_ids: Sequence[int]
    seed: int
    """63 bits; the same seed under the same weights gives the same completion."""
    sampling: Sampling
    min_version: int = 0
    """Oldest weights that may write a token of it."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One completion as it came back; see `postrl.types.Rollout` for the fields."""

    completion_ids: list[int]
    logps: list[float]
    version_spans: list[VersionSpan]
    finish_reason: FinishReason
    """"abort": it was given up, and the other fields are empty."""


class Sampler(Protocol):
    """Where completions come from."""

    def sample(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, Sampled], None]:
        """Yield (index of the request, completion) in the order they finish."""
        ...


async def as_they_end(completions: Iterable[Coroutine[Any, Any, T]]) -> AsyncGenerator[T, None]:
    """What each gives, in the order they end. All run at once, and those that are left end with the generator."""
    tasks = [asyncio.create_task(completion) for completion in completions]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ServerSampler(Sampler, Protocol):
    """A sampler beside the learner, whose weights change while it samples."""

    def hold(self) -> None:
        """Ask for nothing new until `release`: the weights are about to change."""
        ...

    def release(self, version: int) -> None:
        """They have changed: the samplers serve `version`."""
        ...

    def describe(self) -> str:
        """What it is doing, in a few words."""
        ...

    async def gauges(self) -> dict[str, float]:
        """Metrics of its own."""
        ...


def derive_seed(run_seed: int, group_id: int, prompt_id: str, sample_index: int, attempt: int = 0) -> int:
    """The seed of one completion: independent of batch composition, engine and order."""
    key = f"{run_seed}|{group_id}|{prompt_id}|{sample_index}|{attempt}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1
