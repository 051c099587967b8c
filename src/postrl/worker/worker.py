"""The rollout worker: data order, requests, rewards. The page of `trainer.py`, for the other side of the loop.

    admit prompts while there is room  ->  an episode for each completion  ->  score each group  ->  batches, oldest first

It keeps the samplers busy while the learner trains, within the bound on staleness; at max_staleness 0 that is one batch
after each publication of weights, the synchronous loop. What may be admitted and taken is decided in
`postrl.worker.buffer`; here tasks are run, waited for, dropped and counted. With the embedded engine it lives in the
trainer; next to vLLM servers in a process of its own (postrl/worker/process.py), so that parsing answers and waiting for
rewards never holds the interpreter of a trainer rank.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from postrl.config import GRPOConfig
from postrl.data.prompts import PromptSet, PromptStream
from postrl.data.stream import planned_steps
from postrl.errors import RolloutError, WeightsLost
from postrl.rewards.runner import RewardRunner
from postrl.rollout.episode import SingleTurn
from postrl.rollout.sampler import Sampler
from postrl.rollout.turn_end import TurnEnd
from postrl.run.waiting import SPEAK_AFTER
from postrl.types import Group, Mean, Metrics, Rollout, greedy_groups
from postrl.worker.buffer import Buffer, Entry, Stage
from postrl.worker.groups import check_logps, drop_unscored, mark_dropped, new_group, why_dropped
from postrl.worker.informative import informative, unjudged
from postrl.worker.making import GroupMaker
from postrl.worker.tally import Tally

MAX_FAILURES = 3
"""Times a group may fail to give completions before its prompt is left out."""
BARREN = 10
"""Batches' worth of groups dropped in a row, or batches without anything to train on, that end the run."""
NO_TURN = TurnEnd()


