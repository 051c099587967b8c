"""The sampler over vLLM servers: one request per completion, least loaded server first, lost requests asked again."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from postrl.errors import PostrlError, RequestRefused, ServerError, WaitTimeout, WeightsLost
from postrl.host.limits import connections
from postrl.rollout.sampler import Request, Sampler
from postrl.servers.api import NOT_OURS, adapter_name
from postrl.servers.client import VLLMServer, generation_client
from postrl.servers.lost import in_use
from postrl.types import Sampled, VersionSpan

RETRY_PAUSE = 1.0
"""Seconds between two tries of one request."""

AVOID = 10.0
"""Seconds for which a server that failed gets requests only if all have: one that refuses at once always looks idle. Then
it gets one at a time until it answers: in a frozen one each is lost for request_timeout."""

GAUGE_TIMEOUT = 5.0
"""Seconds for a server's own numbers, which a batch does not wait for longer."""

MAX_TIMEOUTS = 2
"""Tries of one completion that may take longer than request_timeout; then it is given up."""


class VLLMSampler(Sampler):
    """Samples from `servers`, each completion by a request of its own.

    A completion that a push of weights interrupts (in_flight abort) is sent again with what it has so far; its tokens
    keep their log-probs and versions.

    Args:
        stop_token_ids: tokens that end a completion, beside the model's own and those of its request.
        request_timeout: seconds one try of a completion may take.
        patience: seconds a completion may go without a new token (server down, restarted, or at other weights).
        resynced: restarted servers get the weights back by themselves; else (NCCL) only by the next push, and they are asked
            for nothing until then.
        salted: keep requests of one weight version from using keys and values of another (in_flight keep_kv).
        adapters: weight versions are LoRA adapters that requests name.
    """

    def __init__(
        self,
        servers: Sequence[VLLMServer],
        *,
        stop_token_ids: Sequence[int],
        request_timeout: float,
        patience: float,
        salted: bool = False,
        resynced: bool = True,
        adapters: bool = False,
    ) -> None:
        self.servers = list(servers)
        self.stop_token_ids = list(stop_token_ids)
        self.request_timeout = request_timeout
        self.patience = patience
        self.salted, self.adapters, self.resynced = salted, adapters, resynced
        self._blank: set[int] = set()
        self.reissued: int = 0
        """Requests asked again so far."""
        self._version = 0
        self._salt, self._releases = uuid.uuid4().hex, 0
        self._load = [0] * len(self.servers)
        self._failed_at: list[float | None] = [None] * len(self.servers)
        # Beyond it requests wait here instead of in the server's queue.
        self._room = asyncio.Semaphore(connections(len(self.servers)) * len(self.servers))
        self._client: Any = None
        self._open_requests = 0
        self._open = asyncio.Event()
        self._open.set()

    async def sample(self, request: Request) -> Sampled:
        """See `Sampler.sample`. Cancelling closes the connection, and the server drops the request.

        Raises:
            RequestRefused: a server will not answer it, such as a prompt that is too long for it.
            WeightsLost: all servers were restarted, and wait for weights.
            ServerError: the completion could not be had within `patience`; the text holds the last failure.
        """
        async with self._connected() as client, self._room:
            return await self._sample(client, request)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """The client of all requests that are open: the last one closes it."""
        if not self._open_requests:
            self._client = generation_client()
        client, self._open_requests = self._client, self._open_requests + 1
        try:
            yield client
        finally:
            self._open_requests -= 1
            if not self._open_requests:
                await client.aclose()

    def hold(self) -> None:
        """See `Sampler.hold`."""
        self._open.clear()

    def release(self, version: int) -> None:
        """See `Sampler.release`."""
        self._version = version
        self._blank.clear()
        self._releases += 1  # not the version: one may come again, of other weights, after a resume
        self._open.set()

    def describe(self) -> str:
        """How many requests each server has."""
        return ", ".join(f"{server.url} has {n}" for server, n in zip(self.servers, self._load, strict=True))

    async def gauges(self) -> dict[str, float]:
        """The servers' own numbers; of those that answer."""
        answers = await asyncio.gather(
            *(asyncio.to_thread(server.metrics, GAUGE_TIMEOUT) for server in self.servers if not server.lost),
            return_exceptions=True,
        )
        found = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not found:
            return {}
        return {
            "rollout/kv_cache_usage": max(answer.kv_cache_usage for answer in found),
            "rollout/preemptions": float(sum(answer.preemptions for answer in found)),
        }

    async def _sample(self, client: Any, request: Request) -> Sampled:
        written, parts, timeouts = Sampled(), 0, 0
        last: PostrlError | None = None
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            asked = time.monotonic()
            await self._open.wait()
            end += time.monotonic() - asked  # weights on their way cost no patience
            index = self._choose()
            self._load[index] += 1
            try:
                part = await self._ask(client, self.servers[index], request, written, parts)
                problem = _problem(part, request)
                if not problem:
                    written, parts = written.then(part), parts + bool(part.completion_ids)
                    if written.finish_reason == "abort" and len(written.completion_ids) >= request.sampling.max_tokens:
                        written = replace(written, finish_reason="length")
                    if written.finish_reason != "abort":
                        self._failed_at[index] = None
                        return written
                    if part.completion_ids:
                        end = time.monotonic() + self.patience
                    if not self._open.is_set():
                        continue
                if problem and not self.resynced and _versions(part) == {NOT_OURS}:
                    self._blank.add(index)
                last = ServerError(f"{self.servers[index].url} {problem or 'gave up a completion before its end'}")
            except RequestRefused:
                raise
            except (ServerError, WaitTimeout) as error:
                last, timeouts = error, timeouts + isinstance(error, WaitTimeout)
            finally:
                self._load[index] -= 1
            if timeouts >= MAX_TIMEOUTS:
                return Sampled()
            self._failed_at[index] = time.monotonic()
            self.reissued += 1
            await asyncio.sleep(RETRY_PAUSE)
        raise ServerError(
            f"a completion was asked for again and again for {self.patience:.0f} s: {last.message if last else 'no answer'}",
            hint="see the server's log in RUN/logs",
        )

    def _choose(self) -> int:
        """The least loaded server among those that work. Raises ServerError when the run has given all up, WeightsLost
        when all that are left wait for weights."""
        used = map(self.servers.index, in_use(self.servers))
        if not (left := [i for i in used if i not in self._blank]):
            raise WeightsLost("every vLLM server was started again and has the weights it began with")
        return min(left, key=lambda i: (self._avoided(i), self._load[i]))

    def _avoided(self, index: int) -> bool:
        failed_at = self._failed_at[index]
        return failed_at is not None and (self._load[index] > 0 or time.monotonic() < failed_at + AVOID)

    async def _ask(self, client: Any, server: VLLMServer, request: Request, written: Sampled, parts: int) -> Sampled:
        version, sampling = max(request.min_version, self._version), request.sampling
        part = await server.generate(
            client,
            [*request.prompt_ids, *written.completion_ids],
            seed=(request.seed + parts) % 2**63,
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens - len(written.completion_ids),
            stop=list(sampling.stop) or None,
            stop_token_ids=sorted({*self.stop_token_ids, *sampling.stop_token_ids}) or None,
            timeout=self.request_timeout,
            cache_salt=f"{self._salt}-{self._releases}" if self.salted else None,
            model=adapter_name(version) if self.adapters else None,
        )
        if not self.adapters:
            return part
        # All of it was written by the adapter that the request named. The engine's own versions are of the base model.
        n = len(part.completion_ids)
        return replace(part, version_spans=[VersionSpan(version, 0, n)] if n else [])


def _versions(part: Sampled) -> set[int]:
    return {span.version for span in part.version_spans}


def _problem(part: Sampled, request: Request) -> str:
    """Why a part of a completion is not usable; empty when it is."""
    oldest = min(_versions(part), default=request.min_version)
    if oldest < request.min_version:
        return f"generates with weights of version {oldest}, expected {request.min_version}"
    return ""
