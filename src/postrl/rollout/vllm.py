"""The sampler over vLLM servers: one request per completion, least loaded server first, lost requests asked again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from postrl.errors import PostrlError, RequestRefused, ServerError, WaitTimeout
from postrl.lost_servers import in_use
from postrl.rollout.sampler import Request, Sampled
from postrl.servers import Completion, VLLMServer, generation_client

MAX_IN_FLIGHT = 512
"""Requests at one server: beyond it they wait here instead of in the server's queue."""

RETRY_PAUSE = 1.0
"""Seconds between two tries of one request."""

AVOID = 10.0
"""Seconds for which a server that failed gets requests only if all have: one that refuses at once always looks idle."""


class VLLMSampler:
    """Samples from `servers`.

    Args:
        stop_token_ids: tokens that end a completion, beside the model's own.
        request_timeout: seconds one try of a completion may take.
        patience: seconds a completion may stay lost (server down, restarted, or still at other weights) in all.
    """

    def __init__(
        self, servers: Sequence[VLLMServer], *, stop_token_ids: Sequence[int], request_timeout: float, patience: float
    ) -> None:
        self.servers = list(servers)
        self.stop_token_ids = list(stop_token_ids)
        self.request_timeout = request_timeout
        self.patience = patience
        self.reissued = 0
        """Requests asked again so far."""
        self._load = [0] * len(self.servers)
        self._avoid_until = [0.0] * len(self.servers)

    async def sample(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, Sampled], None]:
        """See `Sampler.sample`. Leaving early closes the connections, and the servers drop the requests.

        Raises:
            RequestRefused: a server will not answer one of them, such as a prompt that is too long for it.
            ServerError: a completion could not be had within `patience`; the text holds the last failure.
        """
        room = asyncio.Semaphore(MAX_IN_FLIGHT * len(self.servers))
        async with generation_client() as client:

            async def one(index: int, request: Request) -> tuple[int, Sampled]:
                async with room:
                    return index, await self._sample(client, request)

            tasks = [asyncio.create_task(one(i, request)) for i, request in enumerate(requests)]
            try:
                for done in asyncio.as_completed(tasks):
                    yield await done
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _sample(self, client: object, request: Request) -> Sampled:
        end = time.monotonic() + self.patience
        last: PostrlError | None = None
        while time.monotonic() < end:
            index = self._choose()
            self._load[index] += 1
            try:
                completion = await self._ask(client, self.servers[index], request)
                problem = _problem(completion, request)
                if not problem:
                    return _sampled(completion)
                last = ServerError(f"{self.servers[index].url} {problem}")
            except RequestRefused:
                raise
            except (ServerError, WaitTimeout) as error:
                last = error
            finally:
                self._load[index] -= 1
            self._avoid_until[index] = time.monotonic() + AVOID
            self.reissued += 1
            await asyncio.sleep(RETRY_PAUSE)
        raise ServerError(
            f"a completion was asked for again and again for {self.patience:.0f} s: {last.message if last else 'no answer'}",
            hint="see the server's log in RUN/logs",
        )

    def _choose(self) -> int:
        """The least loaded server among those that work. Raises ServerError when the run has given all up."""
        now, left = time.monotonic(), map(self.servers.index, in_use(self.servers))
        return min(left, key=lambda i: (self._avoid_until[i] > now, self._load[i]))

    async def _ask(self, client: object, server: VLLMServer, request: Request) -> Completion:
        return await server.generate(
            client,  # type: ignore[arg-type]
            request.prompt_ids,
            seed=request.seed,
            temperature=request.sampling.temperature,
            max_tokens=request.sampling.max_tokens,
            stop=list(request.sampling.stop) or None,
            stop_token_ids=self.stop_token_ids or None,
            timeout=self.request_timeout,
        )


def _problem(completion: Completion, request: Request) -> str:
    """Why a completion is no rollout; empty when it is one."""
    if completion.finish_reason == "abort":
        return "gave up a completion before its end"
    oldest = min((span.version for span in completion.version_spans), default=request.min_version)
    if oldest < request.min_version:
        return f"generates with weights of version {oldest}, expected {request.min_version}"
    return ""


def _sampled(completion: Completion) -> Sampled:
    return Sampled(completion.token_ids, completion.logps, completion.version_spans, completion.finish_reason)
