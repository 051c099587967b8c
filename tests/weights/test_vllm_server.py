"""Pushes to real vLLM CPU servers: what they compute afterwards, and what they say about it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from helpers import tiny_tokenizer
from live_servers import Live
from postrl.errors import CanaryError, ServerError
from postrl.servers.api import NOT_OURS
from postrl.servers.attach import attach_problems, config_problems
from postrl.servers.client import generation_client
from postrl.types import Sampled, VersionSpan
from postrl.weights.canary import PERTURBATIONS, Canary, perturbation
from postrl.weights.disk import DiskTransport
from postrl.weights.transports import TRANSPORTS, restore

from .conftest import PAIRS, eventually, largest_difference, learner_logps, model_of_version

pytestmark = pytest.mark.slow


async def complete(live: Live, seeds: range, **settings: object) -> list[Sampled]:
    arguments = {"temperature": 1.0, "max_tokens": 64, "timeout": 120} | settings
    async with generation_client() as client:
        calls = [live.server.generate(client, [5, 6, 7], seed=seed, **arguments) for seed in seeds]  # type: ignore[arg-type]
        return await asyncio.gather(*calls)


def test_after_each_push_the_server_scores_like_the_learner(float32_server: Live) -> None:
    server, before = float32_server.server, None
    for version in (0, 1, 2):
        model = model_of_version(version)
        float32_server.transport.push(model.named_parameters(), version)
        scores = [server.score(*pair) for pair in PAIRS]
        assert largest_difference(scores, learner_logps(model)) < 1e-3
        assert before is None or largest_difference(scores, before) > 1e-2
        assert (server.weight_info(), server.is_paused()) == (version, False)
        before = scores


def test_without_the_lm_head_refresh_the_canary_stops_the_run(float32_server: Live) -> None:
    server, transport = float32_server.server, float32_server.transport
    canary = Canary(PAIRS, [server])
    model = model_of_version(0)
    transport.push(model.named_parameters(), 0)
    canary.calibrate(learner_logps(model), canary.scores(), canary.checksums())
    model = model_of_version(1)
    with float32_server.stale_lm_head():
        transport.push(model.named_parameters(), 1)
    scores = canary.scores()
    assert largest_difference(scores[server.url], learner_logps(model)) > 1e-2
    with pytest.raises(CanaryError, match=f"{server.url} does not hold .* version 1.* a stale LM head"):
        canary.check(1, learner_logps(model), scores, canary.checksums())


@pytest.mark.parametrize("fixture", ["float32_server", "bfloat16_server"])
def test_the_canary_follows_a_run(fixture: str, request: pytest.FixtureRequest) -> None:
    live: Live = request.getfixturevalue(fixture)
    push, canary, dtype = live.transport.push, Canary(PAIRS, [live.server]), live.transport.dtype
    model = model_of_version(0)
    learner = learner_logps(model, dtype=dtype)
    push(model.named_parameters(), 0)
    noise = canary.calibrate(learner, canary.scores(), canary.checksums())
    assert 0 < noise.largest < (1e-3 if dtype == "float32" else 0.3)
    for size in PERTURBATIONS:
        with perturbation(model.parameters(), size):
            moved = learner_logps(model, dtype=dtype)
            if not canary.visible(moved):
                continue
            with pytest.raises(CanaryError, match="did not move"):
                canary.check(NOT_OURS, moved, canary.scores())
            push(model.named_parameters(), NOT_OURS)
            canary.check(NOT_OURS, moved, canary.scores(), canary.checksums(), every_tensor=True)
            break
    else:
        pytest.fail("no perturbation was visible")
    assert live.server.weight_info() == NOT_OURS
    push(model.named_parameters(), 0)
    canary.check(0, learner, canary.scores(), canary.checksums())
    model = model_of_version(1)
    push(model.named_parameters(), 1)
    report = canary.check(1, learner_logps(model, dtype=dtype), canary.scores(), canary.checksums())
    assert report.change > 10 * report.deviation


def test_the_prefix_cache_does_not_outlive_a_push(float32_server: Live) -> None:
    """The same prompt again, longer than a block of the cache, under other weights."""
    prompt = list(range(10, 170))
    for version in (0, 1):
        model = model_of_version(version)
        float32_server.transport.push(model.named_parameters(), version)

        async def one() -> Sampled:
            async with generation_client() as client:
                return await float32_server.server.generate(client, prompt, seed=1, temperature=1.0, max_tokens=8)

        completion = asyncio.run(one())
        learner = learner_logps(model, [([*prompt, *completion.completion_ids], len(prompt))])
        assert largest_difference([completion.logps], learner) < 1e-3
        assert completion.version_spans == [VersionSpan(version, 0, len(completion.completion_ids))]


def test_log_probs_are_those_of_the_temperature_sampled_at(float32_server: Live) -> None:
    import torch

    model = model_of_version(0)
    float32_server.transport.push(model.named_parameters(), 0)
    (completion,) = asyncio.run(complete(float32_server, range(1), temperature=0.5, max_tokens=12))
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6, 7, *completion.completion_ids]])).logits[0, 2:-1]
    logps = (logits / 0.5).log_softmax(-1)
    learner = [logps[i, token].item() for i, token in enumerate(completion.completion_ids)]
    assert largest_difference([completion.logps], [learner]) < 1e-3


def test_the_same_seed_gives_the_same_completion_and_another_seed_another(float32_server: Live) -> None:
    float32_server.transport.push(model_of_version(0).named_parameters(), 0)
    first, again = (asyncio.run(complete(float32_server, range(2))) for _ in range(2))
    assert [found.completion_ids for found in first] == [found.completion_ids for found in again]
    assert largest_difference([found.logps for found in first], [found.logps for found in again]) < 1e-4
    assert first[0].completion_ids != first[1].completion_ids


def test_stop_texts_and_stop_tokens_end_a_completion_and_stay_in_it(float32_server: Live) -> None:
    float32_server.transport.push(model_of_version(0).named_parameters(), 0)
    decode = tiny_tokenizer().decode

    def first_word(tokens: list[int]) -> int | None:
        """Where two tokens are plain text (most of this model's are parts of characters) that was not there before."""
        words = (i for i in range(2, len(tokens) - 1) if decode(tokens[i : i + 2]).isascii())
        return next((i for i in words if decode(tokens[i : i + 2]) not in decode(tokens[: i + 1])), None)

    free = asyncio.run(complete(float32_server, range(16), max_tokens=32))
    seed, at = next((seed, at) for seed, c in enumerate(free) if (at := first_word(c.completion_ids)) is not None)
    tokens, seeds = free[seed].completion_ids, range(seed, seed + 1)
    (by_text,) = asyncio.run(complete(float32_server, seeds, max_tokens=32, stop=[decode(tokens[at : at + 2])]))
    assert (by_text.completion_ids, by_text.finish_reason) == (tokens[: at + 2], "stop")
    (by_token,) = asyncio.run(complete(float32_server, seeds, max_tokens=32, stop_token_ids=[tokens[at]]))
    assert (by_token.completion_ids, by_token.finish_reason) == (tokens[: tokens.index(tokens[at]) + 1], "stop")


def test_a_stop_text_may_be_a_special_token(float32_server: Live) -> None:
    """`<|im_start|>` is no end-of-sequence token; text without special tokens would never show it."""
    float32_server.transport.push(model_of_version(0).named_parameters(), 0)
    special = tiny_tokenizer().convert_tokens_to_ids("<|im_start|>")
    settings = {"max_tokens": 128, "temperature": 2.0}
    free = asyncio.run(complete(float32_server, range(16), **settings))
    seed = next(i for i, completion in enumerate(free) if special in completion.completion_ids)
    (stopped,) = asyncio.run(complete(float32_server, range(seed, seed + 1), **settings, stop=["<|im_start|>"]))
    assert stopped.completion_ids == free[seed].completion_ids[: free[seed].completion_ids.index(special) + 1]


def test_a_cancelled_completion_is_dropped_by_the_server(float32_server: Live) -> None:
    server = float32_server.server

    async def cancel() -> None:
        task = asyncio.create_task(complete(float32_server, range(4), max_tokens=480))
        while server.metrics().running == 0:
            await asyncio.sleep(0.02)
        task.cancel()

    asyncio.run(cancel())
    eventually(lambda: server.metrics().running == 0, "the server to drop the requests")


def test_all_routes_but_health_want_the_token(float32_server: Live) -> None:
    url = float32_server.server.url
    assert httpx.get(f"{url}/health").status_code == 200
    for method, route in (
        ("POST", "/pause"), ("POST", "/update_weights"), ("POST", "/collective_rpc"), ("GET", "/metrics"),
        ("GET", "/server_info"), ("POST", "/inference/v1/generate"), ("GET", "/v1/models"), ("GET", "/health/../metrics"),
        ("OPTIONS", "/pause"),
    ):  # fmt: skip
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "a token for tests"}):
            response = httpx.request(method, url + route, headers=headers)
            assert response.status_code == 401, (method, route)
            assert "POSTRL_SERVER_TOKEN" in response.json()["error"]
    assert not float32_server.server.is_paused()


