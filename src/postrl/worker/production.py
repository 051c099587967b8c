"""The groups on their way: begun while there is room, each sampled and scored on its own, dropped, begun anew, taken.

What may be admitted and taken is decided in `postrl.worker.buffer`; here the tasks run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from postrl.config import GRPOConfig
from postrl.data.prompts import PromptSet, PromptStream
from postrl.data.stream import planned_steps
from postrl.errors import RolloutError, WeightsLost
from postrl.run.waiting import speaking_of
from postrl.types import Group, Rollout
from postrl.worker.buffer import Buffer, Entry, Stage
from postrl.worker.groups import mark_dropped, new_group, why_dropped
from postrl.worker.informative import informative, unjudged
from postrl.worker.making import GroupMaker
from postrl.worker.tally import Tally

MAX_FAILURES = 3
"""Times a group may fail to give completions before its prompt is left out."""
BARREN = 10
"""Batches' worth of groups dropped in a row, or batches without anything to train on, that end the run."""


@dataclass
class Taken:
    """A batch, and what was dropped since the one before."""

    entries: list[Entry]
    dropped: list[Group]
    """To be stored, not trained on."""
    replaced: list[Group]
    """Those of them in whose place dynamic sampling put others."""

    @property
    def groups(self) -> list[Group]:
        return [entry.group for entry in self.entries]


