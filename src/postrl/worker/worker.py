"""The rollout worker: data order, requests, rewards. The page of `trainer.py`, for the other side of the loop.

    prompts -> requests -> sampler -> completions -> groups, scored as soon as they are whole -> the learner

With the embedded engine it runs inside the trainer, a step at a time. Next to vLLM servers it is a `StreamingWorker`
(postrl/worker/streaming.py) in a process of its own (postrl/worker/process.py), so that parsing answers and waiting for rewards
never holds the interpreter of a trainer rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from postrl.config import GRPOConfig
from postrl.config.checks import length_twice, refuse
from postrl.data.prompts import NAMED_UNUSABLE, PromptSet, PromptStream, load_prompts
from postrl.errors import ServerError, UsageError
from postrl.given import Given
from postrl.rewards.registry import RewardSpec, resolve, with_options
from postrl.rewards.rows import hidden_columns, scorable_rows, why_left_out
from postrl.rewards.runner import RewardRunner
from postrl.rollout.sampler import Request, Sampled, Sampler, Sampling, derive_seed
from postrl.rollout.turn_end import TurnEnd, turn_end
from postrl.rows.tokens import check_vocabulary
from postrl.run.folder import RunFolder
from postrl.types import GREEDY, Group, Mean, Metrics, Prompt, Rollout, greedy_groups
from postrl.worker.informative import informative, unjudged

MAX_MISSING_LOGPS = 0.01
"""Share of tokens without a sampler log-prob above which a batch is refused."""
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
        self.turn = turn
        self.config, self.sampler, self.rewards, self.tokenizer, self.note = config, sampler, rewards, tokenizer, note
        self.stream = PromptStream(train.prompts, seed=config.seed, shuffle=config.shuffle, weights=train.weights)
        self.prompts = {prompt.prompt_id: prompt for prompt in train.prompts}
        self._begun: list[tuple[int, Prompt]] = []
        """Prompts that another engine had begun, from a checkpoint: they come first."""
        self.left_out = 0
        """Prompts that are never trained on; another one took the place of each."""
        self.dropped: Counter[str] = Counter()
        """Completions dropped since the run began, by reason."""
        self.most_replaced = config.max_refills * config.prompts_per_step
        """Groups that dynamic sampling may replace for one batch."""
        self._said_kept = False
        self.greedy = config.needs_greedy
        """Whether each prompt gets a greedy completion as well; asked once, because a file may have to be run for it."""
        self.evaluation = evaluate
        self.sampling = Sampling(
            config.temperature,
            config.max_completion_length,
            tuple(config.stop),
            config.top_p,
            config.top_k,
            config.min_p,
        )

    async def start(self) -> None:
        """Start the reward functions, and see that the rows have what they ask for.

        Raises:
            RewardError: one cannot be loaded.
            UsageError: one asks for a column that a row does not have.
        """
        await self.rewards.start()
        evaluated = self.evaluation.prompts if self.evaluation else []
        self.rewards.check_columns([*self.prompts.values(), *evaluated])

    async def groups(self, version: int) -> tuple[list[Group], Metrics]:
        """The scored groups of the next step, sampled from weights of `version`.

        Raises:
            RewardError: rewards failed more often than the budget allows.
            ServerError: completions could not be had, or came without log-probs.
        """
        before, number = self.state(), self.config.prompts_per_step
        groups: list[Group] = []
        replaced: list[Group] = []
        times: dict[str, float] = {}
        try:
            while len(groups) < number:
                sampled, seconds = await self._sample(self._draw(number - len(groups)), self._requests, version)
                times = {name: times.get(name, 0.0) + value for name, value in seconds.items()}
                for group in sampled:
                    if len(replaced) < self.most_replaced and self._replaceable(group):
                        self._leave_out(group)
                        replaced.append(group)
                    else:
                        groups.append(group)
            return [*groups, *replaced], {**self._accept(groups, replaced), **times}
        except BaseException:
            self.load_state(before)  # for a checkpoint: they were not trained on
            raise

    def _draw(self, number: int) -> list[tuple[int, Prompt]]:
        """The next prompts with their group ids: those that were begun before come first."""
        prompts, self._begun = self._begun[:number], self._begun[number:]
        return prompts + self.stream.next(number - len(prompts))

    async def evaluate(self, version: int) -> tuple[list[Group], Metrics]:
        """The completions of each prompt of the evaluation set, scored: a greedy one, or num_generations_eval that are sampled.

        Raises:
            RewardError, ServerError: as for `groups`.
        """
        prompts = list(enumerate(self.evaluation.prompts)) if self.evaluation else []
        number = self.config.num_generations_eval
        sampling = self.sampling.greedy() if number == 1 else self.sampling

        def ask(group: Group, prompt: Prompt, version: int) -> list[Request]:
            return [self._request(group, prompt, i, sampling, version) for i in range(number)]

        groups, _ = await self._sample(prompts, ask, version)
        groups = [group for group in groups if group.rollouts]
        self.rewards.forget_logged()  # the next step reports its own
        self.rewards.check_budget(groups, self.config.reward_error_budget)
        scores = [r.reward for g in groups for r in g.rollouts if r.reward is not None]
        lengths = [len(r.completion_ids) for g in groups for r in g.rollouts]
        cut = [r.finish_reason == "length" for g in groups for r in g.rollouts]
        name = self.evaluation.name if self.evaluation else ""
        return groups, {
            f"eval/{name}/reward": Mean.of(scores),
            f"eval/{name}/completion_length": Mean.of(lengths),
            f"eval/{name}/truncated_frac": Mean.of(cut),
            f"eval/{name}/missing_frac": Mean(float(len(prompts) - len(groups)), float(len(prompts))),
        }

    def _accept(self, groups: list[Group], replaced: Sequence[Group] = ()) -> Metrics:
        """Check what a step is to be trained on, leave out what could not be scored, and say how it went.

        Args:
            replaced: the groups in whose place others are: they count in what is said of the rewards, or the share of
                right answers would be that of a chosen few.
        """
        judged = [*groups, *replaced]
        self.rewards.check_budget([*judged, *greedy_groups(judged)], self.config.reward_error_budget)
        check_logps(groups)
        dropped = drop_unscored(groups)
        metrics = {**self.rewards.metrics(judged), "epoch": self.stream.epoch, **self._counters()}
        return {**metrics, **self._refills(groups, replaced), **_greedy(groups), "group/unscored": float(dropped)}

    async def _sample(
        self, prompts: Sequence[tuple[int, Prompt]], ask: Callable[[Group, Prompt, int], list[Request]], version: int
    ) -> tuple[list[Group], dict[str, float]]:
        """Sample all, score each group as soon as it is whole, and all of them by what compares them."""
        started = time.monotonic()
        groups = [new_group(gid, prompt) for gid, prompt in prompts]
        asked = [ask(group, prompt, version) for group, (_, prompt) in zip(groups, prompts, strict=True)]
        places = [(i, place) for i, requests in enumerate(asked) for place in range(len(requests))]
        scoring: list[asyncio.Task[None]] = []
        try:
            async with contextlib.aclosing(self.sampler.sample([*itertools.chain(*asked)])) as completions:
                async for index, sampled in completions:
                    if sampled.finish_reason == "abort":  # given up: no completion is no wrong one
                        continue
                    i, place = places[index]
                    self._add(groups[i], prompts[i][1], asked[i][place].sample_index, sampled)
                    if len(groups[i].completions) == len(asked[i]):
                        scoring.append(asyncio.create_task(self._score(groups[i])))
            generated = time.monotonic()
            await asyncio.gather(*scoring)
            await self.rewards.score_step([*groups, *greedy_groups(groups)])
        finally:
            for task in scoring:
                task.cancel()
        return groups, {"time/generate": generated - started, "time/score": time.monotonic() - generated}

    def _requests(self, group: Group, prompt: Prompt, version: int, attempt: int = 0) -> list[Request]:
        """One request for each completion of a group to train on, and where the algorithm needs it a greedy one."""
        places = range(self.config.num_generations)
        requests = [self._request(group, prompt, i, self.sampling, version, attempt) for i in places]
        if self.greedy:
            requests.append(self._request(group, prompt, GREEDY, self.sampling.greedy(), version, attempt))
        return requests

    def _request(
        self, group: Group, prompt: Prompt, place: int, sampling: Sampling, version: int, attempt: int = 0
    ) -> Request:
        seed = derive_seed(self.config.seed, group.group_id, prompt.prompt_id, place, attempt)
        return Request(prompt.token_ids, seed, self.turn.sampling(sampling, prompt), version, place)

    async def _score(self, group: Group) -> None:
        group.rollouts.sort(key=lambda rollout: rollout.sample_index)
        await asyncio.gather(*(self.rewards.score(scored) for scored in (group, *greedy_groups([group]))))

    def _add(self, group: Group, prompt: Prompt, sample_index: int, sampled: Sampled) -> None:
        """A completion that came."""
        greedy = sample_index == GREEDY
        rollout = Rollout(
            prompt_id=prompt.prompt_id,
            sample_index=sample_index,
            prompt_ids=list(prompt.token_ids),
            completion_ids=sampled.completion_ids,
            logps=sampled.logps,
            version_spans=sampled.version_spans,
            finish_reason=sampled.finish_reason,
            completion=self.turn.said(self.tokenizer, sampled.completion_ids, prompt),
            dropped="greedy" if greedy else None,
            support=sampled.support,
        )
        if greedy:
            group.greedy = rollout
        else:
            group.rollouts.append(rollout)

    # -- dynamic sampling ----------------------------------------------------------------------------------------------

    def _replaceable(self, group: Group) -> bool:
        """Whether another prompt is to take the place of this scored one."""
        return self.config.dynamic_sampling and not unjudged(group) and not informative(group, self.rewards.task)

    def _leave_out(self, group: Group) -> None:
        """Another prompt takes the place of this one: it is stored, not trained on."""
        mark_dropped(group, "uninformative")
        self.dropped["uninformative"] += len(group.rollouts)
        self.left_out += 1

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

    def _counters(self) -> Metrics:
        reissued = getattr(self.sampler, "reissued", None)
        return {} if reissued is None else {"rollout/reissued": float(reissued)}

    def state(self) -> dict[str, Any]:
        """Where the data stands, as JSON values: the stream, and what was begun and not yet trained on."""
        begun = [[gid, prompt.prompt_id, 0, 0] for gid, prompt in self._begun]
        counts = {"left_out": self.left_out, "dropped": dict(self.dropped)}
        return {**self.stream.state(), "open": begun, **counts, "reward_versions": self.rewards.versions()}

    def finished_groups(self) -> list[Group]:
        """Groups that are finished and not yet trained on, which a checkpoint keeps: here none."""
        return []

    def load_state(self, state: dict[str, Any], groups: Sequence[Group] = ()) -> None:
        """Continue where `state` and `finished_groups` were taken.

        Raises:
            DataError: they were taken from other prompts.
        """
        if said := self.stream.load_state(state):
            self.note(said)
        now = self.rewards.versions()
        for name, then in state.get("reward_versions", {}).items():
            if now.get(name, then) != then:
                self.note(f"reward {name} has changed since the checkpoint: {then} then, {now[name]} now")
        self._begun = [(gid, self.prompts[prompt_id]) for gid, prompt_id, *_ in state.get("open", [])]
        self.left_out = int(state.get("left_out", 0))
        self.dropped = Counter(state.get("dropped", {}))

    def close(self) -> None:
        self.rewards.close()


def new_group(group_id: int, prompt: Prompt) -> Group:
    """The group of a prompt, still without rollouts."""
    return Group(prompt.prompt_id, group_id, prompt.text, prompt.messages, prompt.columns, [], prompt.rewards)


def mark_dropped(group: Group, why: str) -> None:
    """None of its completions is trained on."""
    for rollout in group.rollouts:
        rollout.dropped = why


def drop_unscored(groups: Sequence[Group]) -> int:
    """Leave groups out of which no completion could be scored: they are stored, not trained on. Returns how many."""
    unscored = [group for group in groups if all(rollout.reward is None for rollout in group.rollouts)]
    for group in unscored:
        mark_dropped(group, "unscored")
    return len(unscored)


def _greedy(groups: Sequence[Group]) -> Metrics:
    rewards = [group.greedy.reward for group in groups if group.greedy and group.greedy.reward is not None]
    return {"reward/greedy_mean": Mean.of(rewards)} if rewards else {}


def check_logps(groups: Sequence[Group]) -> None:
    """Tokens that are trained on need the sampler's log-probs, for the importance correction.

    Raises:
        ServerError: more of them than one in a hundred have none.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    logps = [x for rollout in rollouts for x, trained in zip(rollout.logps, rollout.loss_mask) if trained]
    missing = sum(x != x for x in logps)
    if missing > MAX_MISSING_LOGPS * len(logps):
        raise ServerError(
            f"{missing} of {len(logps)} tokens came without a log-prob from the sampler",
            hint="start servers of your own with `postrl serve`, or with --logprobs-mode processed_logprobs",
        )


