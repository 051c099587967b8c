"""One score and how it came about."""

from __future__ import annotations

from dataclasses import dataclass

STATUSES = frozenset(
    {
        "correct",
        "wrong",
        "no_answer",
        "format_error",
        "timeout",
        "resource",
        "crashed",
        "gold_unscorable",
        "scored",
        "none",
        "infra_error",
    }
)


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward function says about one completion.

    A built-in returns a list of these; a user function may, and otherwise its numbers become `scored` and its
    `None`s `none`.
    """

    value: float | None
    """The reward; None: unscorable, left out of the group's mean and standard deviation."""
    status: str
    """One of STATUSES. `infra_error`: the function raised, hung, died or returned what is not a number."""

    @property
    def failed(self) -> bool:
        """Whether it counts against `reward_error_budget`: the machinery failed, not the completion."""
        return self.status == "infra_error" or (self.status == "timeout" and self.value is None)
