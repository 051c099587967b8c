"""The loop of `postrl.trainer` without a model: the real rollout worker, a learner that only takes time, virtual time.

    report = simulate(config, assumed, Division(servers=3, ranks=5), steps=30)

What waits, what is admitted, what is too old and what is dropped is decided by `RolloutWorker`, as in a run.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from postrl.algorithms.presets import Preset, find, needs_of
from postrl.config import GRPOConfig
from postrl.data.prompts import PromptSet
from postrl.run.metrics import rollout_summary
from postrl.simulation import clock
from postrl.simulation.assumptions import Assumptions, sends_adapters
from postrl.simulation.sampler import SimulatedSampler
from postrl.types import Group, Prompt, Rollout, reported
from postrl.worker.worker import RolloutWorker

ASSESS_SPEED = 3.0
"""How much faster a forward pass is than an update: backward costs twice as much as forward."""
MOST_PROMPTS = 4096
"""Prompts of an epoch: more than are ever in flight, so that no server meets one twice between two pushes."""
Metrics = dict[str, float]


@dataclass(frozen=True)
class Division:
    """How many servers and trainer ranks."""

    servers: int
    ranks: int


@dataclass
class Report:
    """What a simulated run was like, over its steps `first` and later: before that the pipeline fills."""

    config: GRPOConfig
    division: Division
    steps: int = 0
    seconds: float = 0.0
    """Of these steps."""
    rollout_tokens: int = 0
    """Completion tokens trained on."""
    trained_tokens: int = 0
    """The same with their prompts, each once a group."""
    sampling: float = 0.0
    """Seconds in which servers computed; all together."""
    ran: float = 0.0
    """The same for each sequence that they ran, added up."""
    waiting: float = 0.0
    """Seconds the trainer stood still, for want of rollouts or until servers were ready for new weights."""
    staleness: float = 0.0
    staleness_max: int = 0
    queue: float = 0.0
    """Finished groups that waited, summed over the steps; likewise staleness over the completions."""
    completions: int = 0
    dropped_stale: int = 0
    dropped_error: int = 0
    """Completions dropped since the run began."""

    @property
    def steps_per_hour(self) -> float:
        return 3600 * self.steps / self.seconds

    @property
    def rollout_tokens_per_s(self) -> float:
        return self.rollout_tokens / self.seconds

    @property
    def train_tokens_per_s(self) -> float:
        return self.trained_tokens / self.seconds

    @property
    def samplers_idle(self) -> float:
        """Share of the time that a server computed nothing, pushes included."""
        return max(0.0, 1 - self.sampling / self.seconds / self.division.servers)

    @property
    def running(self) -> float:
        """Mean number of sequences that a server ran."""
        return self.ran / self.seconds / self.division.servers

    @property
    def trainer_idle(self) -> float:
        return max(0.0, self.waiting / self.seconds)

    @property
    def staleness_mean(self) -> float:
        return self.staleness / max(1, self.completions)

    @property
    def queue_groups(self) -> float:
        """Mean number of finished groups that waited when a batch was taken."""
        return self.queue / self.steps

    def bottleneck(self) -> str:
        """Which side holds the other up."""
        samplers, trainer = self.samplers_idle, self.trainer_idle
        if min(samplers, trainer) > 0.2:
            return "both wait" if self.config.max_staleness else "they take turns"
        if abs(samplers - trainer) < 0.1:
            return "balanced"
        return "training" if samplers > trainer else "generation"


@dataclass
class SimulatedLearner:
    """The trainer's side of the loop."""

    config: GRPOConfig
    assumed: Assumptions
    division: Division
    worker: RolloutWorker
    sampler: SimulatedSampler
    first: int
    on_step: Callable[[int, Metrics], None]
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self.report = Report(self.config, self.division)

    async def train(self, steps: int) -> Report:
        """Ask for a batch, take the time to train on it, publish; `steps` times."""
        self.worker.pushed(0)
        try:
            for version in range(steps):
                await self._step(version)
        finally:
            self.worker.close()
        return self.report

    async def _step(self, version: int) -> None:
        now = asyncio.get_running_loop().time
        started, before = now(), self.sampler.spent()
        groups, rollout_metrics = await self.worker.groups(version)
        generated = now()
        trained = _trained(groups, version)
        assess, update = self._durations(trained)
        await asyncio.sleep(assess + update)
        pushed = now()
        await self._publish(version + 1)
        sync = now() - pushed
        await asyncio.sleep(self.assumed.other_seconds)
        times = {
            "time/step": now() - started, "time/generate": generated - started, "time/assess": assess,
            "time/update": update, "time/sync": sync, "weights/push_s": sync, "weights/version": float(version),
            "throughput/train_tokens_per_s": _tokens(trained) / update if update else math.nan,
        }  # fmt: skip
        metrics = {
            **_summary(trained, self.config.num_iterations * self.config.minibatches),
            **_numbers(rollout_metrics),
            **times,
        }
        if version + 1 >= self.first:
            self._add(metrics, trained, before)
        self.on_step(version + 1, metrics)

    def _durations(self, trained: Sequence[Group]) -> tuple[float, float]:
        """Seconds of the forward passes before the update, and of the update. A critic is taken to be as large as the
        policy; that an algorithm in a file has one is not known."""
        c, seconds = self.config, _tokens(trained) / self.assumed.train_speed(self.division.ranks)
        needs = needs_of(find(c.algorithm) or Preset(c.algorithm, "group", "clip"), c)
        passes = len(needs & {"ref", "prox", "values"})
        return passes * seconds / ASSESS_SPEED, c.num_iterations * seconds * (1 + ("values" in needs))

    async def _publish(self, version: int) -> None:
        if self.config.in_flight != "keep":
            self.worker.hold()
        await self.sampler.push(version, self.assumed.push_seconds, self.config.in_flight)
        self.worker.pushed(version)

    def _add(self, metrics: Metrics, trained: Sequence[Group], before: tuple[float, float]) -> None:
        report, rollouts = self.report, _rollouts(trained)
        report.steps += 1
        report.seconds += metrics["time/step"]
        report.rollout_tokens += sum(len(r.completion_ids) for r in rollouts)
        report.trained_tokens += _tokens(trained)
        busy, ran = self.sampler.spent()
        report.sampling, report.ran = report.sampling + busy - before[0], report.ran + ran - before[1]
        report.waiting += metrics["time/generate"] + max(0.0, metrics["time/sync"] - self.assumed.push_seconds)
        report.completions += len(rollouts)
        report.staleness += sum(r.staleness for r in rollouts)
        report.staleness_max = max([report.staleness_max, *(r.staleness for r in rollouts)])
        report.queue += metrics["rollout/queue_groups"]
        report.dropped_stale = int(metrics["rollout/dropped_stale"])
        report.dropped_error = int(metrics["rollout/dropped_error"])


