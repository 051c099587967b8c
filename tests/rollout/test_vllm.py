"""Sampling over servers: spread, asked again, given up. The servers are stand-ins that speak real HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fake_vllm import FakeVLLM
from postrl.errors import RequestRefused, ServerError, WeightsLost
from postrl.rollout import vllm
from postrl.rollout.sampler import Request, Sampling
from postrl.rollout.vllm import AVOID, VLLMSampler
from postrl.run.connections import Connections
from postrl.servers.client import VLLMServer
from postrl.servers.lost import give_up, run_servers
from postrl.types import Sampled, VersionSpan


class Generating(FakeVLLM):
    """`reply(n, body)` gives (status, choice) for the n-th request, from 0."""

    def __init__(self, reply: Callable[[int, Any], tuple[int, dict[str, Any]]]) -> None:
        super().__init__()
        self.reply = reply
        self.lock = threading.Lock()
        self.asked = 0

    def answer(self, route: str, body: Any) -> tuple[int, str]:
        with self.lock:
            n, self.asked = self.asked, self.asked + 1
            self.calls.append((route, body))
        status, choice = self.reply(n, body)
        return status, json.dumps({"choices": [choice]})


def choice(version: int | str = 2, reason: str = "stop", tokens: tuple[int, ...] = (7, 8)) -> dict[str, Any]:
    return {
        "token_ids": list(tokens),
        "logprobs": {"content": [{"logprob": -0.5 * (i + 1)} for i in range(len(tokens))]},
        "weight_versions": [{"version": str(version), "start": 0, "end": len(tokens)}],
        "finish_reason": reason,
    }


def request(seed: int = 1, min_version: int = 2) -> Request:
    return Request([1, 2, 3], seed, Sampling(0.9, 16, ("END",)), min_version)


def sample(sampler: VLLMSampler, requests: list[Request]) -> dict[int, Sampled]:
    async def collect() -> dict[int, Sampled]:
        return dict(enumerate(await asyncio.gather(*map(sampler.sample, requests))))

    return asyncio.run(collect())


def sampler(*servers: FakeVLLM, patience: float = 30.0) -> VLLMSampler:
    urls = [VLLMServer(server.url) for server in servers]
    return VLLMSampler(urls, stop_token_ids=[2, 9], request_timeout=20.0, patience=patience)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(vllm, "RETRY_PAUSE", 0.01)


def test_a_server_that_was_given_up_is_not_asked(tmp_path):
    with Generating(lambda n, body: (500, {})) as bad, Generating(lambda n, body: (200, choice())) as good:
        asking = sampler(bad, good)
        asking.servers = run_servers(Connections(server_urls=(bad.url, good.url)), tmp_path)
        give_up(tmp_path, bad.url, "it fell four times")
        assert len(sample(asking, [request(seed=n) for n in range(4)])) == 4
        assert (bad.asked, good.asked) == (0, 4)
        give_up(tmp_path, good.url, "it burned")
        with pytest.raises(ServerError, match=r"no vLLM server is left:\n  it fell four times\n  it burned"):
            sample(asking, [request()])


def test_a_completion_comes_back_with_log_probs_and_versions():
    with Generating(lambda n, body: (200, choice())) as server:
        assert sample(sampler(server), [request(seed=5)]) == {
            0: Sampled([7, 8], [-0.5, -1.0], [VersionSpan(2, 0, 2)], "stop")
        }
    ((_, body),) = server.calls
    asked = body["sampling_params"]
    assert body["token_ids"] == [1, 2, 3]
    assert (asked["seed"], asked["temperature"], asked["max_tokens"]) == (5, 0.9, 16)
    assert (asked["stop"], asked["stop_token_ids"]) == (["END"], [2, 9])


def test_the_stop_tokens_of_a_request_come_to_those_of_all():
    asked = replace(request(), sampling=Sampling(0.9, 16, stop_token_ids=(9, 5)))
    with Generating(lambda n, body: (200, choice())) as server:
        sample(sampler(server), [asked])
    ((_, body),) = server.calls
    assert body["sampling_params"]["stop_token_ids"] == [2, 5, 9]


def test_with_adapters_a_request_names_its_version_and_the_engines_own_is_ignored():
    with Generating(lambda n, body: (200, choice(version="default"))) as server:
        asking = sampler(server)
        asking.adapters = True
        found = sample(asking, [request(min_version=2), request(min_version=3)])
        asking.release(7)  # a request that waited, or comes back with a resumed run: old names may be gone
        later = sample(asking, [request(min_version=3)])
    assert [body["model"] for _, body in server.calls[:2]] in (["policy-v2", "policy-v3"], ["policy-v3", "policy-v2"])
    assert server.calls[2][1]["model"] == "policy-v7"
    spans = [found[0].version_spans, found[1].version_spans, later[0].version_spans]
    assert spans == [[VersionSpan(2, 0, 2)], [VersionSpan(3, 0, 2)], [VersionSpan(7, 0, 2)]]


def test_requests_are_spread_over_the_servers():
    arrived = threading.Barrier(6, timeout=20)  # all six are in flight at once

    def reply(n: int, body: Any) -> tuple[int, dict[str, Any]]:
        arrived.wait()
        return 200, choice()

    with Generating(reply) as one, Generating(reply) as two:
        assert len(sample(sampler(one, two), [request(seed) for seed in range(6)])) == 6
        assert (one.asked, two.asked) == (3, 3)


@pytest.mark.parametrize(
    "bad",
    [(503, {}), (200, {"nonsense": 1}), (200, choice(version=1)), (200, choice(version="default")),
     (200, choice(reason="abort", tokens=()))],
    ids=["down", "garbage", "old weights", "nobody's weights", "aborted at once"],
)  # fmt: skip
def test_what_is_no_completion_is_asked_for_again_with_the_same_seed(bad):
    with Generating(lambda n, body: bad if n < 2 else (200, choice())) as server:
        which = sampler(server)
        assert sample(which, [request(seed=5)])[0].completion_ids == [7, 8]
    assert which.reissued == 2
    assert [body["sampling_params"]["seed"] for _, body in server.calls] == [5, 5, 5]


def test_a_server_that_is_gone_costs_only_a_second_try_at_another():
    with Generating(lambda n, body: (200, choice())) as server:
        with Generating(lambda n, body: (200, choice())) as gone:
            pass
        found = sample(sampler(gone, server), [request(seed) for seed in range(4)])
    assert sorted(found) == [0, 1, 2, 3]


def test_a_server_that_failed_gets_one_request_at_a_time_until_it_answers():
    hold = threading.Event()

    def reply(n: int, body: Any) -> tuple[int, dict[str, Any]]:
        if n == 1:
            hold.wait(20)
        return (503, {}) if n == 0 else (200, choice())

    async def main(which: VLLMSampler) -> list[int]:
        asked = []
        await which.sample(request())  # it fails, and the other is asked
        which._failed_at[0] = -AVOID  # ten seconds later
        completions = asyncio.as_completed([which.sample(request(seed)) for seed in range(6)])
        for _ in range(5):
            await next(completions)
        async with asyncio.timeout(60):
            while failed.asked < 2:  # on its way to the server that failed
                await asyncio.sleep(0.01)
        asked.append(failed.asked)
        hold.set()
        await next(completions)
        await asyncio.gather(*(which.sample(request(seed)) for seed in range(6)))
        return [*asked, failed.asked]

    with Generating(reply) as failed, Generating(lambda n, body: (200, choice())) as other:
        assert asyncio.run(main(sampler(failed, other))) == [2, 5]


def test_a_request_that_is_refused_is_not_asked_again():
    which = None
    with Generating(lambda n, body: (400, {})) as server, pytest.raises(RequestRefused, match="answered HTTP 400"):
        which = sampler(server)
        sample(which, [request()])
    assert (server.asked, which.reissued) == (1, 0)


def test_patience_ends_with_the_last_failure():
    with (
        Generating(lambda n, body: (200, choice(version=1))) as server,
        pytest.raises(
            ServerError, match=r"asked for again and again for 0 s: .* weights of version 1, expected 2"
        ) as caught,
    ):
        sample(sampler(server, patience=0.2), [request()])
    assert "RUN/logs" in caught.value.hint


def test_leaving_early_gives_the_servers_their_requests_back():
    hold = threading.Event()

    def reply(n: int, body: Any) -> tuple[int, dict[str, Any]]:
        if body["sampling_params"]["seed"]:
            hold.wait(20)
        return 200, choice()

    async def first(which: VLLMSampler) -> None:
        tasks = [asyncio.create_task(which.sample(request(seed))) for seed in range(3)]
        await tasks[0]
        for task in tasks[1:]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in ended] == [Sampled, asyncio.CancelledError, asyncio.CancelledError]

    with Generating(reply) as server:
        which = sampler(server)
        asyncio.run(first(which))
        hold.set()
        assert len(sample(which, [request(0), request(0)])) == 2  # its counts of load are right again
        assert which._load == [0]


# -- while weights change ----------------------------------------------------------------------------------------------


def test_a_completion_that_is_cut_goes_on_with_what_it_has():
    def reply(n: int, body: Any) -> tuple[int, dict[str, Any]]:
        return 200, [choice(2, "abort", (7, 8)), choice(3, "abort", (9,)), choice(3, "stop", (5, 6))][n]

    with Generating(reply) as server:
        (found,) = sample(sampler(server), [request(seed=5)]).values()
    assert found == Sampled(
        [7, 8, 9, 5, 6], [-0.5, -1.0, -0.5, -0.5, -1.0], [VersionSpan(2, 0, 2), VersionSpan(3, 2, 5)], "stop"
    )
    asked = [(body["token_ids"], body["sampling_params"]["max_tokens"]) for _, body in server.calls]
    assert asked == [([1, 2, 3], 16), ([1, 2, 3, 7, 8], 14), ([1, 2, 3, 7, 8, 9], 13)]
    seeds = [body["sampling_params"]["seed"] for _, body in server.calls]
    assert len(set(seeds)) == 3, "the same seed again would draw the numbers of the first part again"


def test_a_completion_that_is_cut_at_its_last_token_is_whole():
    with Generating(lambda n, body: (200, choice(2, "abort", tuple(range(3, 19))))) as server:
        (found,) = sample(sampler(server), [request()]).values()
    assert (len(found.completion_ids), found.finish_reason, server.asked) == (16, "length", 1)


def test_nothing_new_is_asked_for_while_requests_are_held():
    with Generating(lambda n, body: (200, choice())) as server:

        async def main() -> tuple[int, int]:
            which = sampler(server)
            which.hold()
            task = asyncio.create_task(which.sample(request()))
            await asyncio.sleep(0.2)
            before = server.asked
            which.release(2)
            await task
            return before, server.asked

        assert asyncio.run(main()) == (0, 1)


def test_requests_of_different_weights_share_no_keys_and_values_where_old_ones_are_kept():
    with Generating(lambda n, body: (200, choice(7))) as server:

        async def main() -> None:
            which = VLLMSampler(
                [VLLMServer(server.url)], stop_token_ids=[], request_timeout=20, patience=20, salted=True
            )
            for version in (6, 7):
                which.release(version)
                await which.sample(request())

        asyncio.run(main())
    assert len({body["cache_salt"] for _, body in server.calls}) == 2


def test_a_completion_that_is_too_slow_twice_is_given_up_and_the_others_are_not():
    hold = threading.Event()

    def reply(n: int, body: Any) -> tuple[int, dict[str, Any]]:
        if body["sampling_params"]["seed"] == 1:
            hold.wait(60)
        return 200, choice()

    with Generating(reply) as server:
        which = VLLMSampler([VLLMServer(server.url)], stop_token_ids=[], request_timeout=2.0, patience=60)
        found = sample(which, [request(seed=1), request(seed=2)])
        hold.set()
    assert found[0] == Sampled([], [], [], "abort")
    assert found[1].completion_ids == [7, 8]


def test_a_restarted_server_that_only_a_push_brings_its_weights_is_not_asked_until_then():
    blank = [True]

    def reply(n: int, body: Any) -> tuple[int, dict[str, Any]]:
        return 200, choice("default" if blank[0] else 2)

    with Generating(reply) as restarted, Generating(lambda n, body: (200, choice())) as other:
        servers = [VLLMServer(restarted.url), VLLMServer(other.url)]
        which = VLLMSampler(servers, stop_token_ids=[], request_timeout=20, patience=60, resynced=False)
        assert len(sample(which, [request(seed) for seed in range(8)])) == 8
        asked = restarted.asked
        assert len(sample(which, [request(seed) for seed in range(8)])) == 8
        assert restarted.asked == asked > 0
        blank[0] = False
        which.release(2)
        which._failed_at = [-AVOID, -AVOID]  # ten seconds later
        assert len(sample(which, [request(seed) for seed in range(8)])) == 8
        assert restarted.asked > asked


def test_when_all_servers_wait_for_weights_they_are_asked_for_at_once():
    with Generating(lambda n, body: (200, choice("default"))) as server, pytest.raises(WeightsLost):
        which = VLLMSampler(
            [VLLMServer(server.url)], stop_token_ids=[], request_timeout=20, patience=60, resynced=False
        )
        sample(which, [request()])
