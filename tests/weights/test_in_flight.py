"""Weights that change under running and queued requests, on a real vLLM CPU server: what each token was sampled from."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from live_servers import Live
from postrl.rollout.sampler import Request, Sampling
from postrl.rollout.vllm import VLLMSampler
from postrl.types import Sampled
from postrl.weights.disk import DiskTransport
from postrl.weights.transport import Pause

from .conftest import eventually, learner_logps, model_of_version

pytestmark = pytest.mark.slow

PROMPT = [5, 6, 7]
LANES, AFTERWARDS = 32, 4
"""Requests that are out until the push is over, more than the server runs at once, and further ones asked during it."""
TOKENS = 300
"""Most of a completion."""
SAMPLING = Sampling(1.0, TOKENS)


def across_a_push(live: Live, in_flight: str) -> tuple[list[Sampled], list[Sampled]]:
    """(completions of lanes that ask for the next one until version 1 is pushed, those asked for during the push).

    However fast the server is, requests run and others wait for a place when the push begins.
    """
    sampler = VLLMSampler(
        [live.server], stop_token_ids=[], request_timeout=120, patience=120, salted=in_flight == "keep_kv"
    )
    transport = DiskTransport([live.server], live.folder, "float32", pause=Pause.of(in_flight, 120))
    old, new = model_of_version(0), model_of_version(1)
    transport.push(old.named_parameters(), 0)
    tokens = live.server.metrics().generation_tokens  # may miss the last ones of what ran before
    seeds = itertools.count()

    async def ask() -> Sampled:
        return await sampler.sample(Request(PROMPT, next(seeds), SAMPLING, 0))

    async def main() -> tuple[list[Sampled], list[Sampled]]:
        sampler.release(0)
        pushed = asyncio.Event()

        async def lane() -> list[Sampled]:
            found = [await ask()]
            while not pushed.is_set():
                found.append(await ask())
            return found

        lanes = [asyncio.create_task(lane()) for _ in range(LANES)]
        await asyncio.to_thread(eventually, lambda: live.server.metrics().generation_tokens > tokens + 500, "tokens")
        if in_flight != "keep":
            sampler.hold()
        push = asyncio.create_task(asyncio.to_thread(transport.push, new.named_parameters(), 1))
        during = [asyncio.create_task(ask()) for _ in range(AFTERWARDS)]
        await push
        sampler.release(1)
        pushed.set()
        return [sampled for found in await asyncio.gather(*lanes) for sampled in found], await asyncio.gather(*during)

    return asyncio.run(main())


def worst(sampled: Sampled, version: int) -> float:
    """Largest difference of a log-prob to the learner's with the weights that the span names, in its spans of `version`."""
    (learner,) = learner_logps(model_of_version(version), [([*PROMPT, *sampled.completion_ids], len(PROMPT))])
    return max(
        (
            abs(sampled.logps[i] - learner[i])
            for span in sampled.version_spans
            if span.version == version
            for i in range(span.start, span.end)
        ),
        default=0.0,
    )


@pytest.mark.parametrize("in_flight", ["keep", "abort", "wait", "keep_kv"])
def test_every_token_was_sampled_from_the_weights_that_its_span_names(float32_server: Live, in_flight: str) -> None:
    before, during = across_a_push(float32_server, in_flight)
    assert len(before) >= LANES and len(during) == AFTERWARDS
    for sampled in [*before, *during]:
        edges = [0, *(span.end for span in sampled.version_spans)]
        assert edges[-1] == len(sampled.completion_ids) == len(sampled.logps)
        assert [span.start for span in sampled.version_spans] == edges[:-1]
    versions = [[span.version for span in sampled.version_spans] for sampled in before]
    crossing = [sampled for sampled, found in zip(before, versions, strict=True) if found == [0, 1]]
    if in_flight == "wait":
        assert all(found in ([0], [1]) for found in versions) and [0] in versions
    else:
        assert crossing, "no completion was running during the push"
    if in_flight != "keep":  # held back until the push was over
        assert all([span.version for span in sampled.version_spans] == [1] for sampled in during)
    checked = [*crossing[:6], *before[-6:], *during]
    assert max(worst(sampled, 0) for sampled in checked) < 1e-3
    if in_flight == "keep_kv":  # what ran goes on with keys and values of the old weights; what is new does not
        assert max(worst(sampled, 1) for sampled in crossing[:6]) > 1e-2
        checked = during
    assert max(worst(sampled, 1) for sampled in checked) < 1e-3


def test_a_completion_that_was_cut_is_as_long_as_it_may_be_and_no_longer(float32_server: Live) -> None:
    before, _ = across_a_push(float32_server, "abort")
    cut = [sampled for sampled in before if len(sampled.version_spans) == 2]
    assert max(len(sampled.completion_ids) for sampled in cut) == TOKENS
    assert {sampled.finish_reason for sampled in before} <= {"stop", "length"}
    assert all(sampled.finish_reason == "stop" for sampled in before if len(sampled.completion_ids) < TOKENS)
