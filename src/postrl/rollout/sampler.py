"""What every sampler does: prompt tokens in, completion tokens with log-probs and version spans out."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from postrl.types import FinishReason, VersionSpan

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. No penalties: importance correction assumes that the learner knows the distribution."""

    temperature: float
    """0: greedy."""
    max_tokens: int
    stop: tuple[str, ...] = ()
    """Texts that end a completion."""
    top_p: float = 1.0
    """Of the tokens that top_k leaves, only the likeliest, as few as make up this share of their probability; 1: all."""
    top_k: int = 0
    """Only the likeliest tokens, this many; 0: all."""
    min_p: float = 0.0
    """Only tokens at least this share as likely as the likeliest; 0: all."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a completion, beside those that end all completions of the sampler."""

    @property
    def whole(self) -> bool:
        """Whether every token may be drawn."""
        return self.top_p >= 1 and not self.top_k and not self.min_p

    def greedy(self) -> Sampling:
        """The likeliest token every time, with its log-prob in the whole distribution."""
        return replace(self, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to sample."""

    prompt_ids: Sequence[int]
    seed: int
    """63 bits; the same seed under the same weights gives the same completion."""
    sampling: Sampling
    min_version: int = 0
    """Oldest weights that may write a token of it."""
    sample_index: int = 0
    """Which completion of its group it is; see `postrl.types.Rollout`."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One completion as it came back; see `postrl.types.Rollout` for the fields."""

    completion_ids: list[int]
    logps: list[float]
    version_spans: list[VersionSpan]
    finish_reason: FinishReason
    """"abort": it was given up, and the other fields are empty."""
    support: list[list[int]] | None = None


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
