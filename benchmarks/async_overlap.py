"""What overlap is worth: the synchronous and the asynchronous loop on a real vLLM CPU server, and each side alone.

    python benchmarks/async_overlap.py                     # about 25 minutes on 2 cores
    python benchmarks/async_overlap.py --steps 6 --tokens 24

Four runs of the same number of rollouts, server and trainer on a core of its own each:

    training alone      --replay of the rollouts of the asynchronous run: assess and update, nothing is generated or pushed
    generation alone    the same prompts and seeds asked of the server, nothing is trained
    sync                max_staleness 0: one side waits for the other
    async               max_staleness 1: they overlap; at best as long as the slower of the two alone

The server runs --running completions at a time: with 8 both sides take about as long on two cores, with more generation
is the faster one. Starting servers, loading the model and the first step (it warms up both sides) do not count. The push of weights is
timed apart, against `cp` of as many bytes in shared memory. Read ratios, not seconds; nothing may run beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from postrl.config import GRPOConfig
from postrl.launch.placement import divide_cores, usable_cores
from postrl.launch.siblings import placement_of
from postrl.launch.vllm import vllm_pool
from postrl.learning.loading import load_tokenizer, stop_tokens_of
from postrl.models.packaged import packaged_model
from postrl.rollout.sampler import Request, Sampling, derive_seed
from postrl.rollout.store import read_rollouts, stored_steps
from postrl.rollout.vllm import VLLMSampler
from postrl.run.connections import Connections
from postrl.run.metrics import read_metrics
from postrl.servers.lost import run_servers

MODEL = "smollm2-135m"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="counted steps; one more warms up")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of a step")
    parser.add_argument("--generations", type=int, default=8, help="completions of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="most tokens of a completion")
    parser.add_argument("--running", type=int, default=8, help="completions that the server runs at a time")
    parser.add_argument(
        "--keep", metavar="DIR", help="keep the runs here; those that are there are read, not made again"
    )
    parser.add_argument("--run", metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        sys.exit(run(args.run))
    with tempfile.TemporaryDirectory(prefix="postrl-bench-") as folder:
        show(args, measure(args, Path(args.keep or folder)))


def measure(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds of each run, for args.steps steps, and of the push."""
    sync = train(args, folder / "sync", max_staleness=0)
    overlapping = train(args, folder / "async", max_staleness=1)
    # Its own rollouts: how much of a batch needs no forward pass depends on how far the policy has come.
    alone = train(args, folder / "training", replay=folder / "async")
    seconds, tokens = generate(args, folder / "generation")
    return {
        "sync": wall(sync),
        "async": wall(overlapping),
        "training": wall(alone),
        "generation": seconds,
        "generation_tokens": tokens,
        "async_tokens": tokens_of(folder / "async"),
        "push": statistics.median(row["weights/push_s"] for row in sync),
        "cp": copy_seconds(int(os.environ.get("POSTRL_BENCH_BYTES", 538_000_000))),
        "staleness": max(row["rollout/staleness_max"] for row in overlapping),
    }


def settings(args: argparse.Namespace, folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model": MODEL, "dataset": ["arithmetic"], "engine": "vllm", "output_dir": str(folder), "dtype": "float32",
        "prompts_per_step": args.prompts, "num_generations": args.generations, "max_completion_length": args.tokens,
        "max_prompt_length": 64, "max_steps": args.steps + 1, "learning_rate": 1e-5, "save_steps": 0,
        "vllm_arg": [f"max-num-seqs={args.running}"], **changes,
    }  # fmt: skip


def train(args: argparse.Namespace, folder: Path, *, max_staleness: int = 0, replay: Path | None = None) -> list[dict]:
    """The metrics of a run (read, if it is there), with the cores divided whether or not anything overlaps: else it would be another machine."""
    config = settings(args, folder, max_staleness=max_staleness, **({"replay": str(replay)} if replay else {}))
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".yaml")
    GRPOConfig(**config).save(file)
    env = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sides()[1]))}
    if not (folder / "model").exists():
        command = [sys.executable, __file__, "--run", str(file)]
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
        shutil.rmtree(folder / "checkpoints")  # gigabytes
    return [row for row in read_metrics(folder / "metrics.jsonl") if row["step"] > 0]


def run(file: str) -> int:
    """`postrl grpo --config FILE`, the trainer on its half of the cores."""
    from postrl.launch import run as launcher

    launcher.placement_of = lambda config: replace(placement_of(config), trainer_cores=len(sides()[0]))  # type: ignore[attr-defined]
    return launcher.run(GRPOConfig.from_yaml(file))


