"""Every metric's name and meaning, and `metrics.jsonl`.

A metric is a sum and a count until it is written, so that means over ranks and micro-batches are exact: never a mean
of means. `RUN/metrics.jsonl` has one line a step: {"step": 3, "reward/mean": 0.58, ...}; what is not finite is null.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from postrl.errors import DataError
from postrl.host.files import write_whole
from postrl.types import Rollout

METRICS: dict[str, str] = {
    "step": "Steps finished, from 1.",
    "epoch": "Passes over the prompts so far, as a fraction.",
    # -- what the policy earned and wrote
    "reward/mean": "Mean of the weighted sum of the rewards, over completions that could be scored.",
    "reward/std": "Standard deviation of the same.",
    "reward/<name>/mean": "Mean of one reward function, over completions that it could score; with dynamic_sampling also those that were replaced.",
    "reward/<name>/status/<status>": "Share of completions with this verdict of that reward: correct, wrong, no_answer, timeout, ...",
    "reward/<name>/latency_p99": "Seconds that 99 % of its calls stayed under.",
    "reward/<name>/cost_total": "What all its calls have cost since the rollout worker was started, where it logs a metric `cost` (judge with prices).",
    "reward/<name>/restarts": "Times, since the start, that its process was started anew because its memory had grown by 2 GiB.",
    "reward/<name>/misused_logs": "Calls of log_extra and log_metric, since the start, that could not be used; see logs/rewards.log.",
    "reward/<name>/<metric>": "What the function gave to log_metric: the mean over its calls in the step.",
    "reward/overlong_penalty": "Mean of what soft overlong punishment takes off a completion's reward (only with overlong_buffer).",
    "reward/kl_ref": "Mean log-ratio to the reference on trained tokens; beta times it is taken off their rewards (kl_placement reward).",
    "group/zero_std_frac": "Share of groups whose rewards are all equal: they teach nothing.",
    "group/too_small": "Share of groups with fewer than two scored completions, left out.",
    "group/unscored": "Groups of which no completion could be scored, dropped.",
    "reward/greedy_mean": "Mean reward of the prompts' greedy completions (remax): the baseline.",
    "completion/length_mean": "Mean tokens of a completion.",
    "completion/length_max": "Tokens of the longest completion.",
    "completion/truncated_frac": "Share of completions cut at max_completion_length.",
    # -- the update
    "policy/loss": "The loss that was minimised, over the step's optimizer steps.",
    "policy/entropy": "Mean entropy of the policy's next-token distribution, in nats, on the tokens that went through the update: completions without advantage do not, unless beta or entropy_coef asks for them. So are the clip, kl_prox and mismatch metrics.",
    "policy/kl_ref": "KL estimate to the initial policy, averaged as the loss is (only with beta above 0 in the loss).",
    "policy/kl_prox": "Mean KL estimate to the policy that the batch was assessed with, in nats a token.",
    "policy/clip_frac": "Share of trained tokens that were clipped: their ratio left the trust region, and they have no gradient (cispo: their weight is held at a cap, and they keep it).",
    "policy/clip_low": "The share that was clipped at 1 - epsilon.",
    "policy/clip_high": "The share that was clipped at 1 + epsilon_high.",
    "policy/clip_dual": "The share that was clipped at dual_clip (only with it).",
    "policy/nll": "Mean negative log-likelihood of the tokens of right answers (only with nll_coef).",
    "policy/grad_norm": "Norm of the gradient before it is scaled down to max_grad_norm.",
    "policy/lr": "Learning rate of the step's last optimizer step.",
    "policy/nonfinite": "Optimizer steps skipped because loss or gradient was not finite.",
    "critic/loss": "Loss of the value function.",
    "critic/value": "Mean value that it gives trained tokens.",
    "critic/grad_norm": "Norm of the critic's gradient before it is scaled down to max_grad_norm.",
    "critic/lr": "Learning rate of the critic's last optimizer step of the step.",
    "critic/warmup": "1 in steps that train the critic alone (critic_warmup_steps), else 0.",
    "critic/explained_variance": "Share of the returns' variance that the value function predicts.",
    "critic/clip_frac": "Share of trained tokens whose value left value_clip around its old one, and that have no gradient.",
    "critic/nonfinite": "Optimizer steps of the critic skipped because loss or gradient was not finite.",
    # -- sampler against learner
    "mismatch/kl": "Mean KL estimate between sampler and learner under the same weights, in nats a token.",
    "mismatch/k3": "The same by an estimate that is never negative.",
    "mismatch/max_abs": "Largest difference of a token's log-probability between sampler and learner.",
    "mismatch/ess": "Effective sample size of the importance weights, as a share of the tokens.",
    "mismatch/missing_logps": "Share of trained tokens for which the sampler gave no log-probability (ratio 1 is used).",
    "mismatch/truncated_frac": "Share of trained tokens whose importance weight was truncated: the raw ratio left the bounds of is_correction.",
    "mismatch/rejected_frac": "Share of trained tokens that got weight 0 for the same reason; they still count in the loss's average.",
    # -- the rollouts
    "rollout/staleness_mean": "Mean weight versions between sampling and training of a completion.",
    "rollout/staleness_max": "The largest of them.",
    "rollout/optimizer_steps_behind": "Mean optimizer steps between sampling and training.",
    "rollout/dropped_stale": "Completions dropped because they were too old, since the start.",
    "rollout/dropped_error": "Completions dropped because they could not be had, since the start.",
    "rollout/dropped_uninformative": "Completions dropped because those of their prompt were all alike (dynamic_sampling), since the start.",
    "rollout/refills": "Batches' worth of such groups that were replaced for this batch; max_refills bounds it.",
    "rollout/uninformative": "Groups whose completions are all alike and that are trained on all the same, because max_refills was used up.",
    "rollout/dropped_length_mean": "Mean tokens of the finished completions that were dropped because of their age or an error; far above completion/length_mean: the run trains on what is short.",
    "rollout/worker_restarts": "Times, since the start, that the rollout worker was lost and began again.",
    "rollout/reissued": "Requests asked for again, since the start, because they were lost or too slow.",
    "rollout/queue_groups": "Finished groups that wait to be trained on.",
    "rollout/in_flight_groups": "Groups that are being generated or scored.",
    "rollout/kv_cache_usage": "Share of the servers' key-value cache in use.",
    "rollout/preemptions": "Requests that the servers had to put back for lack of cache.",
    # -- weights and time
    "weights/version": "Weight version that trained this step: completed update phases before it.",
    "weights/push_s": "Seconds to hand the new weights to every sampler.",
    "weights/canary": "Largest difference between a server's and the learner's change of log-probability in the last check.",
    "time/step": "Seconds of the whole step.",
    "time/generate": "Seconds the learner waited for, or spent on, completions.",
    "time/score": "Seconds of reward functions that generation did not hide.",
    "time/assess": "Seconds of forward passes before the update.",
    "time/update": "Seconds of loss, backward and optimizer.",
    "time/sync": "Seconds of weight sync.",
    "time/wait_for_rollouts": "Seconds the learner stood still for want of rollouts.",
    "time/samplers_idle": "Seconds the samplers stood still.",
    "throughput/rollout_tokens_per_s": "Completion tokens sampled per second of generation.",
    "throughput/train_tokens_per_s": "Prompt and completion tokens trained on per second of the update.",
    "memory/peak_gb": "Largest memory of a trainer rank so far, in GB: of the GPU, on CPUs of the process.",
    "tokens/prompt": "Prompt tokens of the step.",
    "tokens/completion": "Completion tokens of the step.",
    # -- evaluation
    "eval/<dataset>/missing_frac": "Share of the prompts whose completion could not be had: left out of the other numbers.",
    "eval/<dataset>/<metric>": "A metric of the evaluation set: reward, completion_length, truncated_frac; one greedy completion a prompt.",
}
"""Name -> meaning. `<...>` stands for one name, such as a reward function's; `<metric>` for a whole metric name."""


