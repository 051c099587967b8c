"""TRL's names of metrics beside ours: what callbacks and log lines of a script look for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TRLS_METRICS: dict[str, str] = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "rewards/<name>/mean": "reward/<name>/mean",
    "frac_reward_zero_std": "group/zero_std_frac",
    "completions/mean_length": "completion/length_mean",
    "completions/max_length": "completion/length_max",
    "completions/clipped_ratio": "completion/truncated_frac",
    "loss": "policy/loss",
    "kl": "policy/kl_ref",
    "entropy": "policy/entropy",
    "learning_rate": "policy/lr",
    "grad_norm": "policy/grad_norm",
    "clip_ratio/low_mean": "policy/clip_low",
    "clip_ratio/high_mean": "policy/clip_high",
    "clip_ratio/region_mean": "policy/clip_frac",
    "sampling/sampling_logp_difference/max": "mismatch/max_abs",
    "step_time": "time/step",
    "eval_reward": "eval/<name>/reward",
    "eval_completions/mean_length": "eval/<name>/completion_length",
    "eval_completions/clipped_ratio": "eval/<name>/truncated_frac",
    "<name>": "reward/<function>/<name>",  # what a reward function gave to log_metric
}
"""TRL's name -> ours. A name stands for itself in both."""
_OF_A_REWARD = {"mean", "latency_p99", "cost_total", "restarts", "misused_logs"}
"""What postrl itself says of a reward function: no metrics of its own."""


def _pattern(ours: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"<(\w+)>", r"(?P<\1>[^/]+)", ours))


_PATTERNS = [(_pattern(ours), trls) for trls, ours in TRLS_METRICS.items() if "<" in ours]
_PLAIN = {ours: trls for trls, ours in TRLS_METRICS.items() if "<" not in ours}


def trls_name(ours: str) -> str | None:
    """What TRL calls a metric of ours, or None where it has none like it."""
    if ours in _PLAIN:
        return _PLAIN[ours]
    for pattern, trls in _PATTERNS:
        if (found := pattern.fullmatch(ours)) and not (trls == "<name>" and found["name"] in _OF_A_REWARD):
            return trls.replace("<name>", found["name"])
    return None


def with_trls_names(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that have a value, by our names and by TRL's. A name of ours keeps its meaning."""
    known = {name: value for name, value in metrics.items() if value is not None}
    return {**{trls: value for name, value in known.items() if (trls := trls_name(name))}, **known}