W = TypeVar("W", bound=RolloutWorker)


def build_worker(
    kind: type[W],
    config: GRPOConfig,
    tokenizer: Any,
    sampler: Any,
    folder: RunFolder,
    *,
    given: Given | None = None,
    stop_token_ids: Sequence[int] = (),
    vocabulary: int | None = None,
) -> tuple[W, PromptSet]:
    """Load the data, resolve the rewards and put the worker together; what was left out of the data is noted.

    Args:
        stop_token_ids: the eos tokens, with which `sampler` ends every completion.
        vocabulary: tokens that the model knows; None: not known.

    Raises:
        DataError, UsageError: the data set or a reward cannot be used.
    """
    given = given or Given()
    train = load_prompts(config, tokenizer, split="train", raw=given.train)
    evaluate = None
    if given.evaluate is not None or config.eval_dataset:
        evaluate = load_prompts(config, tokenizer, split="eval", raw=given.evaluate)
    sets = [train, *([] if evaluate is None else [evaluate])]
    specs = _rewards(config, given, sets)
    for prompts in sets:
        if given.rewards:  # a script's functions score every row, also those of a data set with a reward of its own
            for prompt in prompts.prompts:
                prompt.rewards = ()
        loaded = prompts.prompts
        prompts.prompts, ids = scorable_rows(loaded, specs)
        prompts.num_unusable += len(ids)
        prompts.unusable = [*prompts.unusable, *ids][:NAMED_UNUSABLE]
        folder.note(prompts.describe())
        if said := hidden_columns(prompts.prompts):
            folder.note(said)
        if said := why_left_out(loaded, ids, specs):
            folder.note(said)
    for line in dict.fromkeys(note for prompts in sets for note in prompts.notes):
        folder.note(line)
    if any(spec.kind == "builtin" and spec.payload == "code" for spec in specs):
        from postrl.rewards.code.sandbox import choose

        folder.note(f"model-written code runs in the sandbox {choose(config.sandbox).about}")
    prompts_of_all = [prompt for prompts in sets for prompt in prompts.prompts]
    if vocabulary and (said := check_vocabulary(prompts_of_all, tokenizer, vocabulary)):
        folder.note(said)
    turn = turn_end(tokenizer, prompts_of_all, stop_token_ids)
    if not any(map(turn.covers, prompts_of_all)):
        turn = TurnEnd(eos=turn.eos)
    elif said := turn.note(tokenizer):
        folder.note(said)
    rewards = RewardRunner.for_run(specs, config, log_path=folder.logs / "rewards.log")
    worker = kind(
        config,
        train=train,
        evaluate=evaluate,
        sampler=sampler,
        rewards=rewards,
        tokenizer=tokenizer,
        note=folder.note,
        turn=turn,
    )
    for line in worker.stream.repeats(config.prompts_per_step):
        folder.note(line)
    return worker, train


def _rewards(config: GRPOConfig, given: Given, sets: Sequence[PromptSet]) -> list[RewardSpec]:
    """The run's reward functions with their options: the script's, those of --reward, else the data sets' own."""
    own = dict.fromkeys(name for prompts in sets for name in prompts.default_reward)
    specs = given.rewards or [resolve(name) for name in config.reward or own]
    if not specs:
        raise UsageError(
            f"no reward is given, and {sets[0].name} has none of its own",
            hint="--reward math, --reward code or --reward file.py:function",
        )
    refuse(length_twice(config, [str(spec.payload) for spec in specs if spec.kind == "builtin"]))  # a script's, too
    return with_options(specs, config.reward_arg)
