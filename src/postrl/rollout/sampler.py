"""What every sampler does: prompt tokens in, completion tokens with log-probs and version spans out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from postrl.types import Sampled


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


class Sampler:
    """Where completions come from: one request, one completion. What most samplers need not do has its default here."""

    reissued: int | None = None
    """Requests asked again so far; None: they cannot get lost."""
    embedded = False
    """It computes in the trainer's process: what is asked for together is one batch, and nothing goes on beside it."""

    async def sample(self, request: Request) -> Sampled:
        """The completion of a request. Cancelling gives it up."""
        raise NotImplementedError

    def hold(self) -> None:
        """Ask for nothing new until `release`: the weights are about to change."""

    def release(self, version: int) -> None:
        """They have changed: `version` is what is sampled from now on."""

    def describe(self) -> str:
        """What it is doing, in a few words."""
        return "in this process"

    async def gauges(self) -> dict[str, float]:
        """Metrics of its own."""
        return {}


def derive_seed(run_seed: int, group_id: int, prompt_id: str, sample_index: int, attempt: int = 0) -> int:
    """The seed of one completion: independent of batch composition, engine and order."""
    key = f"{run_seed}|{group_id}|{prompt_id}|{sample_index}|{attempt}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1