class Production:
    """Makes groups all the time, within the bound on staleness, once the learner trains.

    Args:
        prompts: those to train on.
        maker: samples and scores a group.
        note: writes a line for the person at the terminal.
    """

    def __init__(self, config: GRPOConfig, prompts: PromptSet, maker: GroupMaker, note: Callable[[str], None]) -> None:
        self.config, self.maker, self.note = config, maker, note
        self.stream = PromptStream(prompts.prompts, seed=config.seed, shuffle=config.shuffle, weights=prompts.weights)
        self.prompts = {prompt.prompt_id: prompt for prompt in prompts.prompts}
        self.buffer = Buffer(config.prompts_per_step, config.max_staleness, config.rollout_queue_size)
        self.planned = planned_steps(config, len(prompts.prompts)) * config.prompts_per_step
        """Groups of the whole run: no prompt is drawn that no step will train on."""
        self.left_out = 0
        """Prompts that are never trained on; another one took the place of each."""
        self.dropped: Counter[str] = Counter()
        """Completions dropped since the run began, by reason."""
        self.most_replaced = config.max_refills * config.prompts_per_step
        """Groups that dynamic sampling may replace for one batch."""
        self.tally = Tally()
        self._again: deque[Entry] = deque()
        """Prompts to begin before others are drawn."""
        self._dropped: list[Group] = []
        """Groups to be stored with the next batch, not to be trained on."""
        self._training = False
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._weights_lost: WeightsLost | None = None
        self._barren = 0

    # -- what the worker asks for --------------------------------------------------------------------------------------

    def pushed(self, version: int) -> None:
        """The samplers serve `version` from now on."""
        self.buffer.version, self._weights_lost = version, None
        self._fill()

    async def take(self, version: int) -> Taken:
        """The next batch, for a learner that holds `version`."""
        if version != self.buffer.version:
            raise ValueError(
                f"groups for version {version} were asked for, and the samplers serve {self.buffer.version}"
            )
        resumed, self._training = not self._training, True
        self.buffer.phase = version
        self._sweep()
        if resumed:
            self._barren = 0  # under a lower bound than before, much of what a checkpoint held is too old at once
        self._fill()
        step = self.buffer.phase + 1
        async with speaking_of(self.note, lambda: f"the rollouts of step {step}: {self.waits_for()}"):
            await self._until_ready()
        taken = Taken(self.buffer.take(), self._dropped, self._replaced)
        self._dropped = []
        self._sweep()
        self._sift()
        self._fill()
        return taken

    def give_back(self, taken: Taken) -> None:
        """They are not trained on: a checkpoint is to begin their prompts anew."""
        self._again.extend(map(_anew, taken.entries))
        self._dropped = [*taken.dropped, *self._dropped]

    def trained(self, groups: Sequence[Group]) -> None:
        """They are about to be; where all of them are left out, the run has gone without for a batch more."""
        trained = any(rollout.dropped is None for group in groups for rollout in group.rollouts)
        self._barren = 0 if trained else self._barren + len(groups)

    def replaceable(self, group: Group) -> bool:
        """Whether another prompt is to take the place of this scored one."""
        return self.config.dynamic_sampling and not unjudged(group) and not informative(group, self.maker.rewards.task)

    def state(self) -> dict[str, Any]:
        """Where the data stands, as JSON values: the stream, and the groups that were begun and not yet taken."""
        begun = sorted([*self.buffer.entries, *self._again], key=lambda entry: entry.group.group_id)
        return {
            **self.stream.state(),
            "open": [[e.group.group_id, e.prompt.prompt_id, e.attempt, e.version] for e in begun],
            "left_out": self.left_out,
            "dropped": dict(self.dropped),
        }

    def finished_groups(self) -> list[Group]:
        """The groups among "open" of `state` that are finished and need not be begun anew, and those that were dropped
        since the last batch: they are stored with the next one."""
        return [*(entry.group for entry in self.buffer.finished), *self._dropped]

    def load_state(self, state: dict[str, Any], groups: Sequence[Group]) -> None:
        """Continue where `state` was taken: `groups` are finished or dropped, what else was begun is begun anew.

        Raises:
            DataError: it was taken from other prompts.
        """
        if said := self.stream.load_state(state):
            self.note(said)
        self.stop()
        self.left_out, self.dropped = int(state.get("left_out", 0)), Counter(state.get("dropped", {}))
        self._dropped = [group for group in groups if why_dropped(group)]
        finished = {group.group_id: group for group in groups if not why_dropped(group)}
        self.buffer.entries, self._again = [], deque()
        for gid, prompt_id, attempt, version in state.get("open", []):
            prompt = self.prompts[prompt_id]
            if (group := finished.get(gid)) is not None:
                self.buffer.entries.append(Entry(group, prompt, version, attempt, stage=Stage.FINISHED))
            else:
                self._again.append(Entry(new_group(gid, prompt), prompt, version, attempt))
        self._failure, self._weights_lost = None, None

    def stop(self) -> None:
        """End what runs."""
        self._training = False
        for entry in self.buffer.entries:
            if entry.task is not None:
                entry.task.cancel()

    # -- making groups -------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Begin as many groups as may be, once the learner trains: an evaluation alone needs none."""
        if self.maker.sampler.embedded and any(entry.open for entry in self.buffer.entries):
            return
        while (
            self._training and self._weights_lost is None and self.buffer.room() and (entry := self._next()) is not None
        ):
            self.buffer.admit(entry)
            entry.task = asyncio.create_task(self._produce(entry))
            entry.task.add_done_callback(self._ended)

    def _next(self) -> Entry | None:
        if self._again:
            return self._again.popleft()
        if self.stream.position >= self.planned + self.left_out:
            return None
        ((group_id, prompt),) = self.stream.next(1)
        return Entry(new_group(group_id, prompt), prompt, self.buffer.version)

    async def _produce(self, entry: Entry) -> None:
        """Sample a group and score it. A cut ends the sampling early; what is there is scored."""
        try:
            with self.tally.sampling():
                await self._sample(entry)
        except WeightsLost as error:
            # Nothing can be sampled until the learner has published its weights again; the prompt comes first then.
            self.buffer.remove(entry)
            self._again.appendleft(_anew(entry))
            self._weights_lost = error
            return
        if not self.maker.enough(entry.group):
            entry.failures += 1
            self._give_up(entry, "error", len(entry.group.rollouts))
            return
        entry.stage = Stage.SCORING
        await self.maker.score(entry.group)
        entry.stage = Stage.ALIKE if self.replaceable(entry.group) else Stage.FINISHED

    async def _sample(self, entry: Entry) -> None:
        def came(rollout: Rollout) -> None:
            self.tally.tokens += len(rollout.completion_ids)
            self.dropped["error"] += rollout.finish_reason == "abort"  # given up by the sampler, which has said so

        try:
            async with asyncio.timeout(None) as entry.sampling:
                await self.maker.sample(entry.group, entry.prompt, entry.version, entry.attempt, came)
        except TimeoutError:
            if not entry.cut:
                raise
        finally:
            entry.sampling = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
        self._sift()
        self._fill()
        self._changed.set()

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
        if self._barren >= BARREN * self.buffer.batch:
            reasons = ", ".join(f"{number} {why}" for why, number in sorted(self.dropped.items())) or "none"
            raise RolloutError(
                f"{self._barren} groups in a row could not be trained on. Dropped so far: {reasons}",
                hint="raise --max-staleness or --stale-wait if they were too old; see logs/rewards.log if they had no reward",
            )
        if not self.buffer.full():
            return False
        if self.config.stale_policy == "drop_rollout":
            return not self._cut_due()
        return waited or self.config.stale_policy == "drop_group" or not self.buffer.behind()

    def _cut_due(self) -> bool:
        """End the sampling of groups whose last chance is this batch, if they have enough completions to be trained on.
        Returns whether any of them is still being scored, and so waited for."""
        last = [e for e in self.buffer.entries if self.buffer.deadline(e) <= self.buffer.phase]
        places = self.buffer.batch - sum(e.finished or e.cut for e in last)
        for entry in self.buffer.due():
            if places > 0 and entry.sampling and not entry.cut and self.maker.enough(entry.group):
                self.dropped["stale"] += self.config.num_generations - len(entry.group.rollouts)
                entry.cut = True
                entry.sampling.reschedule(asyncio.get_running_loop().time())
                places -= 1
        return any(entry.cut and entry.open for entry in self.buffer.entries)

    def _sweep(self) -> None:
        """Drop what no batch may train any more; its prompts are begun anew."""
        for entry in self.buffer.stale():
            self._give_up(entry, "stale", len(entry.group.rollouts) if entry.cut else self.config.num_generations)

    def _give_up(self, entry: Entry, why: str, number: int) -> None:
        """Drop a group that cannot be trained on; its prompt is begun anew, or left out when its completions never come.
        `number` of them are not counted yet."""
        mark_dropped(entry.group, why)
        self._drop(entry)
        self.dropped[why] += number
        self.tally.lengths += [len(rollout.completion_ids) for rollout in entry.group.rollouts]
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
        if entry.task is not None and entry.task is not asyncio.current_task():
            entry.task.cancel()
        self.buffer.remove(entry)
        if entry.group.rollouts:
            self._dropped.append(entry.group)

    # -- dynamic sampling ----------------------------------------------------------------------------------------------

    @property
    def _replaced(self) -> list[Group]:
        """Groups since the last batch in whose place dynamic sampling put others."""
        return [group for group in self._dropped if why_dropped(group) == "uninformative"]

    def _sift(self) -> None:
        """Put other prompts in the place of groups that teach nothing; keep those that come after `most_replaced`.

        Which groups these are depends on the order of the data, not on the order in which they finish: where an earlier
        one may yet be the last that is replaced, a later one waits.
        """
        if not self.config.dynamic_sampling:
            return
        earlier = 0
        for entry in sorted(self.buffer.entries, key=lambda entry: entry.group.group_id):
            alike = entry.stage is Stage.ALIKE
            if alike and len(self._replaced) + earlier < self.most_replaced:
                self._drop(entry)
                mark_dropped(entry.group, "uninformative")
                self.dropped["uninformative"] += len(entry.group.rollouts)
                self.left_out += 1
            elif alike and len(self._replaced) >= self.most_replaced:
                entry.stage = Stage.FINISHED
            elif not entry.finished:
                earlier += 1

    def waits_for(self) -> str:
        """How far the next batch is, in words."""
        said = self.buffer.describe(len(self.maker.places), self.maker.sampler.describe())
        if self._replaced:
            said += f", {len(self._replaced)} were replaced because their completions are all alike"
        if self.buffer.full():
            said += f", {len(self.buffer.due())} of those that are missing can only be trained in this step"
        return said


def _anew(entry: Entry, attempt: int | None = None) -> Entry:
    """The same prompt from its beginning."""
    group = new_group(entry.group.group_id, entry.prompt)
    return Entry(group, entry.prompt, entry.version, entry.attempt if attempt is None else attempt, entry.failures)
