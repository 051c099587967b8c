"""LoRA adapters on a real vLLM server: each name computes as the learner did at that version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from helpers import tiny_model, tiny_tokenizer
from live_servers import SERVED_LORA, Live
from postrl.errors import CanaryError
from postrl.learning.learner import Learner
from postrl.learning.loading import with_lora
from postrl.learning.sharding import this_rank
from postrl.rollout.sampler import Request, Sampling
from postrl.rollout.vllm import VLLMSampler
from postrl.servers.api import NOT_OURS
from postrl.servers.attach import attach_problems
from postrl.servers.client import VLLMServer
from postrl.types import Sampled, VersionSpan
from postrl.weights.lora import LoraTransport
from postrl.weights.sync import ServerSync
from postrl.weights.transports import restore

from .conftest import PAIRS, eventually, largest_difference, learner_logps

pytestmark = pytest.mark.slow


class Adapted:
    """A learner whose adapter can be moved from version to version, and the way to the server."""

    def __init__(self, live: Live) -> None:
        self.server = live.server
        self.folder = live.folder
        model = with_lora(tiny_model(), SERVED_LORA)
        self.learner = Learner(model, config=SERVED_LORA, ranks=this_rank(), dtype="float32", total_updates=1)
        self.transport = self.transport_of(LoraTransport)

    def transport_of(self, kind: type[LoraTransport]) -> LoraTransport:
        config = self.learner.policy.peft_config
        return kind([self.server], self.folder, "float32", peft_config=config, max_staleness=SERVED_LORA.max_staleness)

    def become(self, version: int) -> None:
        """Version 0 changes nothing, as an adapter does at its start."""
        torch.manual_seed(version)
        with torch.no_grad():
            for name, parameter in self.learner.policy.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(0.05 * version * torch.randn_like(parameter))

    def publish(self, version: int) -> list[list[float]]:
        """Push a version; the learner's log-probs under it, adapter unmerged."""
        self.become(version)
        self.transport.push(self.learner.adapter(), version)
        return self.learner.score(PAIRS)

    def scores(self, name: str) -> list[list[float]]:
        return [self.server.score(token_ids, start, model=name) for token_ids, start in PAIRS]


@pytest.fixture
def adapted(adapter_server: Live) -> Iterator[Adapted]:
    made = Adapted(adapter_server)
    yield made
    for name in made.server.adapters():
        made.server.unload_adapter(name)


def sample(server: VLLMServer, requests: list[Request], meanwhile: Any = None) -> list[Sampled]:
    """Their completions, in order; `meanwhile` is called once they run."""

    async def run() -> list[Sampled]:
        sampler = VLLMSampler([server], stop_token_ids=[], request_timeout=120.0, patience=120.0, adapters=True)

        task = asyncio.gather(*map(sampler.sample, requests))
        if meanwhile is not None:
            await asyncio.to_thread(eventually, lambda: server.metrics().running > 0, "the requests to run")
            await asyncio.to_thread(meanwhile)
        return await task

    return asyncio.run(run())


def requests(version: int, seeds: Iterable[int], max_tokens: int) -> list[Request]:
    return [Request([5, 6, 7, 8], seed, Sampling(1.0, max_tokens), version) for seed in seeds]


def long_ones(server: VLLMServer, version: int, max_tokens: int) -> list[int]:
    """Seeds of the four longest completions of sixteen."""
    found = sample(server, requests(version, range(16), max_tokens))
    return sorted(range(16), key=lambda seed: -len(found[seed].completion_ids))[:4]


def agree(found: list[Sampled], model: Any) -> bool:
    """Whether a model gives the log-probs with which the completions came."""
    pairs = [([5, 6, 7, 8, *sampled.completion_ids], 4) for sampled in found]
    return largest_difference([sampled.logps for sampled in found], learner_logps(model, pairs)) < 1e-3