def simulate(
    config: GRPOConfig,
    assumed: Assumptions,
    division: Division,
    *,
    steps: int,
    whole: bool = False,
    on_step: Callable[[int, Metrics], None] = lambda step, metrics: None,
    note: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run `steps` steps in virtual time.

    Args:
        config: settings of the run; the model, the data and the rewards are not looked at.
        whole: the run has these steps and no more, and all of them count. Otherwise they are taken from the middle of a
            longer one: `max_staleness + 1` steps before them fill the pipeline and do not count.
        on_step: gets each step's number and metrics, under the names of `postrl.run.metrics`.
        note: gets what the worker has to say.

    Raises:
        UsageError: the assumptions contradict each other.
    """
    first = 1 if whole else config.max_staleness + 2
    total = steps if whole else steps + first - 1
    last = total if whole else total + config.max_staleness + 1
    config = replace(config, engine="vllm", max_steps=last, dynamic_sampling=False)  # completions here are all alike

    async def main() -> Report:
        lengths = assumed.lengths()
        sampler = SimulatedSampler(
            assumed.speed(),
            lambda request: lengths.draw(request.seed),
            servers=division.servers,
            slots=int(assumed.slots),
            adapters=sends_adapters(config),
        )
        worker = RolloutWorker(
            config,
            train=_prompts(config, assumed),
            evaluate=None,
            sampler=sampler,
            rewards=SimulatedRewards(assumed.reward_seconds),  # type: ignore[arg-type]
            tokenizer=_NoText(),
            note=note,
        )
        return await SimulatedLearner(config, assumed, division, worker, sampler, first, on_step).train(total)

    return clock.run(main())


def _prompts(config: GRPOConfig, assumed: Assumptions) -> PromptSet:
    """Prompts of `prompt_tokens` tokens, all different, so that a server's cache can tell them apart."""
    number = min(MOST_PROMPTS, config.prompts_per_step * config.max_steps)
    tokens = max(1, min(round(assumed.prompt_tokens), config.max_prompt_length))
    return PromptSet([Prompt(f"simulated:{i}", None, "", [i] * tokens) for i in range(number)], name="simulated")


class SimulatedRewards:
    """A `RewardRunner` that only takes time: every completion is worth 0."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def score(self, group: Group) -> None:
        await asyncio.sleep(self.seconds)
        for rollout in group.rollouts:
            rollout.reward = 0.0

    async def score_step(self, groups: Sequence[Group]) -> None:
        return None

    def check_budget(self, groups: Sequence[Group], budget: float) -> None:
        return None

    def metrics(self, groups: Sequence[Group]) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        return None


class _NoText:
    bos_token_id = eos_token_id = pad_token_id = None

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return ""


def _trained(groups: Sequence[Group], version: int) -> list[Group]:
    """The groups that are trained on; their staleness is filled in."""
    trained = [group for group in groups if any(rollout.dropped is None for rollout in group.rollouts)]
    for rollout in _rollouts(trained):
        rollout.staleness = version - rollout.oldest_version
    return trained


def _rollouts(groups: Sequence[Group]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def _tokens(groups: Sequence[Group]) -> int:
    """A group's prompt is read once."""
    return sum(
        len(group.rollouts[0].prompt_ids) + sum(len(r.completion_ids) for r in group.rollouts) for group in groups
    )


def _summary(groups: Sequence[Group], updates: int) -> Metrics:
    summary = rollout_summary(_rollouts(groups), updates)
    return {name: value for name, value in summary.items() if not name.startswith("reward/")}


def _numbers(metrics: Mapping[str, Any]) -> Metrics:
    """The worker's metrics; there are no epochs and no scores here."""
    return {name: value for name, value in reported(metrics).items() if name not in ("epoch", "group/unscored")}