def meaning(name: str) -> str | None:
    """What a metric means, or None when no row of METRICS describes it."""
    if name in METRICS:
        return METRICS[name]
    return next((text for pattern, text in METRICS.items() if "<" in pattern and _matches(pattern, name)), None)


def _matches(pattern: str, name: str) -> bool:
    regex = "".join(
        r".+" if part == "<metric>" else r"[^/]+" if part.startswith("<") else re.escape(part)
        for part in re.split(r"(<[^>]+>)", pattern)
    )
    return re.fullmatch(regex, name) is not None


def rollout_summary(rollouts: Sequence[Rollout], updates: int = 1) -> dict[str, float]:
    """Rewards, lengths and staleness of the rollouts of a step; `updates`: optimizer steps of a phase."""
    if not rollouts:
        return {}
    rewards = [r.reward for r in rollouts if r.reward is not None]
    lengths = [len(r.completion_ids) for r in rollouts]
    staleness = [r.staleness for r in rollouts]
    return {
        "reward/mean": statistics.fmean(rewards) if rewards else math.nan,
        "reward/std": statistics.pstdev(rewards) if rewards and all(map(math.isfinite, rewards)) else math.nan,
        "completion/length_mean": statistics.fmean(lengths),
        "completion/length_max": float(max(lengths)),
        "completion/truncated_frac": statistics.fmean(r.finish_reason == "length" for r in rollouts),
        "rollout/staleness_mean": statistics.fmean(staleness),
        "rollout/staleness_max": float(max(staleness)),
        "rollout/optimizer_steps_behind": updates * statistics.fmean(staleness),
        "tokens/prompt": float(sum(len(r.prompt_ids) for r in rollouts)),
        "tokens/completion": float(sum(lengths)),
    }


# -- metrics.jsonl ---------------------------------------------------------------------------------------------------


class MetricsWriter:
    """Appends one JSON line a step to `path`. A line reaches the file whole, in one write."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, step: int, metrics: Mapping[str, float | None]) -> dict[str, float | None]:
        """Append a line; returns what it holds. Values that are not finite become null."""
        row = {"step": step, **{name: _finite(value) for name, value in metrics.items() if name != "step"}}
        line = json.dumps(row) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if os.write(descriptor, line.encode()) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(descriptor)
        return row

    def cut_after(self, step: int) -> int:
        """Drop the lines of later steps, and a last line that was cut short; returns how many went. For resuming."""
        if not self.path.exists():
            return 0
        lines = self.path.read_text(encoding="utf-8").splitlines()
        kept = [row for row in map(_parse, lines) if row is not None and row["step"] <= step]
        write_whole(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        return len(lines) - len(kept)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, oldest first. A last line that was cut short is left out.

    Raises:
        DataError: the file is missing, or another line is not a metrics row.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}", hint="give the folder of a run that has finished a step"
        ) from error
    rows = [_parse(line) for line in lines]
    if rows and rows[-1] is None:
        rows.pop()
    good = [row for row in rows if row is not None]
    if len(good) < len(rows):
        raise DataError(f"{path}: line {rows.index(None) + 1} is not a metrics row", hint="remove the line")
    return good


def _parse(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _finite(value: Any) -> float | None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, int) else float(value)
