"""Does the asynchronous loop learn as the synchronous one does? Three seeds each, after equal numbers of rollouts.

    python benchmarks/async_learning.py                    # about an hour on 2 cores
    python benchmarks/async_learning.py --seeds 1 --steps 8
    python benchmarks/async_learning.py --keep DIR --steps 16    # runs that are there already go on to step 16

SmolLM2-135M learns one-digit additions (`arithmetic`) with a real vLLM server, with max_staleness 0 and 2. Prints the mean
reward of the last three steps of each run, and what the stored rollouts say about staleness and in-flight updates. The
server runs 8 completions at a time, so that generation takes about as long as training: left to itself it is twice as fast
here, every completion ends before the next push, and nothing would be in flight.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from postrl.rollout.store import read_rollouts, stored_steps
from postrl.run.metrics import read_metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="steps of 64 completions")
    parser.add_argument("--staleness", type=int, default=2, help="max_staleness of the asynchronous runs")
    parser.add_argument("--keep", metavar="DIR", help="keep the runs here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="postrl-bench-") as folder:
        place = Path(args.keep or folder)
        found: dict[int, list[dict[str, Any]]] = {0: [], args.staleness: []}
        for seed in range(args.seeds):
            for staleness in found:
                found[staleness].append(run(place / f"seed{seed}-staleness{staleness}", seed, staleness, args.steps))
                print(json.dumps({"seed": seed, "max_staleness": staleness, **found[staleness][-1]}), flush=True)
    means = {staleness: statistics.fmean(r["last"] for r in runs) for staleness, runs in found.items()}
    print(
        f"\nmean reward of the last three steps, {args.seeds} seeds: {means} (to reach: both 0.6, less than 0.1 apart)"
    )


def run(folder: Path, seed: int, staleness: int, steps: int) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "postrl", "grpo", "--model", "smollm2-135m", "--dataset", "arithmetic", "--engine", "vllm",
        "--max-staleness", staleness, "--seed", seed, "--max-steps", steps, "--prompts-per-step", 8, "--num-generations", 8,
        "--max-completion-length", 16, "--max-prompt-length", 64, "--learning-rate", 1e-5, "--save-steps", 0,
        "--vllm-arg", "enforce-eager=true", "--vllm-arg", "max-num-seqs=8", "--output-dir", folder,
    ]  # fmt: skip
    if (folder / "checkpoints").exists():
        command.append("--resume")
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["step"] > 0]
    rollouts = [
        r for file in stored_steps(folder) for g in read_rollouts(file) for r in g.rollouts if r.dropped is None
    ]
    return {
        "first": rows[0]["reward/mean"],
        "last": statistics.fmean(row["reward/mean"] for row in rows[-3:]),
        "staleness_max": max(rollout.staleness for rollout in rollouts),
        "staleness_mean": statistics.fmean(rollout.staleness for rollout in rollouts),
        "across_a_push": sum(len(rollout.version_spans) > 1 for rollout in rollouts),
        "rollouts": len(rollouts),
        "mismatch_kl": statistics.fmean(row["mismatch/kl"] for row in rows),
        "seconds": sum(row["time/step"] for row in rows),
    }


if __name__ == "__main__":
    main()
