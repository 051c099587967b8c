"""Groups between admission and training, with the bound on staleness. Pure bookkeeping: no clock, no tasks, no sockets.

Words: P groups make a batch; the batch of *phase* A is the one that the learner trains while it holds weight version A; a
group admitted while the samplers serve version v has no token older than v, so it may be trained up to phase v + N, with
N = max_staleness. Two rules keep the bound for every group, in any order of events:

    admission   the groups not yet taken, and one more, fit into the phases A .. v + N:  untaken + 1 <= P (v + N - A + 1)
    assembly    what a batch leaves behind still fits: for every deadline D, at most P (D - A) groups are left that must be
                trained by phase D. Taking the oldest finished groups first serves all D at once.

So at N = 0 exactly one batch is admitted after each publication and none before: the synchronous loop. The capacity rule
alone, as other systems have it, bounds the average and not the straggler.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field

from postrl.types import Group, Prompt


class Stage(enum.Enum):
    """How far a group is."""

    SAMPLING = enum.auto()
    SCORING = enum.auto()
    """It waits for its rewards."""
    ALIKE = enum.auto()
    """Scored, and all alike: another prompt takes its place, unless that was done too often for this batch."""
    FINISHED = enum.auto()
    """Scored, and may be trained on."""


@dataclass(eq=False)
class Entry:
    """One group on its way."""

    group: Group
    prompt: Prompt
    version: int
    """What the samplers served when it was admitted: the oldest weights that a token of it may come from."""
    attempt: int = 0
    """How often it was dropped and begun anew; part of the seeds."""
    failures: int = 0
    """How often of these its completions could not be had."""
    stage: Stage = Stage.SAMPLING
    cut: bool = False
    """Its sampling was ended early: what is there is scored, and what it lacks was counted as dropped."""
    task: asyncio.Task[None] | None = None
    """What samples and scores it."""
    sampling: asyncio.Timeout | None = None
    """Around its sampling, while that goes on; rescheduled to end it."""

    @property
    def finished(self) -> bool:
        return self.stage is Stage.FINISHED

    @property
    def open(self) -> bool:
        """Whether it is still sampled or scored."""
        return self.stage in (Stage.SAMPLING, Stage.SCORING)


@dataclass(eq=False)
class Buffer:
    """The groups that were admitted and not yet taken.

    Args:
        batch: groups of a batch (P).
        max_staleness: N, 0 or more.
        size: most groups it holds; None: as many as the staleness allows. At least `batch`.
    """

    batch: int
    max_staleness: int
    size: int | None = None
    version: int = 0
    """What the samplers serve."""
    phase: int = 0
    """Version that the learner holds when it trains the next batch."""
    entries: list[Entry] = field(default_factory=list)
    """In the order of admission."""

    # -- admission -----------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many groups may be admitted now."""
        capacity = self.batch * (self.version + self.max_staleness - self.phase + 1)
        if self.size is not None:
            capacity = min(capacity, self.size)
        return max(0, capacity - len(self.entries))

    def admit(self, entry: Entry) -> None:
        """Add a group; its version is that of the samplers."""
        if not self.room():
            raise ValueError(f"group {entry.group.group_id} was admitted to a full buffer")
        entry.version = self.version
        self.entries.append(entry)

    def remove(self, entry: Entry) -> None:
        """It was dropped."""
        self.entries.remove(entry)

    # -- assembly ------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> list[Entry]:
        """Oldest weights first, then in the order of admission."""
        return sorted((e for e in self.entries if e.finished), key=lambda e: e.version)

    def full(self) -> bool:
        """Whether a batch could be taken, if nothing had a deadline."""
        return sum(e.finished for e in self.entries) >= self.batch

    def behind(self) -> bool:
        """Whether a batch taken now would leave unfinished groups that can no longer all be trained in time."""
        return any(self._missing(deadline) > 0 for deadline in {self.deadline(entry) for entry in self.entries})

    def _missing(self, deadline: int) -> int:
        """Finished groups that the next batch lacks to leave no more than fit into the phases up to `deadline`."""
        due = [e for e in self.entries if self.deadline(e) <= deadline]
        finished = sum(e.finished for e in due)
        left = len(due) - min(self.batch, finished)
        return min(left - self.batch * max(0, deadline - self.phase), len(due) - finished)

    def deadline(self, entry: Entry) -> int:
        """The last phase that may train it."""
        return entry.version + self.max_staleness

    def due(self) -> list[Entry]:
        """Unfinished groups whose last chance is the next batch."""
        return [e for e in self.entries if not e.finished and self.deadline(e) <= self.phase]

    def take(self) -> list[Entry]:
        """The batch of this phase, the oldest finished groups, in the order of the data; the phase is over with it."""
        taken = self.finished[: self.batch]
        if len(taken) < self.batch:
            raise ValueError(f"a batch of {self.batch} was taken from {len(taken)} finished groups")
        for entry in taken:
            self.entries.remove(entry)
        self.phase += 1
        return sorted(taken, key=lambda e: e.group.group_id)

    def stale(self) -> list[Entry]:
        """Groups that no batch may train any more: to be removed, counted and begun anew."""
        return [e for e in self.entries if self.deadline(e) < self.phase]

    def describe(self, completions: int, samplers: str) -> str:
        """How far the groups are, in words.

        Args:
            completions: of a group.
            samplers: what they are doing.
        """
        sampling = [entry.group for entry in self.entries if entry.stage is Stage.SAMPLING]
        scoring = sum(entry.stage is Stage.SCORING for entry in self.entries)
        parts = [f"{len(self.finished)} of {self.batch} groups are finished"]
        if sampling:
            missing = sum(completions - len(group.completions) for group in sampling)
            parts.append(f"{len(sampling)} are being sampled ({missing} completions are missing; {samplers})")
        if scoring:
            parts.append(f"{scoring} wait for their rewards")
        return ", ".join(parts)
