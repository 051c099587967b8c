"""Where the learner's groups come from: the rollout worker in this process, the one next door, or an earlier run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from postrl.config import GRPOConfig
from postrl.data.stream import planned_steps
from postrl.errors import PostrlError, UsageError, WaitTimeout
from postrl.rewards.builtin import BUILTINS, VERIFIERS
from postrl.rewards.registry import distinct, resolve
from postrl.rollout.store import read_rollouts, stored_steps
from postrl.run.messages import (
    PROTOCOL,
    Channel,
    Message,
    ProtocolError,
    connect,
    decode_groups,
    decode_metrics,
    encode,
    encode_groups,
)
from postrl.types import Group, Metrics
from postrl.worker.worker import RolloutWorker

T = TypeVar("T")

START_TIMEOUT = 600.0
"""Seconds the rollout worker may take to load its data and its rewards."""


def slowest_reward(config: GRPOConfig) -> float:
    """Seconds that a built-in reward of this run may take for one completion."""
    named = {reward.partition(":")[0] for reward in config.reward} & BUILTINS.keys()
    return max(BUILTINS[name].seconds for name in named or VERIFIERS)


class Source(Protocol):
    """Gives the learner what it trains on."""

    num_prompts: int
    """Prompts of one epoch."""
    rewards: list[str] | None
    """Names of the run's reward functions, in their order; None: not known."""
    has_evaluation: bool
    turn_tokens: Sequence[int]
    """Tokens that end the completions of conversations, beside the eos tokens."""

    def groups(self, step: int, version: int) -> tuple[list[Group], Metrics]:
        """The scored groups of step `step`, sampled from weights of `version`."""
        ...

    def evaluate(self, version: int) -> tuple[list[Group], Metrics]: ...

    def pushing(self, version: int) -> AbstractContextManager[None]:
        """Around the publication of `version`: afterwards the samplers serve it."""
        ...

    def state(self) -> tuple[dict[str, Any], list[Group]]:
        """The data position as JSON values, and the finished groups that wait to be trained on, for a checkpoint."""
        ...

    def load_state(self, state: Mapping[str, Any], groups: Sequence[Group]) -> None: ...

    def close(self) -> None: ...


class LocalSource:
    """The rollout worker inside the learner: the embedded engine, which samples from the learner's own weights."""

    def __init__(self, worker: RolloutWorker, num_prompts: int) -> None:
        self.worker, self._loop = worker, Loop()
        self.num_prompts = num_prompts
        self.rewards: list[str] | None = list(worker.rewards.names)
        self.has_evaluation = worker.evaluation is not None
        self.turn_tokens: Sequence[int] = worker.turn.tokens
        self._loop.run(worker.start())

    def groups(self, step: int, version: int) -> tuple[list[Group], Metrics]:
        async def next_batch() -> tuple[list[Group], Metrics]:
            self.worker.pushed(version)  # only now: an evaluation in between has the sampler for itself
            return await self.worker.groups(version)

        return self._loop.run(next_batch())

    def evaluate(self, version: int) -> tuple[list[Group], Metrics]:
        return self._loop.run(self.worker.evaluate(version))

    def pushing(self, version: int) -> AbstractContextManager[None]:
        return nullcontext()

    def state(self) -> tuple[dict[str, Any], list[Group]]:
        return self.worker.state(), self.worker.finished_groups()

    def load_state(self, state: Mapping[str, Any], groups: Sequence[Group]) -> None:
        self.worker.load_state(dict(state), groups)

    def close(self) -> None:
        self.worker.close()
        self._loop.close()


class Loop:
    """One event loop for coroutines that are run one after the other; in a thread of its own where a loop runs already, as
    in a notebook."""

    def __init__(self) -> None:
        self._runner, self._thread = asyncio.Runner(), ThreadPoolExecutor(1)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result: T = self._here(self._runner.run, coroutine)
        return result

    def close(self) -> None:
        """What still runs in it is cancelled."""
        self._here(self._runner.close)
        self._thread.shutdown()

    def _here(self, act: Callable[..., T], *args: Any) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return act(*args)
        return self._thread.submit(act, *args).result()


