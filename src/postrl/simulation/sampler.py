"""A sampler that only takes time: for planning, and for tests of what waits for it. No model, no tokens of meaning.

Continuous batching as processor sharing: one decode step of a server that runs n sequences takes base + per_sequence n
seconds and gives each of them one token; a prompt's tokens are computed before its first one, while the others wait. So
tokens a second saturate with n, as those of a real server do (n / (base + per_sequence n)). A prompt that a server holds
since the last push is not computed again. Memory for keys and values is not simulated.

All times are the event loop's: run it in `postrl.simulation.clock`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from postrl.rollout.sampler import Request, Sampler
from postrl.simulation.assumptions import Speed
from postrl.types import FinishReason, Sampled, VersionSpan

MAX_TRIES = 3
"""Tries of one completion that may fail; then it is given up."""
EPSILON = 1e-6
"""Tokens by which a completion may miss its end: times are sums of floats."""


@dataclass(eq=False)
class SimulatedCompletion:
    """A completion on its way."""

    prompt: tuple[int, ...]
    length: int
    written: int = 0
    """Tokens that it had when it was sent to the server that runs it."""
    started: float = 0.0
    """Decode steps that server had done then."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(version, first token of it)."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """It is finished, or sent back."""

    def stamp(self, version: int) -> None:
        """The next token is of `version`."""
        if self.spans and self.spans[-1][1] == self.written:
            self.spans.pop()
        if not self.spans or self.spans[-1][0] != version:
            self.spans.append((version, self.written))

    def version_spans(self) -> list[VersionSpan]:
        ends = [*(start for _, start in self.spans[1:]), self.length]
        return [VersionSpan(version, start, end) for (version, start), end in zip(self.spans, ends, strict=True)]