def test_a_file_outside_the_weights_folder_is_refused_and_the_weights_stay(
    float32_server: Live, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    server = float32_server.server
    float32_server.transport.push(model_of_version(1).named_parameters(), 1)
    before = server.score(*PAIRS[0])
    outside, link = tmp_path / "outside.safetensors", float32_server.folder / "link.safetensors"
    save_file(dict(model_of_version(2).named_parameters()), outside)
    os.symlink(outside, link)
    for path in (outside, link, float32_server.folder / ".." / "model" / "model.safetensors"):
        server.start_weight_update()
        with pytest.raises(ServerError, match="outside the folders that POSTRL_WEIGHTS_DIR allows"):
            server.update_weights({"path": str(path)})
    assert server.score(*PAIRS[0]) == before
    float32_server.transport.push(model_of_version(2).named_parameters(), 2)
    assert server.weight_info() == 2


def test_restore_brings_a_fresh_server_to_what_was_published_last(bfloat16_server: Live) -> None:
    server = bfloat16_server.server
    assert restore(server, bfloat16_server.folder / "nothing yet") is None
    model = model_of_version(2)
    DiskTransport([], bfloat16_server.folder, "bfloat16").push(model.named_parameters(), 7)
    assert restore(server, bfloat16_server.folder) == 7
    assert server.weight_info() == 7 and not server.is_paused()
    scores = [server.score(*pair) for pair in PAIRS]
    assert largest_difference(scores, learner_logps(model, dtype="bfloat16")) < 0.3
    assert largest_difference(scores, learner_logps(model_of_version(0), dtype="bfloat16")) > 0.5


def test_attaching_to_a_good_server_finds_no_problem_and_to_a_paused_one_only_where_no_push_would_mend_it(
    float32_server: Live,
) -> None:
    server = float32_server.server
    wanted = {"dtype": "float32", "max_model_len": 512}
    assert attach_problems(server, **wanted) == []  # type: ignore[arg-type]
    server.pause("keep", clear_cache=True)
    try:
        (problem,) = attach_problems(server, **wanted)  # type: ignore[arg-type]
        assert "paused" in problem
        files = TRANSPORTS["disk"]
        assert attach_problems(server, **wanted, backend=files.backend, resumes=files.resumes) == []  # type: ignore[arg-type]
    finally:
        server.resume()
    assert server.world_size() == 1
    config = server.server_info()["vllm_config"]
    config["scheduler_config"]["enable_chunked_prefill"] = True
    (problem,) = config_problems({"vllm_config": config}, model=None, backend="postrl_disk", **wanted)  # type: ignore[arg-type]
    assert "--no-enable-chunked-prefill" in problem


@pytest.mark.parametrize("killed", ["before the update", "before the weights", "before the end", "before it resumes"])
def test_the_first_push_of_a_run_mends_what_a_learner_left_that_was_killed_during_one(
    float32_server: Live, killed: str
) -> None:
    server, transport, model = float32_server.server, float32_server.transport, model_of_version(2)
    transport.push(model_of_version(1).named_parameters(), 1)
    left = transport.write(dict(model_of_version(0).named_parameters()), 9, float32_server.folder)
    server.pause("keep", clear_cache=True)
    if killed != "before the update":
        server.start_weight_update()
    if killed in ("before the end", "before it resumes"):
        server.update_weights({"path": str(left)})
    if killed == "before it resumes":
        server.finish_weight_update(9)
    transport.push(model.named_parameters(), 2)
    assert largest_difference([server.score(*pair) for pair in PAIRS], learner_logps(model)) < 1e-3
    assert (server.weight_info(), server.is_paused()) == (2, False)
