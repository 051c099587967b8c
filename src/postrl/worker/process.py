"""The rollout worker as a process of its own: it serves one learner at a socket until that says goodbye."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from postrl.algorithms.presets import register
from postrl.config import GRPOConfig
from postrl.errors import error_to_wire
from postrl.given import Given
from postrl.learning.loading import load_tokenizer, stop_tokens_of, vocabulary_of
from postrl.rollout.vllm import VLLMSampler
from postrl.run.connections import Connections
from postrl.run.folder import RunFolder
from postrl.run.messages import (
    PROTOCOL,
    ProtocolError,
    decode_groups,
    encode,
    encode_groups,
    read_message,
    write_message,
)
from postrl.servers.lost import run_servers
from postrl.weights.transports import TRANSPORTS
from postrl.worker.building import build_worker
from postrl.worker.worker import RolloutWorker

logger = logging.getLogger(__name__)


def worker_main(run_dir: str) -> int:
    """`postrl worker RUN`: listen at the address in the environment and serve one learner to its end."""
    from postrl.run.stdin import read_stdin

    folder = RunFolder(run_dir)
    connections = Connections.from_env()
    content = read_stdin()
    given = Given.loads(content) if content else Given()  # from the parent's pipe, never from the network
    if given.preset is not None:
        register(given.preset)
    config = GRPOConfig.from_yaml(folder.config)
    path = connections.model_path or config.model
    tokenizer = given.tokenizer or load_tokenizer(config, path)
    stop_ids = stop_tokens_of(config, path, tokenizer)
    transport = TRANSPORTS[connections.transport]
    sampler = VLLMSampler(
        run_servers(connections, folder.weights),
        stop_token_ids=stop_ids,
        request_timeout=config.request_timeout,
        patience=config.request_timeout + config.server_start_timeout,
        salted=config.in_flight == "keep_kv",
        resynced=transport.restore is not None,
        adapters=transport.adapters,
    )
    known = vocabulary_of(config, path)
    worker, train = build_worker(
        config, tokenizer, sampler, folder, given=given, stop_token_ids=stop_ids, vocabulary=known
    )
    try:
        asyncio.run(serve(worker, len(train.prompts), connections.worker or ""))
    finally:
        worker.close()
    return 0


async def serve(worker: RolloutWorker, num_prompts: int, address: str) -> None:
    """Answer the learner that connects to `address`, one request after the other, until it says goodbye.

    A connection that is lost is not the end: the learner connects anew, hands over its position and asks again. What the
    lost one had asked for is given up, or it would take a batch that nobody gets.
    """
    await worker.start()
    finished = asyncio.Event()
    sessions: list[asyncio.Task[None]] = []

    async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        for earlier in sessions:
            earlier.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)
        sessions[:] = [me]
        try:
            while (message := await read_message(reader)) is not None:
                if message[0] == "bye":
                    finished.set()
                await write_message(writer, await _answer(worker, num_prompts, *message))
        finally:
            writer.close()

    if address.startswith("unix:"):
        server = await asyncio.start_unix_server(session, address.removeprefix("unix:"))
    else:
        host, _, port = address.removeprefix("tcp:").rpartition(":")
        server = await asyncio.start_server(session, host, int(port))
    async with server:
        await finished.wait()


async def _answer(worker: RolloutWorker, num_prompts: int, kind: str, data: dict[str, Any], arrays: Any) -> bytes:
    """One request of the learner. What goes wrong travels back as an error, so that the learner can save and stop."""
    try:
        if kind == "groups":
            groups, metrics = await worker.groups(int(data["version"]))
            return encode_groups("groups", groups, {"metrics": metrics, "position": worker.state()})
        if kind == "evaluate":
            groups, metrics = await worker.evaluate(int(data["version"]))
            return encode_groups("groups", groups, {"metrics": metrics})
        if kind == "bye":
            return encode("done")
        if kind == "hold":
            worker.hold()
            return encode("done")
        if kind == "pushed":
            worker.pushed(int(data["version"]))
            return encode("done")
        if kind == "state":
            return encode_groups("state", worker.finished_groups(), {"state": worker.state()})
        if kind == "load_state":
            worker.load_state(data["state"], decode_groups(data, arrays))
            return encode("done")
        if kind == "hello":
            return encode(
                "hello",
                {
                    "protocol": PROTOCOL,
                    "num_prompts": num_prompts,
                    "has_evaluation": worker.evaluation is not None,
                    "rewards": list(worker.rewards.names),
                    "turn_tokens": list(worker.turn.tokens),
                },
            )
        raise ProtocolError(f"the learner asked for {kind!r}, which this rollout worker does not know")
    except Exception as error:
        logger.exception("the request %r failed", kind)
        return encode("error", error_to_wire(error))
