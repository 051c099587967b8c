"""What is counted between two batches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from postrl.types import Mean, Metrics
from postrl.worker.buffer import Buffer


class Tally:
    """What is counted between two batches."""

    def __init__(self) -> None:
        self.tokens = 0
        """Completion tokens that came since the last batch."""
        self.lengths: list[int] = []
        """Tokens of the completions that were finished and dropped since the last batch."""
        self._since: float | None = None
        self._sampling = 0
        self._idle_from: float | None = None
        self._idle = 0.0

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """The samplers are asked for completions: they are idle when nobody does."""
        time = asyncio.get_running_loop().time
        if not self._sampling and self._idle_from is not None:
            self._idle += time() - self._idle_from
        self._sampling, self._idle_from = self._sampling + 1, None
        try:
            yield
        finally:
            self._sampling -= 1
            self._idle_from = None if self._sampling else time()

    def metrics(self, asked: float, buffer: Buffer, embedded: bool) -> Metrics:
        """Of the time since the last batch.

        Args:
            asked: when the learner asked for this one.
            embedded: the trainer and the sampler take turns, and neither waits for the other.
        """
        now = asyncio.get_running_loop().time()
        scored = 0.0
        if self._idle_from is not None:
            scored = now - max(asked, self._idle_from)
            self._idle, self._idle_from = self._idle + now - self._idle_from, now
        since = asked if self._since is None else self._since
        metrics: Metrics = {"throughput/rollout_tokens_per_s": self.tokens / max(now - since - self._idle, 1e-9)}
        if embedded:
            metrics |= {"time/generate": now - asked - scored, "time/score": scored}
        else:
            metrics |= {
                "time/wait_for_rollouts": now - asked,
                "time/samplers_idle": self._idle,
                "rollout/queue_groups": float(len(buffer.finished)),
                "rollout/in_flight_groups": float(len(buffer.entries) - len(buffer.finished)),
            }
        if self.lengths:
            metrics["rollout/dropped_length_mean"] = Mean.of(self.lengths)
        self.tokens, self.lengths, self._idle, self._since = 0, [], 0.0, now
        return metrics
