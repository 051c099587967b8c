"""The client against answers that a healthy server does not give; tests/weights/test_vllm_server.py has the real one."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from fake_vllm import FakeVLLM, completion_answer
from postrl.errors import RequestRefused, ServerError, WaitTimeout
from postrl.servers.attach import attach_problems
from postrl.servers.client import VLLMServer, generation_client
from postrl.types import Sampled

GENERATE = "/inference/v1/generate"


def generate(url: str, **settings: Any) -> Sampled:
    async def one() -> Sampled:
        async with generation_client() as client:
            arguments = {"seed": 3, "temperature": 0.7, "max_tokens": 8} | settings
            return await VLLMServer(url, token="secret").generate(client, [1, 2], **arguments)

    return asyncio.run(one())


def test_a_request_says_all_that_importance_correction_assumes() -> None:
    with FakeVLLM() as fake:
        fake.answers[GENERATE] = 200, json.dumps(completion_answer())
        generate(fake.url, stop=["<|im_end|>"], stop_token_ids=[2])
    ((route, body),) = fake.calls
    assert route == GENERATE and body["token_ids"] == [1, 2]
    assert body["sampling_params"] == {
        "n": 1, "seed": 3, "temperature": 0.7, "max_tokens": 8, "logprobs": 0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
        "stop": ["<|im_end|>"], "stop_token_ids": [2], "skip_special_tokens": False,
    }  # fmt: skip
    assert fake.headers[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "text", ["<html>Bad gateway</html>", "[]", '{"choices": []}', '{"choices": [{"token_ids": null}]}']
)
def test_garbage_names_the_server_the_route_and_what_came_back(text: str) -> None:
    with FakeVLLM() as fake:
        fake.answers[GENERATE] = 200, text
        with pytest.raises(ServerError) as caught:
            generate(fake.url)
    for part in (fake.url, GENERATE, text):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("status", "route", "hint"),
    [
        (401, "/pause", "POSTRL_SERVER_TOKEN"),
        (404, "/pause", "VLLM_SERVER_DEV_MODE"),
        (403, GENERATE, "--enable-scale-out"),
    ],
)
def test_a_refusal_says_how_the_server_must_be_started(status: int, route: str, hint: str) -> None:
    with FakeVLLM() as fake:
        fake.answers[route] = status, "no"
        with pytest.raises(ServerError) as caught:
            VLLMServer(fake.url).pause() if route == "/pause" else generate(fake.url)
    assert hint in caught.value.hint and f"HTTP {status}: no" in caught.value.message


def test_silence_is_a_wait_timeout_and_absence_a_server_error() -> None:
    with FakeVLLM() as fake:
        fake.delays = {GENERATE: 0.5, "/pause": 0.5}
        with pytest.raises(WaitTimeout, match=rf"{fake.url}{GENERATE} did not answer within 0\.1 s"):
            generate(fake.url, timeout=0.1)
        with pytest.raises(WaitTimeout, match="/pause did not answer"):
            VLLMServer(fake.url).pause(timeout=0.1)
    with pytest.raises(ServerError, match="cannot be reached"):
        generate(fake.url)


def test_waiting_for_a_server_ends_with_its_process_or_its_deadline() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = VLLMServer(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ServerError, match="process ended"):
            server.wait_until_healthy(60, alive=lambda: False)
        with pytest.raises(WaitTimeout, match=r"within 0\.3 s"):
            server.wait_until_healthy(0.3)


def test_a_cancelled_request_closes_its_connection() -> None:
    async def cancel(port: int) -> bytes:
        closed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"}}")  # the end of the request's JSON
            task.cancel()
            closed.set_result(await reader.read())
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", port), generation_client() as client:
            server = VLLMServer(f"http://127.0.0.1:{port}")
            task = asyncio.create_task(server.generate(client, [1], seed=0, temperature=1.0, max_tokens=4))
            return await asyncio.wait_for(closed, 10)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert asyncio.run(cancel(port)) == b""  # end of file


def test_attaching_lists_every_mismatch_at_once() -> None:
    config = {
        "model_config": {
            "model": "other",
            "dtype": "torch.bfloat16",
            "max_model_len": 512,
            "logprobs_mode": "raw_logprobs",
        },
        "weight_transfer_config": None,
        "device_config": {"device": "cpu"},
        "scheduler_config": {"enable_chunked_prefill": True},
    }
    with FakeVLLM() as fake:
        fake.answers["/server_info"] = 200, json.dumps({"vllm_config": config})
        fake.answers["/is_paused"] = 200, '{"is_paused": true}'
        fake.answers["/weight_info"] = 404, "not found"
        problems = attach_problems(
            VLLMServer(fake.url), model="mine", dtype="float32", max_model_len=1024, backend="nccl"
        )
    text = "\n".join(problems)
    for part in (
        "--model mine", "--dtype float32", "--max-model-len 1024", "--logprobs-mode processed_logprobs",
        """--weight-transfer-config '{"backend": "nccl"}'""", "paused", "VLLM_SERVER_DEV_MODE=1",
        "--no-enable-chunked-prefill",
    ):  # fmt: skip
        assert part in text
    assert len(problems) == 8 and all(fake.url in problem for problem in problems)


def test_attaching_for_adapters_asks_for_the_flags_that_take_them() -> None:
    with FakeVLLM() as fake:
        fake.answers["/server_info"] = 200, json.dumps({"vllm_config": {"model_config": {}}, "vllm_env": {}})
        fake.version = "7"
        problems = "\n".join(attach_problems(VLLMServer(fake.url), adapters=(16, 2)))
    for part in ("--enable-lora --max-lora-rank 16", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True", "version 7 were pushed"):
        assert part in problems


def test_an_adapter_that_is_not_there_may_come_and_a_route_that_is_not_there_will_not() -> None:
    with FakeVLLM() as fake:
        fake.answers[GENERATE] = (
            404,
            '{"error": {"message": "The model `policy-v1` does not exist.", "type": "NotFoundError"}}',
        )
        with pytest.raises(ServerError, match="policy-v1") as caught:
            generate(fake.url, model="policy-v1")
        assert not isinstance(caught.value, RequestRefused)
        fake.answers[GENERATE] = 404, '{"detail": "Not Found"}'
        with pytest.raises(RequestRefused):
            generate(fake.url, model="policy-v1")


def test_attaching_to_nothing_says_so() -> None:
    (problem,) = attach_problems(VLLMServer("http://127.0.0.1:9"))
    assert "does not answer /health" in problem


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(VLLMServer("http://127.0.0.1:8000", token="secret"))


def test_no_torch_is_needed() -> None:
    code = "import sys, postrl.servers.client, postrl.weights.transports, postrl.weights.canary; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_health_of_a_stuck_server_is_no() -> None:
    with FakeVLLM() as fake:
        fake.delays["/health"] = 0.5
        assert not VLLMServer(fake.url).health(timeout=0.1)
