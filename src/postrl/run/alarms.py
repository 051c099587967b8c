"""What is to be said of a run that goes on and learns nothing: from the metrics of its steps to lines for people. Pure.

    alarms = Alarms(config)
    alarms.at_start()        lines, before the first step
    alarms.see(row)          lines, after each step; each is said once, and again when its cause is another
    nothing_learned(config, rows)    one line on a whole run, empty where it learned something

A row is a line of metrics.jsonl. A check looks at the rows of a window and gives the kind of what it found and its line;
CHECKS has them in the order in which they are said: causes first.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postrl.config import GRPOConfig

Row = Mapping[str, Any]
Alarm = tuple[str, str] | None
"""(kind with its cause, line)."""

STEPS, GROUPS = 3, 6
"""What a window holds at least: fewer steps or prompts may be all alike by chance."""
NEARLY_ALL = 0.9
"""Share of groups, or of completions that were cut, from which it is no chance and no start of a run."""
EQUAL = 1e-8
"""Rewards that differ by no more are equal, as in the advantages."""
MOST = 0.5
"""Share of completions without an answer from which the reward sees too little."""


class Alarms:
    """What has been said of a run, and its last steps."""

    def __init__(self, config: GRPOConfig) -> None:
        self.config = config
        self._size = max(STEPS, math.ceil(GROUPS / config.prompts_per_step))
        self._rows: deque[Row] = deque(maxlen=self._size)
        self._said: set[str] = set()

    def at_start(self) -> list[str]:
        """What the settings alone tell."""
        return list(_still(self.config))

    def see(self, row: Row) -> list[str]:
        """The lines to say after a step with these metrics."""
        self._rows.append(row)
        if len(self._rows) < self._size:
            return []
        when = f"in the last {self._size} steps"
        found = [problem for look in CHECKS if (problem := look(self.config, list(self._rows), when))]
        new = [(kind, line) for kind, line in found if kind not in self._said]
        self._said |= {kind for kind, _ in new}
        return [line for _, line in new]


def nothing_learned(config: GRPOConfig, rows: Sequence[Row]) -> str:
    """One line on a run whose steps all taught nothing, with the cause; empty where one of them did."""
    steps = [row for row in rows if row.get("step", 0) > 0 and not row.get("critic/warmup")]
    if not steps or not all(_taught_nothing(row) for row in steps):
        return ""
    when = f"in {len(steps)} step{'s' * (len(steps) > 1)}"
    causes = [line for look in CHECKS if (problem := look(config, steps, when)) for line in problem[1:]]
    why = next(iter([*_still(config), *reversed(causes)]), f"the gradient was 0 {when}")
    return f"nothing was learned: {why}"


def _taught_nothing(row: Row) -> bool:
    """Whether a step left the policy as it was, or moved it by nothing that its rewards said."""
    still = not row.get("policy/grad_norm") or row.get("policy/lr") == 0
    return (still and not row.get("policy/nonfinite")) or row.get("group/zero_std_frac") == 1 or _unscored_step(row)


# -- the checks --------------------------------------------------------------------------------------------------------


def _still(c: GRPOConfig) -> Iterator[str]:
    if c.learning_rate == 0:
        yield "learning_rate is 0, so the policy stays as it is (--learning-rate)"


def _truncated(c: GRPOConfig, rows: Sequence[Row], when: str) -> Alarm:
    share = _mean(rows, "completion/truncated_frac")
    if share is None or share < NEARLY_ALL:
        return None
    left_out = ", and mask_truncated_completions leaves them out of the loss" * c.mask_truncated_completions
    return "truncated", (
        f"{share:.0%} of the completions {when} were cut at max_completion_length = {c.max_completion_length}{left_out}: raise "
        "--max-completion-length, or ask for shorter answers (--system-prompt); --stop TEXT ends a completion earlier"
    )


def _no_answer(c: GRPOConfig, rows: Sequence[Row], when: str) -> Alarm:
    for name, share in _statuses(rows, "no_answer").items():
        if share > MOST:
            return f"no_answer:{name}", (
                f"the reward {name} found no answer in {share:.0%} of the completions {when}: read some in the run's rollouts; "
                "say in the prompt (--system-prompt) how an answer is to be marked, or give them more room "
                "(--max-completion-length)"
            )
    return None


def _unscored(c: GRPOConfig, rows: Sequence[Row], when: str) -> Alarm:
    if not all(map(_unscored_step, rows)):
        return None
    return "unscored", (
        f"no completion {when} could be scored, so there is nothing to train on: the rewards failed or gave None; see "
        "logs/rewards.log in the run folder, and try them with `postrl reward test`"
    )


def _equal(c: GRPOConfig, rows: Sequence[Row], when: str) -> Alarm:
    if all(map(_unscored_step, rows)):
        return None
    share, constant = _mean(rows, "group/zero_std_frac"), _constant(rows)
    if share is None:  # an algorithm that compares no groups
        if constant is None:
            return None
        what = f"all completions {when} got the same reward"
    elif share >= NEARLY_ALL:
        what = f"{share:.0%} of the groups {when} taught nothing: the completions of a prompt got the same reward"
    else:
        return None
    cause, advice = _why_equal(c, rows, constant)
    moved = [name for name in ("beta", "entropy_coef") if getattr(c, name)]
    by = f"; what moves the policy is {' and '.join(moved)}" if moved and share == 1 else ""
    return f"equal:{cause}", f"{what}{by}. {advice}"


def _constant(rows: Sequence[Row]) -> float | None:
    """The reward that every completion got; None where they differ."""
    if None in (_mean(rows, "reward/std"), _mean(rows, "reward/mean")):
        return None
    means = [row["reward/mean"] for row in rows]
    alike = max(row["reward/std"] for row in rows) <= EQUAL and max(means) - min(means) <= EQUAL
    return float(means[0]) if alike else None


def _why_equal(c: GRPOConfig, rows: Sequence[Row], constant: float | None) -> tuple[str, str]:
    """(cause, what to do) where rewards are alike; `constant`: what every completion got."""
    if c.reward_weights and not any(c.reward_weights):
        return "weights", "reward_weights are all 0"
    right = _statuses(rows, "correct").values()
    if (right and min(right) == 1) or (not right and constant == 1):
        return (
            "solved",
            f"{'All are right' if right else 'All got 1'}: this is solved, so train on harder prompts, or stop here",
        )
    if (right and max(right) == 0) or (not right and constant == 0):
        return "hard", (
            f"{'None is right' if right else 'All got 0'}: the prompts are too hard for the model (try easier ones, a larger "
            "model, more --num-generations), or the reward does not see the answers (`postrl reward test`)"
        )
    if constant is not None:
        return "constant", (
            f"All got {constant:g}: does the reward look at the completion? `postrl reward test` shows what it gives"
        )
    replace = "" if c.dynamic_sampling else "--dynamic-sampling trains on others in their place; "
    return "mixed", (
        f"Prompts are too easy or too hard: {replace}more --num-generations and a higher --temperature make completions differ"
    )


def _no_gradient(c: GRPOConfig, rows: Sequence[Row], when: str) -> Alarm:
    """The rewards differ, and nothing comes of it."""
    explained = any(row.get("critic/warmup") or row.get("policy/nonfinite") or _unscored_step(row) for row in rows)
    if explained or _equal(c, rows, when):
        return None
    norms = [row.get("policy/grad_norm") for row in rows]
    if all(norm is None for norm in norms):
        cut = c.mask_truncated_completions and (_mean(rows, "completion/truncated_frac") or 0) == 1
        why = (
            "all were cut at max_completion_length (mask_truncated_completions)"
            if cut
            else "none was left by the filters"
        )
        return "nothing_left", f"no completion {when} was trained on: {why}"
    if any(norm is None or norm != 0 for norm in norms):
        return None
    return "no_gradient", f"the gradient was exactly 0 {when} although rewards differ: {_why_no_gradient(c, rows)}"


def _why_no_gradient(c: GRPOConfig, rows: Sequence[Row]) -> str:
    if _mean(rows, "group/too_small") == 1:
        return "no prompt has two completions that were scored (the others got None)"
    if _mean(rows, "mismatch/rejected_frac") == 1:
        return f"is_correction = {c.is_correction} rejects every token: sampler and learner do not agree (mismatch/kl)"
    return "no weight that it could change is trained, or every token is clipped (policy/clip_frac)"


CHECKS: tuple[Callable[[GRPOConfig, Sequence[Row], str], Alarm], ...] = (
    _truncated, _no_answer, _unscored, _equal, _no_gradient,
)  # fmt: skip


# -- reading rows ------------------------------------------------------------------------------------------------------


def _mean(rows: Sequence[Row], name: str) -> float | None:
    """Of a metric that every row has; else None."""
    values = [row.get(name) for row in rows]
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if numbers and len(numbers) == len(values) else None


def _unscored_step(row: Row) -> bool:
    return row.get("reward/mean") is None and bool(row.get("group/unscored"))


def _statuses(rows: Sequence[Row], status: str) -> dict[str, float]:
    """Reward function -> mean share of this verdict; of those that give verdicts at all."""
    names = {
        match[1]
        for row in rows
        for key in row
        if (match := re.fullmatch(r"reward/(.+)/status/(?:correct|wrong|no_answer)", key))
    }
    return {
        name: statistics.fmean(row.get(f"reward/{name}/status/{status}") or 0.0 for row in rows)
        for name in sorted(names)
    }