class RemoteSource:
    """The rollout worker in a process of its own, over the message protocol.

    One that dies is started anew by the launcher; it is then given the position of the last batch: what was begun since
    is begun anew, and nothing is trained twice or lost.
    """

    def __init__(self, address: str, config: GRPOConfig) -> None:
        self.address, self.config = address, config
        # The worker has its own deadlines and names what it waits for; this one is for a worker that hangs.
        calls = max(config.prompts_per_step, config.eval_prompts)  # of one function, one after the other
        scoring = calls * max(config.reward_timeout, slowest_reward(config) * config.num_generations)
        once = 2 * (config.server_start_timeout + config.request_timeout) + config.stale_wait + scoring + 600.0
        self.timeout = once * (1 + config.max_refills * config.dynamic_sampling)
        self.restarts = 0
        """Times that the worker was lost and came again."""
        self._position: dict[str, Any] | None = None
        self._version: int | None = None
        data = self._connect()
        self.num_prompts = int(data["num_prompts"])
        self.rewards: list[str] | None = list(data["rewards"])
        self.has_evaluation = bool(data["has_evaluation"])
        self.turn_tokens: Sequence[int] = data["turn_tokens"]

    def _connect(self) -> dict[str, Any]:
        self.channel: Channel = connect(self.address, timeout=START_TIMEOUT)
        _, data, _ = self._send(encode("hello"), "hello", START_TIMEOUT)
        if data["protocol"] != PROTOCOL:
            raise ProtocolError(
                f"the rollout worker at {self.address} speaks protocol {data['protocol']}, this trainer {PROTOCOL}",
                hint="both ends need the same postrl version",
            )
        return dict(data)

    def groups(self, step: int, version: int) -> tuple[list[Group], Metrics]:
        _, data, arrays = self._ask("groups", {"step": step, "version": version}, timeout=self.timeout)
        self._position = data["position"]
        metrics = decode_metrics(data["metrics"])
        return decode_groups(data, arrays), {**metrics, "rollout/worker_restarts": float(self.restarts)}

    def evaluate(self, version: int) -> tuple[list[Group], Metrics]:
        _, data, arrays = self._ask("evaluate", {"version": version}, timeout=self.timeout)
        return decode_groups(data, arrays), decode_metrics(data["metrics"])

    @contextmanager
    def pushing(self, version: int) -> Iterator[None]:
        if self.config.in_flight != "keep":
            self._ask("hold")
        yield
        self._version = version
        self._ask("pushed", {"version": version})

    def state(self) -> tuple[dict[str, Any], list[Group]]:
        try:
            _, data, arrays = self._send(encode("state"), "state", 60.0)
        except PostrlError:  # it is lost, and the run may be about to end: what is known is enough to go on from
            if self._position is None:
                raise
            return self._position, []
        return data["state"], decode_groups(data, arrays)

    def load_state(self, state: Mapping[str, Any], groups: Sequence[Group]) -> None:
        self._ask("load_state", message=encode_groups("load_state", list(groups), {"state": dict(state)}))
        self._position = dict(state)

    def close(self) -> None:
        with suppress(PostrlError):  # it may be gone already
            self._send(encode("bye"), "bye", 5.0)
        self.channel.close()

    def _ask(
        self, kind: str, data: dict[str, Any] | None = None, *, timeout: float = 0.0, message: bytes | None = None
    ) -> Message:
        """One request; asked again of the worker's successor where it is lost on the way. `timeout` 0: of one that is
        answered at once, by a worker that has not been frozen for so long that it is replaced."""
        message, limit = message or encode(kind, data), timeout or self.config.server_frozen_timeout + 60.0
        for _ in range(self.config.worker_restarts):
            try:
                return self._send(message, kind, limit)
            except ProtocolError:
                self._reconnect()
            except WaitTimeout:
                if timeout:
                    raise
                self._reconnect()
        return self._send(message, kind, limit)

    def _send(self, message: bytes, kind: str, timeout: float) -> Message:
        return self.channel.request(message, timeout=timeout, waiting_for=f"{kind} from the rollout worker")

    def _reconnect(self) -> None:
        """Connect to the worker's successor. At first the dying one may still be there, and another one may die."""
        end = time.monotonic() + START_TIMEOUT
        while True:
            self.channel.close()
            try:
                self._connect()
                if self._position is not None:
                    self._send(encode_groups("load_state", [], {"state": self._position}), "load_state", 60.0)
                if self._version is not None:
                    self._send(encode("pushed", {"version": self._version}), "pushed", 60.0)
                self.restarts += 1
                return
            except ProtocolError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


class ReplaySource:
    """The stored rollouts of an earlier run, step by step, rewards and all: nothing is generated."""

    has_evaluation = False
    turn_tokens: Sequence[int] = ()

    def __init__(self, run: str | Path, config: GRPOConfig) -> None:
        self.run = Path(run)
        self.rewards: list[str] | None = distinct([resolve(reward).name for reward in config.reward]) or None
        if config.reward_weights and config.multi_objective_aggregation != "sum_then_normalize" and not self.rewards:
            raise UsageError(
                "reward_weights do not say which rewards of the stored rollouts they are for",
                hint="name these with --reward, in the same order",
            )
        self.files = stored_steps(run)
        self.num_prompts = len({group.prompt_id for group in read_rollouts(self.files[0])}) * len(self.files)

    def groups(self, step: int, version: int) -> tuple[list[Group], Metrics]:
        if step > len(self.files):
            raise UsageError(
                f"{self.run} holds {len(self.files)} stored steps, and step {step} is asked for",
                hint="lower --max-steps",
            )
        return read_rollouts(self.files[step - 1]), {}

    def evaluate(self, version: int) -> tuple[list[Group], Metrics]:
        return [], {}

    def pushing(self, version: int) -> AbstractContextManager[None]:
        return nullcontext()

    def state(self) -> tuple[dict[str, Any], list[Group]]:
        return {}, []

    def load_state(self, state: Mapping[str, Any], groups: Sequence[Group]) -> None:
        return None

    def close(self) -> None:
        return None


def total_steps(config: GRPOConfig, source: Source) -> int:
    """How many steps the run has: max_steps, else what the epochs (or the stored steps) need."""
    if isinstance(source, ReplaySource):
        return min(config.max_steps, len(source.files)) if config.max_steps > 0 else len(source.files)
    return planned_steps(config, source.num_prompts)