class RolloutWorker:
    """Makes scored groups.

    Args:
        train: prompts to train on; evaluate: prompts of the evaluation set, or None.
        sampler: where completions come from.
        rewards: what scores them.
        tokenizer: decodes completions.
        note: writes a line for the person at the terminal.
        turn: what ends completions of conversations, beside what ends all.
    """

    def __init__(
        self,
        config: GRPOConfig,
        *,
        train: PromptSet,
        evaluate: PromptSet | None,
        sampler: Sampler,
        rewards: RewardRunner,
        tokenizer: Any,
        note: Callable[[str], None] = lambda text: None,
        turn: TurnEnd = NO_TURN,
    ) -> None:
        self.config, self.sampler, self.rewards, self.note = config, sampler, rewards, note
        self.turn = turn
        self.maker = GroupMaker(config, sampler, rewards, turn, SingleTurn(turn, tokenizer))
        self.stream = PromptStream(train.prompts, seed=config.seed, shuffle=config.shuffle, weights=train.weights)
        self.prompts = {prompt.prompt_id: prompt for prompt in train.prompts}
        self.evaluation = evaluate
        self.buffer = Buffer(config.prompts_per_step, config.max_staleness, config.rollout_queue_size)
        self.planned = planned_steps(config, len(train.prompts)) * config.prompts_per_step
        """Groups of the whole run: no prompt is drawn that no step will train on."""
        self.left_out = 0
        """Prompts that are never trained on; another one took the place of each."""
        self.dropped: Counter[str] = Counter()
        """Completions dropped since the run began, by reason."""
        self.most_replaced = config.max_refills * config.prompts_per_step
        """Groups that dynamic sampling may replace for one batch."""
        self._said_kept = False
        self._again: deque[Entry] = deque()
        """Prompts to begin before others are drawn."""
        self._dropped: list[Group] = []
        """Groups to be stored with the next batch, not to be trained on."""
        self._training = False
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._weights_lost: WeightsLost | None = None
        self._barren = 0
        self._tally = Tally()

    async def start(self) -> None:
        """Start the reward functions, and see that the rows have what they ask for.

        Raises:
            RewardError: one cannot be loaded.
            UsageError: one asks for a column that a row does not have.
        """
        await self.rewards.start()
        evaluated = self.evaluation.prompts if self.evaluation else []
        self.rewards.check_columns([*self.prompts.values(), *evaluated])

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
        self._sweep()
        self._sift()
        self._fill()
        groups = [entry.group for entry in taken]
        try:
            await self.rewards.score_step([*groups, *greedy_groups(groups)])
            metrics = {**self._accept(groups, replaced), **await self.sampler.gauges()}
        except Exception:
            self._again.extend(map(_anew, taken))  # for a checkpoint: they were not trained on
            self._dropped = [*dropped, *self._dropped]
            raise
        trained = any(rollout.dropped is None for group in groups for rollout in group.rollouts)
        self._barren = 0 if trained else self._barren + len(groups)
        return [*groups, *dropped], metrics | self._tally.metrics(started, self.buffer, self.sampler.embedded)

    async def evaluate(self, version: int) -> tuple[list[Group], Metrics]:
        """The completions of each prompt of the evaluation set, scored: a greedy one, or num_generations_eval that are sampled.

        Raises:
            RewardError, ServerError: as for `groups`.
        """
        prompts = self.evaluation.prompts if self.evaluation else []
        groups = [new_group(i, prompt) for i, prompt in enumerate(prompts)]
        with self._tally.sampling():
            await self.maker.evaluate(groups, prompts, version)
        groups = [group for group in groups if group.rollouts]
        await self.rewards.score_step(groups)
        self.rewards.forget_logged()  # the next step reports its own
        self.rewards.check_budget(groups, self.config.reward_error_budget)
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        self._tally.tokens += sum(len(rollout.completion_ids) for rollout in rollouts)
        name = self.evaluation.name if self.evaluation else ""
        return groups, {
            f"eval/{name}/reward": Mean.of(r.reward for r in rollouts if r.reward is not None),
            f"eval/{name}/completion_length": Mean.of(len(r.completion_ids) for r in rollouts),
            f"eval/{name}/truncated_frac": Mean.of(r.finish_reason == "length" for r in rollouts),
            f"eval/{name}/missing_frac": Mean(float(len(prompts) - len(groups)), float(len(prompts))),
        }

    def hold(self) -> None:
        """New weights are on their way, and nothing new may be asked of the samplers until `pushed`."""
        self.sampler.hold()

    def pushed(self, version: int) -> None:
        """The samplers serve `version` from now on."""
        self.buffer.version, self._weights_lost = version, None
        self.sampler.release(version)
        self._fill()

    def _accept(self, groups: list[Group], replaced: Sequence[Group]) -> Metrics:
        """Check what a step is to be trained on, leave out what could not be scored, and say how it went.

        Args:
            replaced: the groups in whose place others are: they count in what is said of the rewards, or the share of
                right answers would be that of a chosen few.
        """
        judged = [*groups, *replaced]
        self.rewards.check_budget([*judged, *greedy_groups(judged)], self.config.reward_error_budget)
        check_logps(groups)
        unscored = drop_unscored(groups)
        metrics = {**self.rewards.metrics(judged), "epoch": self.stream.epoch, "group/unscored": float(unscored)}
        metrics |= {f"rollout/dropped_{why}": float(self.dropped[why]) for why in ("stale", "error")}
        if (reissued := getattr(self.sampler, "reissued", None)) is not None:
            metrics["rollout/reissued"] = float(reissued)
        if greedy := [group.greedy.reward for group in groups if group.greedy and group.greedy.reward is not None]:
            metrics["reward/greedy_mean"] = Mean.of(greedy)
        return {**metrics, **self._refills(groups, replaced)}

    # -- production ----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Begin as many groups as may be, once the learner trains: an evaluation alone needs none."""
        if self.sampler.embedded and any(entry.open for entry in self.buffer.entries):
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
            with self._tally.sampling():
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
        entry.stage = Stage.ALIKE if self._replaceable(entry.group) else Stage.FINISHED

    async def _sample(self, entry: Entry) -> None:
        def came(rollout: Rollout) -> None:
            self._tally.tokens += len(rollout.completion_ids)
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
            raise RolloutError(
                f"{self._barren} groups in a row could not be trained on. Dropped so far: {self._reasons()}",
                hint="raise --max-staleness or --stale-wait if they were too old; see logs/rewards.log if they had no reward",
            )
        if not self.buffer.full():
            return False
        if self.config.stale_policy == "drop_rollout":
            return not self._cut_due()
        return waited or self.config.stale_policy == "drop_group" or not self.buffer.behind()

    def _reasons(self) -> str:
        return ", ".join(f"{number} {why}" for why, number in sorted(self.dropped.items())) or "none"

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

    def _replaceable(self, group: Group) -> bool:
        """Whether another prompt is to take the place of this scored one."""
        return self.config.dynamic_sampling and not unjudged(group) and not informative(group, self.rewards.task)

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

    def _refills(self, groups: Sequence[Group], replaced: Sequence[Group]) -> Metrics:
        """What dynamic sampling did for a batch."""
        if not self.config.dynamic_sampling:
            return {}
        kept = sum(map(self._replaceable, groups))
        if kept and not self._said_kept:
            self._said_kept = True  # the metric says it of every step
            self.note(
                f"{kept} of {len(groups)} groups of a step are trained on although their completions are all alike: "
                f"max_refills = {self.config.max_refills} batches' worth of such groups were replaced before. Are the "
                "prompts too easy or too hard?"
            )
        return {
            "rollout/dropped_uninformative": float(self.dropped["uninformative"]),
            "rollout/refills": len(replaced) / self.config.prompts_per_step,
            "rollout/uninformative": float(kept),
        }

    # -- what it waits for ---------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _speaking(self) -> Any:
        async def speak() -> None:
            loop = asyncio.get_running_loop()
            since = loop.time()
            while True:
                await asyncio.sleep(SPEAK_AFTER)
                waited = loop.time() - since
                self.note(f"waited {waited:.0f} s for the rollouts of step {self.buffer.phase + 1}: {self.waits_for()}")

        task = asyncio.create_task(speak())
        try:
            yield
        finally:
            task.cancel()

    def waits_for(self) -> str:
        """How far the next batch is, in words."""
        entries = self.buffer.entries
        sampling = [entry.group for entry in entries if entry.stage is Stage.SAMPLING]
        scoring = sum(entry.stage is Stage.SCORING for entry in entries)
        parts = [f"{len(self.buffer.finished)} of {self.buffer.batch} groups are finished"]
        if sampling:
            missing = sum(len(self.maker.places) - len(group.completions) for group in sampling)
            what = f"{missing} completions are missing; {self.sampler.describe()}"
            parts.append(f"{len(sampling)} are being sampled ({what})")
        if scoring:
            parts.append(f"{scoring} wait for their rewards")
        if self._replaced:
            parts.append(f"{len(self._replaced)} were replaced because their completions are all alike")
        if self.buffer.full():
            parts.append(f"{len(self.buffer.due())} of those that are missing can only be trained in this step")
        return ", ".join(parts)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Where the data stands, as JSON values: the stream, and the groups that were begun and not yet taken."""
        begun = sorted([*self.buffer.entries, *self._again], key=lambda entry: entry.group.group_id)
        return {
            **self.stream.state(),
            "open": [[e.group.group_id, e.prompt.prompt_id, e.attempt, e.version] for e in begun],
            "left_out": self.left_out,
            "dropped": dict(self.dropped),
            "reward_versions": self.rewards.versions(),
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
        if said := self.stream.load_state(state):
            self.note(said)
        now = self.rewards.versions()
        for name, then in state.get("reward_versions", {}).items():
            if now.get(name, then) != then:
                self.note(f"reward {name} has changed since the checkpoint: {then} then, {now[name]} now")
        self.left_out = int(state.get("left_out", 0))
        self.dropped = Counter(state.get("dropped", {}))
        self._stop()
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

    def _stop(self) -> None:
        self._training = False
        for entry in self.buffer.entries:
            if entry.task is not None:
                entry.task.cancel()

    def close(self) -> None:
        self._stop()
        self.rewards.close()


def _anew(entry: Entry, attempt: int | None = None) -> Entry:
    """The same prompt from its beginning."""
    group = new_group(entry.group.group_id, entry.prompt)
    return Entry(group, entry.prompt, entry.version, entry.attempt if attempt is None else attempt, entry.failures)
