"""The rollout worker beside servers: it keeps them busy while the learner trains, within the bound on staleness.

    admit prompts while there is room  ->  sample and score each group on its own  ->  buffer  ->  batches, oldest first

What may be admitted and taken is decided in `postrl.worker.buffer`; this module runs the tasks, waits, drops and counts.
With max_staleness 0 the same code is the synchronous worker: one batch after each publication of weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from postrl.config import GRPOConfig
from postrl.data.prompts import PromptSet
from postrl.data.stream import planned_steps
from postrl.errors import RolloutError, WeightsLost
from postrl.rewards.runner import RewardRunner
from postrl.rollout.sampler import ServerSampler
from postrl.rollout.turn_end import TurnEnd
from postrl.run.waiting import SPEAK_AFTER
from postrl.types import Group, Mean, Metrics, greedy_groups
from postrl.worker.buffer import Buffer, Entry
from postrl.worker.worker import NO_TURN, RolloutWorker, mark_dropped, new_group

MAX_FAILURES = 3
"""Times a group may fail to give completions before its prompt is left out."""
BARREN = 10
"""Batches' worth of groups dropped in a row, or batches without anything to train on, that end the run."""


class StreamingWorker(RolloutWorker):
    """Makes scored groups all the time.

    Args: as for `RolloutWorker`, and
        note: writes a line for the person at the terminal.
    """

    def __init__(
        self,
        config: GRPOConfig,
        *,
        train: PromptSet,
        evaluate: PromptSet | None,
        sampler: ServerSampler,
        rewards: RewardRunner,
        tokenizer: Any,
        note: Callable[[str], None] = lambda text: None,
        turn: TurnEnd = NO_TURN,
    ) -> None:
        self.sampler: ServerSampler
        super().__init__(
            config, train=train, evaluate=evaluate, sampler=sampler, rewards=rewards, tokenizer=tokenizer, note=note,
            turn=turn,
        )  # fmt: skip
        self.buffer = Buffer(config.prompts_per_step, config.max_staleness, config.rollout_queue_size)
        self.planned = planned_steps(config, len(train.prompts)) * config.prompts_per_step
        """Groups of the whole run: no prompt is drawn that no step will train on."""
        self._again: deque[Entry] = deque()
        self._tasks: dict[Entry, asyncio.Task[None]] = {}
        self._sampling: dict[Entry, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._weights_lost: WeightsLost | None = None
        self._training = False
        self._dropped: list[Group] = []
        self._cut: set[Entry] = set()
        self._barren = 0
        self._tally = Tally()

    # -- what the learner asks for -------------------------------------------------------------------------------------

    async def groups(self, version: int) -> tuple[list[Group], Metrics]:
        """The next batch for a learner that holds `version`, and the groups dropped since the last one.

        Raises:
            RewardError: rewards failed more often than the budget allows.
            WeightsLost: all servers were restarted; to be asked again after another publication.
            ServerError: completions could not be had, or came without log-probs.
            RolloutError: nothing that can be trained on comes any more; the message counts why.
        """
        if version != self.buffer.version:
            raise ValueError(
                f"groups for version {version} were asked for, and the samplers serve {self.buffer.version}"
            )
        started = asyncio.get_running_loop().time()
        resumed, self._training = not self._training, True
        self.buffer.phase = version
        self._sweep()
        if resumed:
            self._barren = 0  # under a lower bound than before, much of what a checkpoint held is too old at once
        self._fill()
        async with self._speaking():
            await self._until_ready()
        taken, dropped, replaced = self.buffer.take(), self._dropped, self._replaced
        self._dropped = []
        self._cut.clear()
        self._sweep()
        self._sift()
        self._fill()
        try:
            metrics = await self._finish([entry.group for entry in taken], replaced)
        except Exception:
            self._again.extend(map(_anew, taken))  # for a checkpoint: they were not trained on
            self._dropped = [*dropped, *self._dropped]
            raise
        metrics |= self._tally.metrics(started, self.buffer)
        return [*(entry.group for entry in taken), *dropped], metrics

    async def evaluate(self, version: int) -> tuple[list[Group], Metrics]:
        """See `RolloutWorker.evaluate`."""
        with self._tally.sampling():
            return await super().evaluate(version)

    async def _finish(self, groups: list[Group], replaced: list[Group]) -> Metrics:
        await self.rewards.score_step([*groups, *greedy_groups(groups)])
        metrics = {**self._accept(groups, replaced), **await self.sampler.gauges()}
        trained = any(rollout.dropped is None for group in groups for rollout in group.rollouts)
        self._barren = 0 if trained else self._barren + len(groups)
        return metrics

    def hold(self) -> None:
        """New weights are on their way, and nothing new may be asked of the samplers until `pushed`."""
        self.sampler.hold()

    def pushed(self, version: int) -> None:
        """The samplers serve `version` from now on."""
        self.buffer.version, self._weights_lost = version, None
        self.sampler.release(version)
        self._fill()

    # -- production ----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Begin as many groups as may be, once the learner trains: an evaluation alone needs none."""
        while (
            self._training and self._weights_lost is None and self.buffer.room() and (entry := self._next()) is not None
        ):
            self.buffer.admit(entry)
            task = self._tasks[entry] = asyncio.create_task(self._produce(entry))
            task.add_done_callback(functools.partial(self._ended, entry))

    def _next(self) -> Entry | None:
        if self._again:
            return self._again.popleft()
        if self.stream.position >= self.planned + self.left_out:
            return None
        ((group_id, prompt),) = self.stream.next(1)
        return Entry(new_group(group_id, prompt), prompt, self.buffer.version)

    async def _produce(self, entry: Entry) -> None:
        """Sample a group and score it. A cut ends the sampling early; what is there is scored."""
        sampling = self._sampling[entry] = asyncio.create_task(self._collect(entry))
        try:
            with self._tally.sampling():
                await asyncio.wait([sampling])
        finally:
            sampling.cancel()
            del self._sampling[entry]
        if not sampling.cancelled():
            if isinstance(error := sampling.exception(), WeightsLost):
                self._put_back(entry, error)
                return
            sampling.result()
        if not self._enough(entry.group):
            entry.failures += 1
            self._give_up(entry, "error", len(entry.group.rollouts))
            return
        await self._score(entry.group)
        entry.uninformative = self._replaceable(entry.group)
        entry.finished = not entry.uninformative

    def _put_back(self, entry: Entry, error: WeightsLost) -> None:
        """Nothing can be sampled until the learner has published its weights again; the prompt comes first then."""
        self.buffer.remove(entry)
        self._again.appendleft(_anew(entry))
        self._weights_lost = error

    async def _collect(self, entry: Entry) -> None:
        requests = self._requests(entry.group, entry.prompt, entry.version, entry.attempt)
        async with contextlib.aclosing(self.sampler.sample(requests)) as completions:
            async for index, sampled in completions:
                if sampled.finish_reason == "abort":  # given up by the sampler, which has said so
                    self.dropped["error"] += 1
                    continue
                self._tally.tokens += len(sampled.completion_ids)
                self._add(entry.group, entry.prompt, requests[index].sample_index, sampled)

    def _ended(self, entry: Entry, task: asyncio.Task[None]) -> None:
        self._tasks.pop(entry, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
        self._sift()
        self._changed.set()

    def _enough(self, group: Group) -> bool:
        """Whether it has what its algorithm compares: two completions, or one and the greedy one."""
        fewest = min(2, self.config.num_generations)
        return len(group.rollouts) >= fewest and (group.greedy is not None or not self.greedy)

    # -- batches -------------------------------------------------------------------------------------------------------

    async def _until_ready(self) -> None:
        """Until a batch may be taken. Under `wait`, at most stale_wait seconds longer than until it could be full."""
        loop, end = asyncio.get_running_loop(), None
        while not self._ready(end is not None and loop.time() >= end):
            if (error := self._failure or self._weights_lost) is not None:
                raise error
            if end is None and self.buffer.full() and self.config.stale_policy == "wait":
                end = loop.time() + self.config.stale_wait
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await self._changed.wait()

    def _ready(self, waited: bool) -> bool:
        self._check_stopped()
        if not self.buffer.full():
            return False
        if self.config.stale_policy == "drop_rollout":
            return not self._cut_due()
        return waited or self.config.stale_policy == "drop_group" or not self.buffer.behind()

    def _cut_due(self) -> bool:
        """End the sampling of groups whose last chance is this batch, if they have enough completions to be trained on.
        Returns whether any of them is still being scored, and so waited for."""
        last = [e for e in self.buffer.entries if self.buffer.deadline(e) <= self.buffer.phase]
        places = self.buffer.batch - sum(e.finished or e in self._cut for e in last)
        for entry in self.buffer.due():
            sampling = self._sampling.get(entry)
            if places > 0 and sampling and entry not in self._cut and self._enough(entry.group):
                self.dropped["stale"] += self.config.num_generations - len(entry.group.rollouts)
                self._cut.add(entry)
                sampling.cancel()
                places -= 1
        return any(entry in self._tasks for entry in self._cut)

    def _sweep(self) -> None:
        """Drop what no batch may train any more; its prompts are begun anew."""
        for entry in self.buffer.stale():
            cut = entry in self._cut  # what it lacks is counted
            self._give_up(entry, "stale", len(entry.group.rollouts) if cut else self.config.num_generations)

    @property
    def _replaced(self) -> list[Group]:
        """Groups since the last batch in whose place dynamic sampling put others."""
        return [group for group in self._dropped if _why_dropped(group) == "uninformative"]

    def _sift(self) -> None:
        """Put other prompts in the place of groups that teach nothing; keep those that come after `most_replaced`.

        Which groups these are depends on the order of the data, not on the order in which they finish: where an earlier
        one may yet be the last that is replaced, a later one waits.
        """
        if not self.config.dynamic_sampling:
            return
        earlier = 0
        for entry in sorted(self.buffer.entries, key=lambda entry: entry.group.group_id):
            if entry.uninformative and len(self._replaced) + earlier < self.most_replaced:
                self._drop(entry)
                self._leave_out(entry.group)
            elif entry.uninformative and len(self._replaced) >= self.most_replaced:
                entry.uninformative, entry.finished = False, True
            elif not entry.finished:
                earlier += 1
        self._fill()

    def _give_up(self, entry: Entry, why: str, number: int) -> None:
        """Drop a group that cannot be trained on; its prompt is begun anew, or left out when its completions never come.
        `number` of them are not counted yet."""
        mark_dropped(entry.group, why)
        self._drop(entry)
        self.dropped[why] += number
        self._tally.lengths += [len(rollout.completion_ids) for rollout in entry.group.rollouts]
        self._barren += 1
        if entry.failures >= MAX_FAILURES:
            self.left_out += 1
            self.note(
                f"left out the prompt {entry.group.prompt_id}: its completions did not come {entry.failures} times"
            )
        else:
            self._again.append(_anew(entry, entry.attempt + 1))
        self._fill()

    def _drop(self, entry: Entry) -> None:
        """Take a group out; it is stored with the next batch."""
        if (task := self._tasks.get(entry)) is not None and task is not asyncio.current_task():
            task.cancel()
        self.buffer.remove(entry)
        if entry.group.rollouts:
            self._dropped.append(entry.group)

    def _check_stopped(self) -> None:
        if self._barren >= BARREN * self.buffer.batch:
            raise RolloutError(
                f"{self._barren} groups in a row could not be trained on. Dropped so far: {self._reasons()}",
                hint="raise --max-staleness or --stale-wait if they were too old; see logs/rewards.log if they had no reward",
            )

    def _reasons(self) -> str:
        return ", ".join(f"{number} {why}" for why, number in sorted(self.dropped.items())) or "none"

    # -- what it waits for ---------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _speaking(self) -> Any:
        async def speak() -> None:
            waited = 0.0
            while True:
                await asyncio.sleep(SPEAK_AFTER)
                waited += SPEAK_AFTER
                self.note(f"waited {waited:.0f} s for the rollouts of step {self.buffer.phase + 1}: {self.waits_for()}")

        task = asyncio.create_task(speak())
        try:
            yield
        finally:
            task.cancel()

    def waits_for(self) -> str:
        """How far the next batch is, in words."""
        finished, sampling = len(self.buffer.finished), len(self._sampling)
        scoring = len(self._tasks) - sampling
        wanted = self.config.num_generations + self.greedy
        open_ = sum(wanted - len(e.group.completions) for e in self._sampling)
        parts = [f"{finished} of {self.buffer.batch} groups are finished"]
        if sampling:
            parts.append(f"{sampling} are being sampled ({open_} completions are missing; {self.sampler.describe()})")
        if scoring:
            parts.append(f"{scoring} wait for their rewards")
        if self._replaced:
            parts.append(f"{len(self._replaced)} were replaced because their completions are all alike")
        if self.buffer.full():
            parts.append(f"{len(self.buffer.due())} of those that are missing can only be trained in this step")
        return ", ".join(parts)

    def _counters(self) -> Metrics:
        counted = {f"rollout/dropped_{why}": float(self.dropped[why]) for why in ("stale", "error")}
        return {**super()._counters(), **counted}

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Where the data stands, as JSON values: the stream, and the groups that were begun and not yet taken."""
        begun = sorted([*self.buffer.entries, *self._again], key=lambda entry: entry.group.group_id)
        return {
            **super().state(),
            "open": [[e.group.group_id, e.prompt.prompt_id, e.attempt, e.version] for e in begun],
        }

    def finished_groups(self) -> list[Group]:
        """The groups among "open" of `state` that are finished and need not be begun anew, and those that were dropped
        since the last batch: they are stored with the next one."""
        return [*(entry.group for entry in self.buffer.finished), *self._dropped]

    def load_state(self, state: dict[str, Any], groups: Sequence[Group] = ()) -> None:
        """Continue where `state` was taken: `groups` are finished or dropped, what else was begun is begun anew.

        Raises:
            DataError: it was taken from other prompts.
        """
        super().load_state(state)
        for task in self._tasks.values():
            task.cancel()
        self._dropped = [group for group in groups if _why_dropped(group)]
        finished = {group.group_id: group for group in groups if not _why_dropped(group)}
        entries = [
            Entry(
                finished.get(gid) or new_group(gid, self.prompts[pid]),
                self.prompts[pid],
                version,
                attempt,
                finished=gid in finished,
            )
            for gid, pid, attempt, version in state.get("open", [])
        ]
        self.buffer.entries = [entry for entry in entries if entry.finished]
        self._again = deque(entry for entry in entries if not entry.finished)
        self._cut.clear()
        self._failure, self._weights_lost, self._training = None, None, False

    def close(self) -> None:
        self._training = False
        for task in self._tasks.values():
            task.cancel()
        super().close()


def _why_dropped(group: Group) -> str | None:
    """Why a whole group is not trained on; None when some of it is."""
    reasons = {rollout.dropped for rollout in group.rollouts}
    return reasons.pop() if len(reasons) == 1 else None


def _anew(entry: Entry, attempt: int | None = None) -> Entry:
    """The same prompt from its beginning."""
    group = new_group(entry.group.group_id, entry.prompt)
    return replace(
        entry,
        group=group,
        attempt=entry.attempt if attempt is None else attempt,
        finished=False,
        uninformative=False,
    )


class Tally:
    """What is counted between two batches."""

    def __init__(self) -> None:
        self.tokens = 0
        """Completion tokens that came since the last batch."""
        self.lengths: list[int] = []
        """Tokens of the completions that were finished and dropped since the last batch."""
        self._since: float | None = None
        self._sampling = 0
        self._idle_from: float | None = None
        self._idle = 0.0

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """The samplers are asked for completions: they are idle when nobody does."""
        time = asyncio.get_running_loop().time
        if not self._sampling and self._idle_from is not None:
            self._idle += time() - self._idle_from
        self._sampling, self._idle_from = self._sampling + 1, None
        try:
            yield
        finally:
            self._sampling -= 1
            self._idle_from = None if self._sampling else time()

    def metrics(self, asked: float, buffer: Buffer) -> Metrics:
        """Of the time since the last batch; `asked`: when the learner asked for this one."""
        now = asyncio.get_running_loop().time()
        if self._idle_from is not None:
            self._idle, self._idle_from = self._idle + now - self._idle_from, now
        since = asked if self._since is None else self._since
        metrics: Metrics = {
            "time/wait_for_rollouts": now - asked,
            "time/samplers_idle": self._idle,
            "throughput/rollout_tokens_per_s": self.tokens / max(now - since, 1e-9),
            "rollout/queue_groups": float(len(buffer.finished)),
            "rollout/in_flight_groups": float(len(buffer.entries) - len(buffer.finished)),
        }
        if self.lengths:
            metrics["rollout/dropped_length_mean"] = Mean.of(self.lengths)
        self.tokens, self.lengths, self._idle, self._since = 0, [], 0.0, now
        return metrics
