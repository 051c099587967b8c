"""A rollout worker whose sampler and rewards only take time, for tests of what is admitted, waited for and dropped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from postrl.config import GRPOConfig
from postrl.data.prompts import PromptSet
from postrl.errors import ServerError
from postrl.rollout.sampler import Request, Sampler
from postrl.types import Group, Prompt, Sampled, VersionSpan
from postrl.worker.worker import RolloutWorker


class TimedSampler(Sampler):
    """Completions of random length at one token a second; the weights change under them.

    Args:
        seconds: duration of a completion (its tokens), by its request and how many were asked before.
        lost: whether a completion is given up, likewise.
        fails: how often a try of a request fails (and is repeated) before it comes.
    """

    def __init__(
        self, seconds: Callable[[Request, int], int], lost: Callable[[Request, int], bool] | None = None
    ) -> None:
        self.seconds, self.lost = seconds, lost or (lambda request, n: False)
        self.pushes: list[tuple[float, int]] = [(0.0, 0)]
        self.asked: list[Request] = []
        self.finished: list[tuple[Request, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def sample(self, request: Request) -> Sampled:
        await self.gate.wait()
        n = len(self.asked)
        self.asked.append(request)
        loop, length = asyncio.get_running_loop(), self.seconds(request, n)
        start = loop.time()
        await asyncio.sleep(length)
        if self.lost(request, n):
            return Sampled()
        self.finished.append((request, length))
        return Sampled([1] * length, [-0.5] * length, self._spans(start, length), "stop")

    def _spans(self, start: float, length: int) -> list[VersionSpan]:
        spans: list[VersionSpan] = []
        for t in range(length):
            version = max(version for at, version in self.pushes if at <= start + t)
            if spans and spans[-1].version == version:
                spans[-1] = VersionSpan(version, spans[-1].start, t + 1)
            else:
                spans.append(VersionSpan(version, t, t + 1))
        return spans

    def hold(self) -> None:
        self.gate.clear()

    def release(self, version: int) -> None:
        self.pushes.append((asyncio.get_running_loop().time(), version))
        self.gate.set()

    def describe(self) -> str:
        return "a simulated server"


class TimedRewards:
    """Scores after `seconds(group)`: every second completion of a group is right, but all are of one `alike(group)`."""

    def __init__(
        self,
        seconds: Callable[[Group], float] = lambda group: 0.0,
        alike: Callable[[Group], bool] = lambda group: False,
    ) -> None:
        self.seconds, self.alike = seconds, alike
        self.task = {"task": 1.0}
        self.scored: list[Group] = []

    async def start(self) -> None: ...

    def versions(self) -> dict[str, str]:
        return {}

    async def score(self, group: Group) -> None:
        await asyncio.sleep(self.seconds(group))
        self.scored.append(group)
        for rollout in group.rollouts:
            right = self.alike(group) or rollout.sample_index % 2 == 1
            rollout.rewards, rollout.statuses = {"task": float(right)}, {"task": "correct" if right else "wrong"}
            rollout.reward = float(right)

    async def score_step(self, groups: Sequence[Group]) -> None: ...

    def check_budget(self, groups: Sequence[Group], budget: float) -> None: ...

    def metrics(self, groups: Sequence[Group]) -> dict[str, Any]:
        return {}

    def forget_logged(self) -> None: ...

    def close(self) -> None: ...


class Words:
    bos_token_id = eos_token_id = pad_token_id = None

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def prompts(number: int) -> PromptSet:
    return PromptSet([Prompt(f"rows:{i}", None, f"p{i}", [5, i]) for i in range(number)], name="rows")


def worker(
    sampler: TimedSampler, rewards: TimedRewards | None = None, *, number: int, note: Any = None,
    **settings: Any,
) -> Any:  # fmt: skip
    config = GRPOConfig(model="m", engine="vllm", dataset=["rows"], **settings)
    return RolloutWorker(
        config, train=prompts(number), evaluate=None, sampler=sampler, rewards=rewards or TimedRewards(),  # type: ignore[arg-type]
        tokenizer=Words(), note=note or (lambda text: None),
    )  # fmt: skip


async def train(
    made: RolloutWorker, steps: int, seconds: Callable[[int], float], *, first: int = 0, stop_after: int | None = None,
    reported: list[dict[str, Any]] | None = None,
) -> list[list[Group]]:  # fmt: skip
    """The learner: asks for a batch, trains on it for seconds(step), publishes. Returns what each step was given; what
    is told beside it goes to `reported`."""
    batches = []
    made.pushed(first)
    for version in range(first, first + steps):
        groups, metrics = await made.groups(version)
        batches.append(groups)
        if reported is not None:
            reported.append(metrics)
        if stop_after is not None and len(batches) == stop_after:
            break
        await asyncio.sleep(seconds(version))
        if made.config.in_flight != "keep":
            made.hold()
            await asyncio.sleep(1)
        made.pushed(version + 1)
    made.close()
    return batches


def trained(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if any(rollout.dropped is None for rollout in group.rollouts)]


def failing(times: int) -> ServerError:
    return ServerError(f"the server failed {times} times")


def rng(*parts: object) -> random.Random:
    return random.Random("|".join(map(str, parts)))