def sides() -> tuple[list[int], list[int]]:
    """Cores of the trainer and of the server."""
    cores = usable_cores()
    half = max(1, len(cores) // 2)
    return cores[:half], cores[half:] or cores


def wall(rows: list[dict]) -> float:
    """Seconds of all steps but the first."""
    return sum(row["time/step"] for row in rows[1:])


def tokens_of(folder: Path) -> int:
    """Completion tokens that a run was trained on in all steps but the first."""
    groups = (group for file in stored_steps(folder)[1:] for group in read_rollouts(file))
    return sum(len(r.completion_ids) for group in groups for r in group.rollouts if r.dropped is None)


def generate(args: argparse.Namespace, folder: Path) -> tuple[float, int]:
    """Seconds and tokens of sampling the completions of args.steps steps, all of them asked for at once, as the worker
    asks. The policy is untrained, so its completions are longer than most of a run's."""
    config = GRPOConfig(**settings(args, folder, max_staleness=1))
    placement = divide_cores(placement_of(config), usable_cores())
    path = str(packaged_model(MODEL))
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    with vllm_pool(config, placement, model=path, log_dir=folder, weights_dir=folder / "weights") as pool:
        tokenizer = load_tokenizer(config, path)
        connections = Connections(server_urls=tuple(pool.urls), token=pool.token)
        sampler = VLLMSampler(
            run_servers(connections, folder / "weights"),
            stop_token_ids=stop_tokens_of(config, path, tokenizer),
            request_timeout=600.0,
            patience=600.0,
        )
        groups = prompts(config, tokenizer, (args.steps + 1) * args.prompts)
        asyncio.run(sample(sampler, groups[: args.prompts], args))  # warms up
        start = time.monotonic()
        tokens = asyncio.run(sample(sampler, groups[args.prompts :], args))
        return time.monotonic() - start, tokens


def prompts(config: GRPOConfig, tokenizer: Any, number: int) -> list[tuple[int, str, list[int]]]:
    from postrl.data.prompts import PromptStream, load_prompts

    loaded = load_prompts(config, tokenizer, split="train")
    stream = PromptStream(loaded.prompts, seed=config.seed, shuffle=config.shuffle)
    return [(gid, prompt.prompt_id, prompt.token_ids) for gid, prompt in stream.next(number)]


async def sample(sampler: VLLMSampler, groups: list[tuple[int, str, list[int]]], args: argparse.Namespace) -> int:
    """Two batches at most in flight, as max_staleness 1 allows. Returns the tokens sampled."""
    room = asyncio.Semaphore(2 * args.prompts)

    async def one(gid: int, pid: str, ids: list[int]) -> int:
        sampling = Sampling(1.0, args.tokens)
        requests = [Request(ids, derive_seed(42, gid, pid, i), sampling, -1) for i in range(args.generations)]
        async with room:
            return sum(len(sampled.completion_ids) for sampled in await asyncio.gather(*map(sampler.sample, requests)))

    return sum(await asyncio.gather(*(one(*group) for group in groups)))


def copy_seconds(nbytes: int) -> float:
    """Seconds of `cp` of a file of that size within shared memory; the median of five."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        source, target = Path(folder) / "a", Path(folder) / "b"
        with source.open("wb") as file:
            for _ in range(nbytes >> 20):
                file.write(os.urandom(1 << 20))
        seconds = []
        for _ in range(5):
            start = time.monotonic()
            subprocess.run(["cp", str(source), str(target)], check=True)
            seconds.append(time.monotonic() - start)
            target.unlink()
        return statistics.median(seconds)


def show(args: argparse.Namespace, found: dict[str, float]) -> None:
    slower = max(found["generation"], found["training"])
    share = found["async_tokens"] / found["generation_tokens"]
    equal = max(found["generation"] * share, found["training"])
    rollouts = args.steps * args.prompts * args.generations
    print(f"\n{rollouts} rollouts in {args.steps} steps, at most {args.tokens} tokens, {os.cpu_count()} cores")
    for name in ("generation", "training", "sync", "async"):
        print(f"  {name + (' alone' if name in ('generation', 'training') else ''):18s} {found[name]:7.1f} s")
    print(f"  async / slower side alone  {found['async'] / slower:.2f}  (to reach: 1.15)")
    print(f"  the same for equal tokens  {found['async'] / equal:.2f}  (async sampled {share:.2f} of generation's)")
    print(
        f"  async / sync               {found['async'] / found['sync']:.2f}  (to reach where both sides are equal: 0.7)"
    )
    print(f"  generation / training      {found['generation'] / found['training']:.2f}")
    print(f"  push {found['push']:.2f} s, cp {found['cp']:.2f} s: x{found['push'] / found['cp']:.1f}  (to reach: 4)")
    print(f"  largest staleness in async {found['staleness']:.0f}")
    print(json.dumps(found))


if __name__ == "__main__":
    if shutil.which("cp") is None:
        sys.exit("needs cp")
    main()
