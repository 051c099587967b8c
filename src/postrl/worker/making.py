"""One group from its prompt: an episode for each completion, then the rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from postrl.config import GRPOConfig
from postrl.rewards.runner import RewardRunner
from postrl.rollout.episode import Episode
from postrl.rollout.sampler import Request, Sampler, Sampling, derive_seed
from postrl.rollout.turn_end import TurnEnd
from postrl.types import GREEDY, Group, Prompt, Rollout, Sampled, greedy_groups

T = TypeVar("T")


class GroupMaker:
    """Makes the rollouts of groups, and has them scored.

    Args:
        turn: what ends completions of conversations, beside what ends all.
        episode: how a rollout comes about.
    """

    def __init__(
        self, config: GRPOConfig, sampler: Sampler, rewards: RewardRunner, turn: TurnEnd, episode: Episode
    ) -> None:
        self.config, self.sampler, self.rewards, self.turn, self.episode = config, sampler, rewards, turn, episode
        c = config
        self.sampling = Sampling(c.temperature, c.max_completion_length, tuple(c.stop), c.top_p, c.top_k, min_p=c.min_p)
        self.places = [*range(config.num_generations), *([GREEDY] if config.needs_greedy else [])]
        """The completions of a group: those to train on, and where the algorithm needs it a greedy one."""

    async def sample(
        self, group: Group, prompt: Prompt, version: int, attempt: int, came: Callable[[Rollout], None]
    ) -> None:
        """Fill a group; `came` hears of each completion, also of those that were given up ("abort") and do not join."""

        async def one(place: int) -> None:
            sampling = self.sampling.greedy() if place == GREEDY else self.sampling
            rollout = await self._rollout(group, prompt, place, sampling, version, attempt)
            if rollout.finish_reason != "abort":
                if place == GREEDY:
                    rollout.dropped, group.greedy = "greedy", rollout
                else:
                    group.rollouts.append(rollout)
            came(rollout)

        await together(map(one, self.places))

    async def evaluate(self, groups: Sequence[Group], prompts: Sequence[Prompt], version: int) -> None:
        """Sample and score num_generations_eval completions for each prompt, the greedy one where that is 1; what does not
        come is left out: no completion is no wrong one."""
        number = self.config.num_generations_eval
        sampling = self.sampling.greedy() if number == 1 else self.sampling

        async def one(group: Group, prompt: Prompt) -> None:
            asked = (self._rollout(group, prompt, i, sampling, version, 0) for i in range(number))
            group.rollouts += [r for r in await together(asked) if r.finish_reason != "abort"]
            if group.rollouts:
                await self.rewards.score(group)

        await together(one(group, prompt) for group, prompt in zip(groups, prompts, strict=True))

    async def score(self, group: Group) -> None:
        """Score a group, and its greedy completion alone."""
        group.rollouts.sort(key=lambda rollout: rollout.sample_index)
        await asyncio.gather(*(self.rewards.score(scored) for scored in (group, *greedy_groups([group]))))

    def enough(self, group: Group) -> bool:
        """Whether it has what its algorithm compares: two completions, or one and the greedy one."""
        fewest = min(2, self.config.num_generations)
        return len(group.rollouts) >= fewest and (group.greedy is not None or GREEDY not in self.places)

    async def _rollout(
        self, group: Group, prompt: Prompt, place: int, sampling: Sampling, version: int, attempt: int
    ) -> Rollout:
        seed = derive_seed(self.config.seed, group.group_id, prompt.prompt_id, place, attempt)
        sampling = self.turn.sampling(sampling, prompt)

        async def ask(token_ids: Sequence[int]) -> Sampled:
            return await self.sampler.sample(Request(token_ids, seed, sampling, version))

        return await self.episode.run(prompt, place, ask)


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once. With the first that fails, or when this is cancelled, the others end too."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
