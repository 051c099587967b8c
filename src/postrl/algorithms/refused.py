"""Combinations of settings that cannot be right, each with the settings named and the way out.

They are read from any object that has the settings as attributes: the configuration, before a process starts, and the
resolved algorithm. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from postrl.algorithms.presets import OWNED, PRESETS, Preset

Problem = tuple[str, str] | None
"""What is wrong, and the way out; None: nothing."""


def problem(settings: Any, preset: Preset) -> Problem:
    """The first combination among `settings` that `preset` cannot be right with."""
    return next((found for find in CHECKS if (found := find(settings, preset))), None)


def flag(name: str) -> str:
    """The flag of a setting: `max_steps` is `--max-steps`."""
    return "--" + name.replace("_", "-")


def _one_update(s: Any, p: Preset) -> Problem:
    if p.one_update and s.num_iterations * s.minibatches > 1:
        return (
            f"algorithm = {p.name} takes its batch as drawn from the policy it trains, and num_iterations x minibatches = "
            f"{s.num_iterations} x {s.minibatches} would train on it {s.num_iterations * s.minibatches} times",
            "set --num-iterations 1 --minibatches 1",
        )
    return None


def _aggregation(s: Any, p: Preset) -> Problem:
    if p.loss == "gspo" and s.loss_aggregation != "seq_mean_token_mean":
        return (
            f"algorithm = {p.name} has one ratio for a whole completion, and loss_aggregation = {s.loss_aggregation} would "
            "weigh it by length",
            "set --loss-aggregation seq_mean_token_mean",
        )
    return None


def _wide_clip(s: Any, p: Preset) -> Problem:
    upper = s.epsilon if s.epsilon_high is None else s.epsilon_high
    if p.loss == "gspo" and max(s.epsilon, upper) >= 0.01 and not s.allow_wide_clip:
        return (
            f"epsilon = {s.epsilon:g}, epsilon_high = {upper:g} for algorithm = {p.name}: the mean ratio of a completion "
            "moves by about 0.0003, so nothing would ever be clipped",
            "set --epsilon 0.0003 --epsilon-high 0.0004, or --allow-wide-clip if you mean it",
        )
    return None


def _dual_clip(s: Any, p: Preset) -> Problem:
    upper = s.epsilon if s.epsilon_high is None else s.epsilon_high
    if s.dual_clip is not None and not 1 + upper < s.dual_clip < math.inf:
        return (
            f"dual_clip is {s.dual_clip:g}, and the trust region goes up to 1 + epsilon_high = {1 + upper:g}",
            "set --dual-clip above that (3 is usual), or leave it out",
        )
    return None


def _counted_twice(s: Any, p: Preset) -> Problem:
    if s.proximal == "sampler" and s.is_correction != "none":
        return (
            f"proximal = sampler takes ratios against the sampler already, and is_correction = {s.is_correction} would count "
            "its difference from the learner a second time",
            "set --is-correction none, or --proximal learner",
        )
    return None


def _no_ratio(s: Any, p: Preset) -> Problem:
    if p.one_update and s.proximal == "sampler":
        return (
            f"proximal = sampler is what ratios are taken against, and algorithm = {p.name} has none: it takes its batch as "
            "drawn from the policy it trains",
            "set --proximal learner",
        )
    return None


def _kl(s: Any, p: Preset) -> Problem:
    if s.kl_placement == "loss" and s.kl_estimator == "k1":
        return (
            "kl_estimator = k1 with kl_placement = loss: the gradient of logp - ref is that of logp, which averages to 0 "
            "over sampled tokens, so a larger beta would add noise and hold nothing back",
            "set --kl-estimator k3_unbiased (or k2), or --kl-placement reward",
        )
    if s.kl_placement == "reward" and s.kl_estimator not in (None, "k1"):
        return (
            f"kl_estimator = {s.kl_estimator} with kl_placement = reward: a penalty on rewards needs the unbiased value, k1",
            "set --kl-estimator k1, or --kl-placement loss",
        )
    return None


def _two_lambdas(s: Any, p: Preset) -> Problem:
    if s.length_adaptive_alpha is not None and s.gae_lambda != 1.0:
        return (
            f"length_adaptive_alpha = {s.length_adaptive_alpha:g} sets the lambda of each completion by its length, and "
            f"gae_lambda = {s.gae_lambda:g} would have no effect",
            "leave --gae-lambda out, or use --algorithm ppo, whose lambda is the same for all",
        )
    return None


def _lambda_of_zero(s: Any, p: Preset) -> Problem:
    alpha, longest = s.length_adaptive_alpha, s.max_completion_length
    if alpha is not None and longest and alpha * longest <= 1:
        return (
            f"length_adaptive_alpha = {alpha:g} with max_completion_length = {longest}: lambda is 1 - 1 / (alpha * length), "
            f"which is 0 up to {1 / alpha:g} tokens, so that of every completion only the last token would see the reward",
            f"set --length-adaptive-alpha {20 / longest:.2g} (lambda is 0.95 for the longest), or --max-completion-length higher",
        )
    return None


def _punished_baseline(s: Any, p: Preset) -> Problem:
    if "greedy" in p.needs and s.overlong_buffer:
        return (
            f"overlong_buffer = {s.overlong_buffer:g} punishes long completions, and algorithm = {p.name} compares them with "
            "greedy ones that it would not punish",
            "use --reward soft_overlong, which scores both, or leave --overlong-buffer out",
        )
    return None


def _several_rewards(s: Any, p: Preset) -> Problem:
    if s.multi_objective_aggregation == "normalize_then_sum" and s.scale_rewards != "group":
        return (
            f"multi_objective_aggregation = normalize_then_sum divides each reward by its deviation in the group, and "
            f"scale_rewards = {s.scale_rewards}",
            "set --scale-rewards group, or --multi-objective-aggregation sum_then_normalize",
        )
    return None


def _without_meaning(s: Any, p: Preset) -> Problem:
    if p.reads is None:
        return None
    for f in fields(s):
        default = f.default if f.default is not MISSING else None
        if f.name in OWNED and f.name not in p.reads and getattr(s, f.name) != default:
            readers = [row.name for row in PRESETS.values() if f.name in (row.reads or ())]
            return (
                f"{f.name} = {getattr(s, f.name)} has no meaning for algorithm = {p.name}",
                f"remove {flag(f.name)}, or use --algorithm {' or '.join(readers)}",
            )
    return None


CHECKS: tuple[Callable[[Any, Preset], Problem], ...] = (
    _one_update, _aggregation, _wide_clip, _dual_clip, _counted_twice, _no_ratio, _kl, _two_lambdas, _lambda_of_zero,
    _punished_baseline, _several_rewards, _without_meaning,
)  # fmt: skip
