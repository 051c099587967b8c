"""One GRPO step of postrl against TRL's: same model, prompts, group size, threads and dtype, side by side in one call.

    pip install 'trl==1.16.0'                       # once; the `bench` extra
    python benchmarks/step_vs_trl.py                # TRL, postrl embedded, postrl with a vLLM server; about 20 minutes
    python benchmarks/step_vs_trl.py --lengths fixed --engines transformers --steps 3

Both train all weights of SmolLM2-135M on 8 prompts x 8 completions of at most 64 tokens. "natural" lets completions end
where the model ends them; "fixed" gives both a copy of the model whose end-of-turn token never comes, so that every
completion has 64 tokens. The first step of each run warms up and is not counted. Read ratios, not seconds: they are
measured on one machine in one call; nothing else may run beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPTS, GENERATIONS, MAX_TOKENS = 8, 8, 64
PHASES = ("generate", "score", "assess", "update", "sync")
NEVER = "<file_sep>"
"""A special token of SmolLM2's vocabulary that it does not write: the end-of-turn token of the "fixed" copy."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["transformers", "vllm"], choices=["transformers", "vllm"])
    parser.add_argument("--lengths", nargs="+", default=["natural", "fixed"], choices=["natural", "fixed"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=3, help="steps of each run; the first is not counted")
    parser.add_argument("--no-trl", action="store_true", help="postrl alone")
    parser.add_argument("--trl", metavar="JSON", help=argparse.SUPPRESS)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a benchmark that is cut ends what it started
    if args.trl:
        print(json.dumps(run_trl(json.loads(args.trl))))
        return
    with tempfile.TemporaryDirectory(prefix="postrl-bench-") as folder:
        data = write_prompts(Path(folder) / "prompts.jsonl", args.steps * PROMPTS)
        for lengths in args.lengths:
            model = model_folder(Path(folder), fixed=lengths == "fixed")
            job = {"model": str(model), "data": str(data), "dtype": args.dtype, "steps": args.steps}
            runs: dict[str, Callable[[], dict[str, Any]]] = {} if args.no_trl else {"TRL": lambda job=job: trl(job)}
            for engine in args.engines:
                place = Path(folder) / f"{lengths}-{engine}"
                runs[f"postrl, {engine}"] = lambda job=job, engine=engine, place=place: postrl(job, engine, place)
            show(f"{lengths} lengths, {args.dtype}, {os.cpu_count()} cores", runs)


def write_prompts(path: Path, number: int) -> Path:
    rows = [
        {
            "prompt": [
                {
                    "role": "user",
                    "content": f"What is {i % 10} + {3 * i % 11}? Explain how you add, then give the number.",
                }
            ],
            "answer": str(i % 10 + 3 * i % 11),
        }
        for i in range(number)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def model_folder(folder: Path, *, fixed: bool) -> Path:
    """The packaged model; for fixed lengths, a copy of it that never ends its turn."""
    from postrl.models.packaged import packaged_model

    source = packaged_model("smollm2-135m")
    if not fixed:
        return source
    target = folder / "never-ending"
    if not target.exists():
        target.mkdir()
        for path in source.iterdir():
            (target / path.name).symlink_to(path)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(source)
        token_id = tokenizer.convert_tokens_to_ids(NEVER)
        assert token_id != tokenizer.unk_token_id
        for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
            values = json.loads((source / name).read_text(encoding="utf-8"))
            values["eos_token" if name.startswith("tokenizer") else "eos_token_id"] = (
                NEVER if name.startswith("tokenizer") else token_id
            )
            (target / name).unlink()
            (target / name).write_text(json.dumps(values), encoding="utf-8")
    return target


# -- TRL ---------------------------------------------------------------------------------------------------------------


def trl(job: dict[str, Any]) -> dict[str, Any]:
    """TRL in a process of its own, so that its peak memory is its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--trl", json.dumps(job)],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
        env=quiet(),
    )
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def run_trl(job: dict[str, Any]) -> dict[str, Any]:
    from datasets import load_dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from postrl.rewards.arithmetic import arithmetic_reward

    def reward(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
        return [score.value or 0.0 for score in arithmetic_reward(completions, answer)]

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.ends.append(time.monotonic())

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=job["model"],
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=GENERATIONS,
                gradient_accumulation_steps=PROMPTS,
                num_generations=GENERATIONS,
                max_completion_length=MAX_TOKENS,
                max_steps=job["steps"],
                learning_rate=1e-6,
                bf16=job["dtype"] == "bfloat16",
                use_cpu=True,
                gradient_checkpointing=False,
                model_init_kwargs={"dtype": job["dtype"]},
                shuffle_dataset=False,
                report_to="none",
                save_strategy="no",
                logging_steps=1,
                disable_tqdm=True,
            ),
            train_dataset=load_dataset("json", data_files=job["data"], split="train"),
            callbacks=[clock],
        )
        start = time.monotonic()
        trainer.train()
    seconds = [b - a for a, b in zip([start, *clock.ends], clock.ends, strict=False)][1:]
    lengths = [row["completions/mean_length"] for row in trainer.state.log_history if "completions/mean_length" in row][
        1:
    ]
    return {
        "seconds": statistics.median(seconds),
        "tokens": statistics.fmean(lengths) * PROMPTS * GENERATIONS,
        "memory": {"trainer": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20},
    }


# -- postrl ------------------------------------------------------------------------------------------------------------


def postrl(job: dict[str, Any], engine: str, folder: Path) -> dict[str, Any]:
    """`postrl grpo` as a user runs it; what it did is read from metrics.jsonl."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "postrl", "grpo", "--model", job["model"], "--dataset", job["data"]]
    command += [
        "--reward",
        "arithmetic",
        "--engine",
        engine,
        "--dtype",
        job["dtype"],
        "--no-shuffle",
        "--output-dir",
        str(folder),
    ]
    command += [
        "--max-steps",
        str(job["steps"]),
        "--prompts-per-step",
        str(PROMPTS),
        "--num-generations",
        str(GENERATIONS),
    ]
    command += [
        "--max-completion-length",
        str(MAX_TOKENS),
        "--learning-rate",
        "1e-6",
        "--save-steps",
        "0",
        "--no-gradient-checkpointing",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=quiet()) as process:
        try:
            servers = watch_memory(process)
        finally:
            process.kill()  # nothing that it started outlives a launcher
    if process.returncode:
        raise SystemExit(f"postrl failed: see {folder}/logs")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["step"] > 1]
    return {
        "seconds": statistics.median(row["time/step"] for row in rows),
        "phases": {phase: statistics.median(row.get(f"time/{phase}", 0.0) for row in rows) for phase in PHASES},
        "tokens": statistics.fmean(row["tokens/completion"] for row in rows),
        "skipped": statistics.fmean(row["group/zero_std_frac"] for row in rows),
        "memory": {"trainer": rows[-1]["memory/peak_gb"] * 1e9 / 2**30, **servers},
    }


def watch_memory(process: subprocess.Popen[Any]) -> dict[str, float]:
    """Peak resident GiB of the vLLM processes below a launcher, by looking twice a second."""
    import psutil

    peak = 0.0
    while process.poll() is None:
        total = 0
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                if "vllm" in " ".join(child.cmdline()).lower():
                    total += child.memory_info().rss
            except psutil.Error:
                continue
        peak = max(peak, total / 2**30)
        time.sleep(0.5)
    return {"vLLM": peak} if peak else {}


def quiet() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}


def show(title: str, runs: dict[str, Callable[[], dict[str, Any]]]) -> None:
    print(f"\n{title}: {PROMPTS} prompts x {GENERATIONS} completions of at most {MAX_TOKENS} tokens")
    base = 0.0
    for name, run in runs.items():  # each line as soon as it is known
        result = run()
        base = base or result["seconds"]
        memory = ", ".join(f"{process} {gib:.1f} GiB" for process, gib in result["memory"].items())
        print(
            f"  {name:22s} {result['seconds']:6.1f} s a step  x{result['seconds'] / base:.2f}  {result['tokens']:5.0f} tokens  peak {memory}"
        )
        if "phases" in result:
            phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in result["phases"].items())
            print(f"  {'':22s} {phases}; {result['skipped']:.0%} of the groups had equal rewards")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