class SimulatedServer:
    """One server: what it runs, what waits for a slot, and how far it is.

    Args:
        slots: sequences it runs at most.
        adapters: weight versions are LoRA adapters: a push does not interrupt it, and a completion stays with its version.
    """

    def __init__(self, speed: Speed, slots: int, *, adapters: bool = False) -> None:
        self.speed, self.slots, self.adapters = speed, slots, adapters
        self.version = 0
        self.waiting: deque[SimulatedCompletion] = deque()
        self._running: list[tuple[float, int, SimulatedCompletion]] = []  # a heap by the decode step of their end
        self._serial = itertools.count()
        self._steps = 0.0
        self._owed = 0.0
        """Seconds of prefill to do before the next decode step."""
        self._busy, self._ran = 0.0, 0.0
        self._at = 0.0
        self._paused = False
        self._cached: set[tuple[int, ...]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def load(self) -> int:
        """Completions it has."""
        return len(self._running) + len(self.waiting)

    def spent(self) -> tuple[float, float]:
        """Seconds in which it computed, so far, and the same for each sequence that it ran, added up."""
        self._advance()
        return self._busy, self._ran

    async def run(self, completion: SimulatedCompletion) -> None:
        """Returns when it is finished, or when a push sends it back (`written` says how far it came)."""
        completion.ended.clear()
        self.waiting.append(completion)
        self._empty.clear()
        self._advance()
        self._schedule()
        try:
            await completion.ended.wait()
        finally:
            if not completion.ended.is_set():
                self._leave(completion)

    async def push(self, version: int, seconds: float, in_flight: str) -> None:
        """New weights, which take `seconds` to load. Nobody may send it anything before the end but with "keep"."""
        if self.adapters:
            await asyncio.sleep(seconds)
            self.serve(version)
            return
        if in_flight == "wait":
            await self._empty.wait()
        self._advance()
        self._paused = True
        if in_flight == "abort":
            self._send_back()
        self._schedule()
        await asyncio.sleep(seconds)
        self._paused, self._at = False, asyncio.get_running_loop().time()
        self.serve(version, recompute=in_flight != "keep_kv")

    def serve(self, version: int, *, recompute: bool = False) -> None:
        """Compute with `version` from now on; `recompute`: also the keys and values of what it runs, anew."""
        self._advance()
        self.version = version
        self._cached.clear()
        for _, _, completion in [] if self.adapters else self._running:
            before, completion.written = completion.written, self._written(completion)
            completion.stamp(version)
            if recompute:
                self._owe(completion)
            completion.written = before
        self._schedule()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Bring `_steps`, `_busy` and `_ran` up to now."""
        now = asyncio.get_running_loop().time()
        passed, self._at = now - self._at, now
        if self._paused or not self._running:
            return
        self._busy += passed
        self._ran += passed * len(self._running)
        prefill = min(self._owed, passed)
        self._owed -= prefill
        self._steps += (passed - prefill) / self.speed.step(len(self._running))

    def _schedule(self) -> None:
        """Fill the slots, and wake up when the next completion ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._paused:
            return
        while self.waiting and len(self._running) < self.slots:
            self._start(self.waiting.popleft())
        if self._running:
            left = max(0.0, self._running[0][0] - self._steps)
            seconds = self._owed + left * self.speed.step(len(self._running))
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._advance()
        while self._running and self._running[0][0] <= self._steps + EPSILON:
            _, _, completion = heapq.heappop(self._running)
            completion.written = completion.length
            completion.ended.set()
        self._check_empty()
        self._schedule()

    # -- sequences -----------------------------------------------------------------------------------------------------

    def _start(self, completion: SimulatedCompletion) -> None:
        completion.started = self._steps
        if not self.adapters or not completion.spans:
            completion.stamp(self.version)
        self._owe(completion)
        end = self._steps + completion.length - completion.written
        heapq.heappush(self._running, (end, next(self._serial), completion))

    def _owe(self, completion: SimulatedCompletion) -> None:
        """Its prompt, unless the cache has it, and what was written of it before."""
        tokens = completion.written + (0 if completion.prompt in self._cached else len(completion.prompt))
        self._cached.add(completion.prompt)
        self._owed += tokens * self.speed.prefill

    def _written(self, completion: SimulatedCompletion) -> int:
        """Tokens it has by now."""
        return completion.written + int(self._steps - completion.started + EPSILON)

    def _send_back(self) -> None:
        for _, _, completion in self._running:
            completion.written = self._written(completion)
        for completion in [*(completion for *_, completion in self._running), *self.waiting]:
            completion.ended.set()
        self._running, self._owed = [], 0.0
        self.waiting.clear()
        self._check_empty()

    def _leave(self, completion: SimulatedCompletion) -> None:
        """It was cancelled."""
        self._advance()
        self._running = [item for item in self._running if item[2] is not completion]
        heapq.heapify(self._running)
        if completion in self.waiting:
            self.waiting.remove(completion)
        self._check_empty()
        self._schedule()

    def _check_empty(self) -> None:
        if not self.load:
            self._owed = 0.0
            self._empty.set()


class SimulatedSampler(Sampler):
    """A `Sampler` over simulated servers, least loaded first. Completions have lengths and versions, no log-probs.

    Args:
        lengths: tokens of a request's completion, if nothing cuts it.
        servers, slots, adapters: see `SimulatedServer`.
        delay: seconds before a request reaches a server.
        failures: how many tries of a request fail, each after its whole time; MAX_TRIES or more: it is given up.
    """

    def __init__(
        self,
        speed: Speed,
        lengths: Callable[[Request], float],
        *,
        servers: int = 1,
        slots: int = 256,
        adapters: bool = False,
        delay: Callable[[Request], float] = lambda request: 0.0,
        failures: Callable[[Request], int] = lambda request: 0,
    ) -> None:
        self.servers = [SimulatedServer(speed, slots, adapters=adapters) for _ in range(servers)]
        self.lengths, self.delay, self.failures = lengths, delay, failures
        self.reissued: int = 0
        """Requests asked again so far."""
        self._open = asyncio.Event()
        self._open.set()

    async def sample(self, request: Request) -> Sampled:
        """See `Sampler.sample`."""
        if delay := self.delay(request):
            await asyncio.sleep(delay)
        wanted, most = self.lengths(request), request.sampling.max_tokens
        failures = self.failures(request)
        for _ in range(min(failures, MAX_TRIES)):
            await self._run(request, min(wanted, most))
            self.reissued += 1
        if failures >= MAX_TRIES:
            return Sampled()
        completion = await self._run(request, min(wanted, most))
        reason: FinishReason = "length" if wanted > most else "stop"
        tokens: Any = range(
            completion.length
        )  # of tokens and log-probs only the number matters: no list of them is made
        return Sampled(tokens, tokens, completion.version_spans(), reason)

    async def _run(self, request: Request, length: float) -> SimulatedCompletion:
        """One completion to its end, sent again with what it has when a push sends it back."""
        completion = SimulatedCompletion(tuple(request.prompt_ids), max(1, round(length)))
        while completion.written < completion.length:
            await self._open.wait()
            await min(self.servers, key=lambda server: server.load).run(completion)
        return completion

    async def push(self, version: int, seconds: float, in_flight: str = "keep") -> None:
        """New weights for all servers; each takes `seconds` for them, and for what `in_flight` (the setting) costs."""
        if in_flight != "keep":
            self.hold()
        await asyncio.gather(*(server.push(version, seconds, in_flight) for server in self.servers))

    def hold(self) -> None:
        """See `Sampler.hold`."""
        self._open.clear()

    def release(self, version: int) -> None:
        """See `Sampler.release`. Servers that nobody pushed to hold the version from now on."""
        for server in self.servers:
            if server.version != version:
                server.serve(version)
        self._open.set()

    def describe(self) -> str:
        """How many completions each server has."""
        return ", ".join(f"simulated server {i} has {server.load}" for i, server in enumerate(self.servers))

    def spent(self) -> tuple[float, float]:
        """See `SimulatedServer.spent`; all servers together."""
        each = [server.spent() for server in self.servers]
        return sum(busy for busy, _ in each), sum(ran for _, ran in each)
