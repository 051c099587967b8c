"""Where the learner's groups come from: the rollout worker in this process, the one next door, or an earlier run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from postrl.config import GRPOConfig
from postrl.data_stream import steps_for_epochs
from postrl.errors import UsageError
from postrl.messages import PROTOCOL, Channel, ProtocolError, connect, decode_groups, encode
from postrl.rewards.builtin import BUILTINS
from postrl.rollout.store import read_rollouts, stored_steps
from postrl.types import Group
from postrl.worker import Metrics, RolloutWorker

T = TypeVar("T")

START_TIMEOUT = 600.0
"""Seconds the rollout worker may take to load its data and its rewards."""
SLOWEST_BUILTIN = max(row.seconds for row in BUILTINS.values())
"""Seconds that a built-in reward may take for one completion."""


class Source(Protocol):
    """Gives the learner what it trains on."""

    num_prompts: int
    """Prompts of one epoch."""
    has_evaluation: bool

    def groups(self, step: int, version: int) -> tuple[list[Group], Metrics]:
        """The scored groups of step `step`, sampled from weights of `version`."""
        ...

    def evaluate(self, version: int) -> tuple[list[Group], Metrics]: ...

    def state(self) -> dict[str, Any]:
        """The data position, for a checkpoint."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class LocalSource:
    """The rollout worker inside the learner: the embedded engine."""

    def __init__(self, worker: RolloutWorker, num_prompts: int) -> None:
        self.worker = worker
        self.num_prompts = num_prompts
        self.has_evaluation = worker.evaluation is not None
        run_to_end(worker.rewards.start())

    def groups(self, step: int, version: int) -> tuple[list[Group], Metrics]:
        return run_to_end(self.worker.groups(version))

    def evaluate(self, version: int) -> tuple[list[Group], Metrics]:
        return run_to_end(self.worker.evaluate(version))

    def state(self) -> dict[str, Any]:
        return self.worker.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.worker.load_state(dict(state))

    def close(self) -> None:
        self.worker.close()


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """asyncio.run; in a thread of its own where a loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


class RemoteSource:
    """The rollout worker in a process of its own, over the message protocol."""

    def __init__(self, address: str, config: GRPOConfig) -> None:
        self.channel: Channel = connect(address, timeout=START_TIMEOUT)
        # The worker has its own deadlines and names what it waits for; this one is for a worker that hangs.
        calls = max(config.prompts_per_step, config.eval_prompts)  # of one function, one after the other
        scoring = calls * max(config.reward_timeout, SLOWEST_BUILTIN * config.num_generations)
        self.timeout = 2 * (config.server_start_timeout + config.request_timeout) + scoring + 600.0
        _, data, _ = self._ask("hello", timeout=START_TIMEOUT)
        if data["protocol"] != PROTOCOL:
            raise ProtocolError(
                f"the rollout worker at {address} speaks protocol {data['protocol']}, this trainer {PROTOCOL}",
                hint="both ends need the same postrl version",
            )
        self.num_prompts = int(data["num_prompts"])
        self.has_evaluation = bool(data["has_evaluation"])

    def groups(self, step: int, version: int) -> tuple[list[Group], Metrics]:
        _, data, arrays = self._ask("groups", {"step": step, "version": version}, timeout=self.timeout)
        return decode_groups(data, arrays), data["metrics"]

    def evaluate(self, version: int) -> tuple[list[Group], Metrics]:
        _, data, arrays = self._ask("evaluate", {"version": version}, timeout=self.timeout)
        return decode_groups(data, arrays), data["metrics"]

    def state(self) -> dict[str, Any]:
        return dict(self._ask("state", timeout=60.0)[1]["state"])

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._ask("load_state", {"state": dict(state)}, timeout=60.0)

    def close(self) -> None:
        self.channel.close()

    def _ask(self, kind: str, data: dict[str, Any] | None = None, *, timeout: float) -> Any:
        return self.channel.request(encode(kind, data), timeout=timeout, waiting_for=f"{kind} from the rollout worker")


class ReplaySource:
    """The stored rollouts of an earlier run, step by step, rewards and all: nothing is generated."""

    has_evaluation = False

    def __init__(self, run: str | Path) -> None:
        self.run = Path(run)
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

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        return None

    def close(self) -> None:
        return None


def total_steps(config: GRPOConfig, source: Source) -> int:
    """How many steps the run has: max_steps, else what the epochs (or the stored steps) need."""
    if isinstance(source, ReplaySource):
        return min(config.max_steps, len(source.files)) if config.max_steps > 0 else len(source.files)
    if config.max_steps > 0:
        return config.max_steps
    return steps_for_epochs(source.num_prompts, config.prompts_per_step, config.num_train_epochs)
