"""Does every algorithm learn? SmolLM2-135M on one-digit additions, the same number of rollouts each, several seeds.

    python benchmarks/algorithms.py                              # two to three hours on 2 cores
    python benchmarks/algorithms.py --only grpo ppo --seeds 1
    python benchmarks/algorithms.py --only vapo --keep DIR       # runs that are there already are read, not made again

Prints, for each algorithm, the mean reward of the last three steps minus that of the first three (to reach: 0.2), by
seed. Every step trains on 64 completions, eight of each prompt: also for algorithms whose own default is one a prompt.
dapo samples more and replaces groups that teach nothing, which "rollouts" counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from postrl.rollout.store import read_rollouts, stored_steps
from postrl.run.metrics import read_metrics

COMMON = {
    "model": "smollm2-135m", "dataset": "arithmetic", "engine": "transformers", "prompts-per-step": 8,
    "num-generations": 8, "max-completion-length": 16, "max-prompt-length": 64, "learning-rate": 1e-5, "save-steps": 0,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {},
    "dapo": {},
    "gspo": {},
    "rloo": {},
    "flash_reinforce": {},
    "ppo": {"minibatches": 1, "critic-learning-rate": 1e-5},
    "vapo": {"minibatches": 1, "critic-learning-rate": 1e-5, "critic-warmup-steps": 5, "length-adaptive-alpha": 1},
}
"""What differs from an algorithm's own defaults. One optimizer step per batch for all: 64 completions are few. VAPO's
lambda is for long completions: with its own alpha it is 0 for all of at most 16 tokens, which is refused."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(OWN), default=list(OWN))
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument("--steps", type=int, default=12, help="steps of 64 completions")
    parser.add_argument("--keep", metavar="DIR", help="keep the runs here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="postrl-bench-") as folder:
        place = Path(args.keep or folder)
        for name in args.only:
            rises = []
            for seed in range(args.seeds):
                found = run(place / f"{name}-seed{seed}", name, seed, args.steps)
                rises.append(found["rise"])
                print(json.dumps({"algorithm": name, "seed": seed, **found}), flush=True)
            print(f"{name}: +{statistics.fmean(rises):.2f} (lowest +{min(rises):.2f})", flush=True)


def run(folder: Path, name: str, seed: int, steps: int) -> dict[str, Any]:
    if not (folder / "model").exists():
        settings = {**COMMON, **OWN[name], "seed": seed, "max-steps": steps, "output-dir": folder}
        flags = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
        subprocess.run([sys.executable, "-m", "postrl", name, *flags], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(folder / "checkpoints")  # gigabytes
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["step"] > 0]
    rewards = [row["reward/arithmetic/mean"] for row in rows]  # of all that was sampled, also what dapo replaced
    first, last = statistics.fmean(rewards[:3]), statistics.fmean(rewards[-3:])
    return {
        "first": first,
        "last": last,
        "rise": last - first,
        "rollouts": sum(len(g.rollouts) for file in stored_steps(folder) for g in read_rollouts(file)),
        "explained_variance": rows[-1].get("critic/explained_variance"),
        "seconds": sum(row["time/step"] for row in rows),
    }


if __name__ == "__main__":
    main()
