"""The rollout worker: data order, requests, rewards. The page of `trainer.py`, for the other side of the loop.

    admit prompts while there is room  ->  an episode for each completion  ->  score each group  ->  batches, oldest first

It keeps the samplers busy while the learner trains, within the bound on staleness; at max_staleness 0 that is one batch
after each publication of weights, the synchronous loop. What may be admitted and taken is decided in
`postrl.worker.buffer`; the tasks run in `postrl.worker.production`. With the embedded engine it lives in the
trainer; next to vLLM servers in a process of its own (postrl/worker/process.py), so that parsing answers and waiting for
rewards never holds the interpreter of a trainer rank.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from postrl.config import GRPOConfig
from postrl.data.prompts import PromptSet
from postrl.rewards.runner import RewardRunner
from postrl.rollout.episode import SingleTurn
from postrl.rollout.sampler import Sampler
from postrl.rollout.turn_end import TurnEnd
from postrl.types import Group, Mean, Metrics, greedy_groups
from postrl.worker.groups import check_logps, drop_unscored, new_group
from postrl.worker.making import GroupMaker
from postrl.worker.production import Production

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
        self.production = Production(config, train, self.maker, note)
        self.evaluation = evaluate
        self._said_kept = False

    async def start(self) -> None:
        """Start the reward functions, and see that the rows have what they ask for.

        Raises:
            RewardError: one cannot be loaded.
            UsageError: one asks for a column that a row does not have.
        """
        await self.rewards.start()
        evaluated = self.evaluation.prompts if self.evaluation else []
        self.rewards.check_columns([*self.production.prompts.values(), *evaluated])

    # -- what the learner asks for -------------------------------------------------------------------------------------

    async def groups(self, version: int) -> tuple[list[Group], Metrics]:
        """The next batch for a learner that holds `version`, and the groups dropped since the last one.

        Raises:
            RewardError: rewards failed more often than the budget allows.
            WeightsLost: all servers were restarted; to be asked again after another publication.
            ServerError: completions could not be had, or came without log-probs.
            RolloutError: nothing that can be trained on comes any more; the message counts why.
        """
        started = asyncio.get_running_loop().time()
        taken = await self.production.take(version)
        groups = taken.groups
        try:
            await self.rewards.score_step([*groups, *greedy_groups(groups)])
            metrics = {**self._accept(groups, taken.replaced), **await self.sampler.gauges()}
        except Exception:
            self.production.give_back(taken)
            raise
        self.production.trained(groups)
        tally, buffer = self.production.tally, self.production.buffer
        return [*groups, *taken.dropped], metrics | tally.metrics(started, buffer, self.sampler.embedded)

    async def evaluate(self, version: int) -> tuple[list[Group], Metrics]:
        """The completions of each prompt of the evaluation set, scored: a greedy one, or num_generations_eval that are sampled.

        Raises:
            RewardError, ServerError: as for `groups`.
        """
        prompts = self.evaluation.prompts if self.evaluation else []
        groups = [new_group(i, prompt) for i, prompt in enumerate(prompts)]
        with self.production.tally.sampling():
            await self.maker.evaluate(groups, prompts, version)
        groups = [group for group in groups if group.rollouts]
        await self.rewards.score_step(groups)
        self.rewards.forget_logged()  # the next step reports its own
        self.rewards.check_budget(groups, self.config.reward_error_budget)
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        self.production.tally.tokens += sum(len(rollout.completion_ids) for rollout in rollouts)
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
        self.sampler.release(version)
        self.production.pushed(version)

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
        metrics = {
            **self.rewards.metrics(judged),
            "epoch": self.production.stream.epoch,
            "group/unscored": float(unscored),
        }
        metrics |= {f"rollout/dropped_{why}": float(self.production.dropped[why]) for why in ("stale", "error")}
        if self.sampler.reissued is not None:
            metrics["rollout/reissued"] = float(self.sampler.reissued)
        if greedy := [group.greedy.reward for group in groups if group.greedy and group.greedy.reward is not None]:
            metrics["reward/greedy_mean"] = Mean.of(greedy)
        return {**metrics, **self._refills(groups, replaced)}

    def _refills(self, groups: Sequence[Group], replaced: Sequence[Group]) -> Metrics:
        """What dynamic sampling did for a batch."""
        if not self.config.dynamic_sampling:
            return {}
        kept = sum(map(self.production.replaceable, groups))
        if kept and not self._said_kept:
            self._said_kept = True  # the metric says it of every step
            self.note(
                f"{kept} of {len(groups)} groups of a step are trained on although their completions are all alike: "
                f"max_refills = {self.config.max_refills} batches' worth of such groups were replaced before. Are the "
                "prompts too easy or too hard?"
            )
        return {
            "rollout/dropped_uninformative": float(self.production.dropped["uninformative"]),
            "rollout/refills": len(replaced) / self.config.prompts_per_step,
            "rollout/uninformative": float(kept),
        }

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Where the data and the rewards stand, as JSON values."""
        return {**self.production.state(), "reward_versions": self.rewards.versions()}

    def finished_groups(self) -> list[Group]:
        """See `Production.finished_groups`."""
        return self.production.finished_groups()

    def load_state(self, state: dict[str, Any], groups: Sequence[Group] = ()) -> None:
        """See `Production.load_state`; a reward that has changed since is named."""
        self.production.load_state(state, groups)
        now = self.rewards.versions()
        for name, then in state.get("reward_versions", {}).items():
            if now.get(name, then) != then:
                self.note(f"reward {name} has changed since the checkpoint: {then} then, {now[name]} now")

    def close(self) -> None:
        self.production.stop()
        self.rewards.close()
