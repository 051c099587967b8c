"""Groups on their way to the learner: made, checked, and left out with a reason."""

from __future__ import annotations

from collections.abc import Sequence

from postrl.errors import ServerError
from postrl.types import Group, Prompt

MAX_MISSING_LOGPS = 0.01
"""Share of tokens without a sampler log-prob above which a batch is refused."""


def new_group(group_id: int, prompt: Prompt) -> Group:
    """The group of a prompt, still without rollouts."""
    return Group(prompt.prompt_id, group_id, prompt.text, prompt.messages, prompt.columns, [], prompt.rewards)


def mark_dropped(group: Group, why: str) -> None:
    """None of its completions is trained on."""
    for rollout in group.rollouts:
        rollout.dropped = why


def why_dropped(group: Group) -> str | None:
    """Why a whole group is not trained on; None when some of it is."""
    reasons = {rollout.dropped for rollout in group.rollouts}
    return reasons.pop() if len(reasons) == 1 else None


def drop_unscored(groups: Sequence[Group]) -> int:
    """Leave groups out of which no completion could be scored: they are stored, not trained on. Returns how many."""
    unscored = [group for group in groups if all(rollout.reward is None for rollout in group.rollouts)]
    for group in unscored:
        mark_dropped(group, "unscored")
    return len(unscored)


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