def test_old_and_new_names_serve_at_once_and_each_agrees_with_the_learner_of_its_version(adapted: Adapted) -> None:
    logps = {version: adapted.publish(version) for version in range(3)}
    assert set(adapted.server.adapters()) == {"policy-v0", "policy-v1", "policy-v2"}
    for version in (2, 0, 1):
        assert largest_difference(adapted.scores(f"policy-v{version}"), logps[version]) < 1e-3
    assert largest_difference(logps[0], logps[1]) > 0.1 and largest_difference(logps[1], logps[2]) > 0.1
    adapted.publish(3)
    assert set(adapted.server.adapters()) == {"policy-v1", "policy-v2", "policy-v3"}
    assert largest_difference(adapted.scores("policy-v1"), logps[1]) < 1e-3


def test_a_request_in_flight_across_a_push_finishes_under_the_version_it_named(adapted: Adapted) -> None:
    adapted.publish(1)
    in_the_midst: list[list[list[float]]] = []

    def push() -> None:
        adapted.transport.push(adapted.learner.adapter(), 2)
        in_the_midst.append(adapted.scores("policy-v2"))
        assert adapted.server.metrics().running > 0

    seeds = long_ones(adapted.server, 1, max_tokens=400)
    adapted.become(2)
    old = sample(adapted.server, requests(1, seeds, max_tokens=400), meanwhile=push)
    (new,) = sample(adapted.server, requests(2, [0], max_tokens=16))
    assert largest_difference(in_the_midst[0], adapted.learner.score(PAIRS)) < 1e-3
    assert agree([new], adapted.learner.policy.model) and not agree(old, adapted.learner.policy.model)
    adapted.become(1)
    assert agree(old, adapted.learner.policy.model)
    for sampled, version in (*((one, 1) for one in old), (new, 2)):
        assert sampled.version_spans == [VersionSpan(version, 0, len(sampled.completion_ids))]


def test_a_request_for_a_name_that_is_not_there_waits_until_it_is(adapted: Adapted) -> None:
    """As on a server that was restarted, between its start and the launcher's restore."""
    adapted.publish(1)
    adapted.server.unload_adapter("policy-v1")

    async def run() -> Sampled:
        sampler = VLLMSampler([adapted.server], stop_token_ids=[], request_timeout=60.0, patience=60.0, adapters=True)
        (asked,) = requests(1, [0], max_tokens=8)
        first = asyncio.create_task(sampler.sample(asked))
        while not sampler.reissued:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(restore, adapted.server, adapted.folder)
        return await first

    assert agree([asyncio.run(run())], adapted.learner.policy.model)


def test_the_canary_proves_adapters_and_no_base_weights_are_ever_pushed(adapted: Adapted) -> None:
    sync = ServerSync(adapted.learner, adapted.transport, [adapted.server], tiny_tokenizer(), adapters=True)
    for version in (0, 1, 2):
        adapted.become(version)
        assert sync.publish(version)["weights/canary"] < 1e-3
    assert set(adapted.server.adapters()) == {"policy-v0", "policy-v1", "policy-v2"}
    assert adapted.server.weight_info() == NOT_OURS


class Stale(LoraTransport):
    """Sends the first adapter again and again."""

    def write(self, weights: dict[str, torch.Tensor], *rest: Any) -> Any:
        self.first = getattr(self, "first", None) or {name: tensor.clone() for name, tensor in weights.items()}
        return super().write(self.first, *rest)


def test_a_server_that_gets_another_adapter_than_the_learner_has_is_found(adapted: Adapted) -> None:
    sync = ServerSync(adapted.learner, adapted.transport_of(Stale), [adapted.server], tiny_tokenizer(), adapters=True)
    with pytest.raises(CanaryError, match="did not move"):
        sync.publish(0)


def test_attaching_finds_a_server_for_adapters_good_and_one_for_more_of_them_not(adapted: Adapted) -> None:
    assert attach_problems(adapted.server, dtype="float32", adapters=(4, 3)) == []
    problems = attach_problems(adapted.server, adapters=(16, 4))
    assert [problem.partition(": ")[2] for problem in problems] == [
        "its max_lora_rank is 8, and the run needs 16: start it with --max-lora-rank 16",
        "its max_loras is 3, and the run needs 4: start it with --max-loras 4",
    ]
