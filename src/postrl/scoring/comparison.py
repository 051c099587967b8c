"""What changes when completions are scored again: counts, means and the largest changes."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from postrl.rewards.score import Score
from postrl.scoring.groups import question
from postrl.types import Group, Rollout
from postrl.worker.informative import EQUAL

TOTAL = "reward"
"""The weighted sum, beside the rewards by name."""


@dataclass(frozen=True)
class Change:
    """A completion whose reward is another one now."""

    step: int
    prompt_id: str
    sample_index: int
    prompt: str
    completion: str
    before: float | None
    after: float | None
    status_before: str
    status_after: str

    @classmethod
    def of(cls, step: int, group: Group, old: Rollout, new: Rollout) -> Change:
        statuses = ("; ".join(rollout.statuses.values()) for rollout in (old, new))
        who = (group.prompt_id, old.sample_index, question(group), old.completion)
        return cls(step, *who, old.reward, new.reward, *statuses)

    @property
    def statuses(self) -> tuple[str, str]:
        return self.status_before, self.status_after

    @property
    def size(self) -> float:
        return abs((self.after or 0.0) - (self.before or 0.0))


@dataclass
class Scores:
    """The scores of one reward."""

    total: float = 0.0
    count: int = 0
    """Scores that are numbers."""
    statuses: Counter[str] = field(default_factory=Counter)

    def add(self, value: float | None, status: str = "") -> None:
        if value is not None:
            self.total += value
            self.count += 1
        if status:
            self.statuses[status] += 1

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


class Comparison:
    """What changed, added up group by group.

    Args:
        examples: how many of the largest changes to keep.
    """

    def __init__(self, examples: int = 5) -> None:
        self.before: dict[str, Scores] = {TOTAL: Scores()}
        self.after: dict[str, Scores] = {TOTAL: Scores()}
        self.completions = 0
        self.changed = 0
        """Completions whose weighted sum is another."""
        self.differing = 0
        """Completions with any score, status or sum that is another, or with other rewards."""
        self.failed = 0
        """New scores that are missing because a reward function failed."""
        self.left_out = 0
        """Completions of rows that none of the rewards is for."""
        self.changed_rewards: dict[str, tuple[str, str]] = {}
        """Rewards whose code or options are others: their versions, the run's first one that differs and the present one."""
        self.groups = 0
        self.group_changes: Counter[str] = Counter()
        self._examples: list[tuple[float, int, Change]] = []
        self._most, self._order = examples, itertools.count()

    @property
    def scores(self) -> dict[str, tuple[Scores | None, Scores | None]]:
        """Reward -> its scores before and after; None: it had none."""
        return {name: (self.before.get(name), self.after.get(name)) for name in [*self.before, *self.after]}

    @property
    def reproduced(self) -> bool:
        """Whether every score and status is what it was."""
        return self.completions > 0 and self.differing == 0

    @property
    def examples(self) -> list[Change]:
        """The largest changes, largest first; the earlier one of two that are equal."""
        return [change for _, _, change in sorted(self._examples, reverse=True)]

    def add(self, step: int, before: Group, after: Group) -> None:
        """Compare a group with itself, scored again; the rollouts are in the same order."""
        if not after.rewards:
            self.left_out += len(after.completions)
            return
        self.groups += 1
        for name, now in after.reward_versions.items():
            if (then := before.reward_versions.get(name, now)) != now:
                self.changed_rewards.setdefault(name, (then, now))
        for old, new in zip(before.completions, after.completions, strict=True):
            self._add(step, before, old, new)
        self.group_changes.update(
            group_changes([r.reward for r in before.rollouts], [r.reward for r in after.rollouts])
        )

    def _add(self, step: int, group: Group, old: Rollout, new: Rollout) -> None:
        for scores, rollout in ((self.before, old), (self.after, new)):
            scores[TOTAL].add(rollout.reward)
            for name, status in rollout.statuses.items():
                scores.setdefault(name, Scores()).add(rollout.rewards[name], status)
        self.completions += 1
        self.failed += sum(Score(new.rewards[name], status).failed for name, status in new.statuses.items())
        self.differing += (old.rewards, old.statuses, old.reward) != (new.rewards, new.statuses, new.reward)
        if old.reward != new.reward:
            self.changed += 1
            self._keep(Change.of(step, group, old, new))

    def _keep(self, change: Change) -> None:
        item = (change.size, -next(self._order), change)
        if len(self._examples) < self._most:
            heapq.heappush(self._examples, item)
        elif self._most:
            heapq.heappushpop(self._examples, item)


# -- what a group teaches ----------------------------------------------------------------------------------------------

GROUP_CHANGES = {
    "sign": "an advantage changes its sign",
    "order": "completions change their order",
    "flat": "rewards become equal: nothing to learn from any more",
    "no longer flat": "rewards are no longer equal",
}


def group_changes(before: Sequence[float | None], after: Sequence[float | None]) -> set[str]:
    """Which of GROUP_CHANGES happen to a group with these rewards, rollout by rollout.

    Advantages are the rewards minus the mean of the group's scored rollouts, divided by something positive: signs and
    order do not depend on what divides. A rollout without a score has advantage 0.
    """
    found = set()
    if [_sign(a) for a in _centred(before)] != [_sign(a) for a in _centred(after)]:
        found.add("sign")
    if _ordering(before) != _ordering(after):
        found.add("order")
    if _flat(before) != _flat(after):
        found.add("flat" if _flat(after) else "no longer flat")
    return found


def _flat(rewards: Sequence[float | None]) -> bool:
    scored = [reward for reward in rewards if reward is not None]
    return len(scored) < 2 or max(scored) - min(scored) <= EQUAL


def _centred(rewards: Sequence[float | None]) -> list[float]:
    scored = [reward for reward in rewards if reward is not None]
    if _flat(rewards):
        return [0.0] * len(rewards)
    mean = sum(scored) / len(scored)
    return [0.0 if reward is None else reward - mean for reward in rewards]


def _sign(x: float) -> int:
    return (x > EQUAL) - (x < -EQUAL)


def _ordering(rewards: Sequence[float | None]) -> list[int]:
    """For each pair of rollouts, which is the better one."""
    advantages = _centred(rewards)
    return [_sign(a - b) for a, b in itertools.combinations(advantages, 2)]
