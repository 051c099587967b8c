"""What rewards read of a completion: the same whichever engine has written it, in training and in evaluation."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import Any

import pytest

from fake_vllm import FakeVLLM
from helpers import TURN_END, tiny_tokenizer
from postrl.config import GRPOConfig
from postrl.given import Given
from postrl.rewards.registry import resolve
from postrl.rollout.sampler import Request, Sampler
from postrl.rollout.vllm import VLLMSampler
from postrl.run.folder import RunFolder
from postrl.servers.client import VLLMServer
from postrl.types import Sampled, VersionSpan
from postrl.worker.building import build_worker

INSIDE = r"<think>It is \boxed{4}.</think>It is 5."
BEHIND = r"<think>It is \boxed{5}.</think>It is \boxed{4}."


class Writing(Sampler):
    """A sampler of this process that writes one text."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    async def sample(self, request: Request) -> Sampled:
        return Sampled(self.ids, [-0.5] * len(self.ids), [VersionSpan(0, 0, len(self.ids))], "stop")


class Server(FakeVLLM):
    """A server that writes one text."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__()
        self.ids = ids

    def answer(self, route: str, body: Any) -> tuple[int, str]:
        logps = [{"logprob": -0.5} for _ in self.ids]
        spans = [{"version": "0", "start": 0, "end": len(self.ids)}]
        choice = {"token_ids": self.ids, "logprobs": {"content": logps}, "weight_versions": spans}
        return 200, json.dumps({"choices": [{**choice, "finish_reason": "stop"}]})


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
@pytest.mark.parametrize(("said", "scores"), [(INSIDE, (0.0, 1.0)), (BEHIND, (1.0, 1.0))])
def test_a_box_between_tags_that_are_special_tokens_never_pays_and_format_sees_the_tags(tmp_path, engine, said, scores):
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    ids = tokenizer(said + TURN_END, add_special_tokens=False)["input_ids"]
    given = Given(
        rewards=[resolve("math"), resolve("format")],
        train=[{"prompt": [{"role": "user", "content": "2 + 2?"}], "answer": "4"}],
        evaluate=[{"prompt": "2 + 2 =", "answer": "4"}],
    )
    with ExitStack() as stack:
        sampler: Any = Writing(ids)
        if engine == "vllm":
            server = stack.enter_context(Server(ids))
            sampler = VLLMSampler(
                [VLLMServer(server.url)], stop_token_ids=[tokenizer.eos_token_id], request_timeout=20.0, patience=20.0
            )
        config = GRPOConfig(prompts_per_step=1, num_generations=2, max_completion_length=64, seed=3)
        stops = [tokenizer.eos_token_id]
        worker, _ = build_worker(config, tokenizer, sampler, RunFolder(tmp_path), given=given, stop_token_ids=stops)
        stack.callback(worker.close)

        async def both() -> list[Any]:
            await worker.start()
            worker.pushed(0)
            return [*(await worker.groups(0))[0], *(await worker.evaluate(0))[0]]

        for group in asyncio.run(both()):
            for rollout in group.rollouts:
                assert rollout.completion == said
                assert (rollout.rewards["math"], rollout.rewards["format"]) == scores
