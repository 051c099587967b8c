"""Generation and update on one GPU: seconds, tokens a second, TFLOP/s and peak memory, side by side in one call.

    python benchmarks/gpu_step.py                        # both sizes; four minutes on one H200
    python benchmarks/gpu_step.py --sizes 0.5b --steps 3 --json figures.json
    python benchmarks/gpu_step.py --device cpu --sizes tiny --tokens 16     # to see that it runs

The models have the shapes of Qwen2.5-0.5B and Qwen2.5-1.5B and random weights; 8 prompts of 128 tokens get 8 completions
of exactly 512 tokens each. Generation is the embedded engine's, in the compute dtype. The update is the learner's, with
the weights, gradients and moments of AdamW in float32. TFLOP/s are 6 x parameters x tokens / seconds: what the
recomputation of gradient checkpointing costs is not counted as work. Nothing else may run on the GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from postrl.algorithms.objective import PolicyObjective, with_advantages
from postrl.config import GRPOConfig
from postrl.learning.batch import make_batch
from postrl.learning.learner import Learner
from postrl.learning.loading import with_lora
from postrl.learning.sharding import Ranks
from postrl.rollout.embedded import EmbeddedSampler
from postrl.rollout.sampler import Request, Sampling
from postrl.session import resolve_algorithm
from postrl.types import Group, Rollout, VersionSpan

PROMPTS, GENERATIONS, PROMPT_TOKENS = 8, 8, 128
VOCABULARY = 151_936
SHAPES: dict[str, dict[str, int]] = {  # width, of the MLP, layers, heads, key heads
    "tiny": {"width": 64, "mlp": 128, "layers": 2, "heads": 4, "key_heads": 2},
    "0.5b": {"width": 896, "mlp": 4864, "layers": 24, "heads": 14, "key_heads": 2},
    "1.5b": {"width": 1536, "mlp": 8960, "layers": 28, "heads": 12, "key_heads": 2},
}
UPDATES: list[tuple[str, dict[str, Any]]] = [
    ("bfloat16", {}),
    ("bfloat16", {"gradient_checkpointing": False}),
    ("bfloat16", {"max_tokens_per_microbatch": 32768}),
    ("bfloat16", {"gradient_checkpointing": False, "max_tokens_per_microbatch": 32768}),
    ("bfloat16", {"lora_rank": 16}),
    ("float32", {}),
    ("float32", {"gradient_checkpointing": False}),
]
"""Compute dtype and settings of each update that is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["0.5b", "1.5b"], choices=list(SHAPES))
    parser.add_argument("--tokens", type=int, default=512, help="length of each completion")
    parser.add_argument("--steps", type=int, default=2, help="updates of each kind; the fastest counts")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--json", metavar="FILE", help="also write the figures there, as they come")
    args = parser.parse_args()
    device = torch.device(args.device)
    print(f"{_device_name(device)}; torch {torch.__version__}; {PROMPTS} x {GENERATIONS} completions of {args.tokens}")
    rows: list[dict[str, Any]] = []
    for size in args.sizes:
        for row in measured(size, device, args.tokens, args.steps):
            rows.append(row)
            print(line(row), flush=True)
            if args.json:
                with open(args.json, "w", encoding="utf-8") as file:
                    json.dump(rows, file, indent=1)


def measured(size: str, device: torch.device, tokens: int, steps: int) -> Iterator[dict[str, Any]]:
    """A row for each thing that is measured; one that fails says why."""
    for dtype in ("bfloat16", "float32"):
        row = {"size": size, "what": "generate", "dtype": dtype, "settings": {}}
        yield {**row, **attempt(generate, size, device, dtype, tokens)}
    for dtype, options in UPDATES:
        row = {"size": size, "what": "update", "dtype": dtype, "settings": options}
        yield {**row, **attempt(update, size, device, dtype, tokens, steps, options)}


def attempt(measure: Any, *args: Any) -> dict[str, Any]:
    """What was measured, or why it failed; from a GPU that holds nothing of what was measured before."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
    try:
        return {"held_gb": held, **measure(*args)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}


def random_model(size: str, device: torch.device, dtype: str) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = SHAPES[size]
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=shape["width"],
        intermediate_size=shape["mlp"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["key_heads"],
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        use_sliding_window=False,
    )
    torch.manual_seed(0)
    with device:
        return Qwen2ForCausalLM(config).to(getattr(torch, dtype))


# -- generation --------------------------------------------------------------------------------------------------------


def generate(size: str, device: torch.device, dtype: str, tokens: int) -> dict[str, Any]:
    """The embedded engine: every prompt read once, then a token a step for all completions."""
    sampler = EmbeddedSampler(random_model(size, device, dtype).eval(), None, stop_token_ids=(), version=lambda: 0)
    sample(sampler, 4)
    with clock(device) as found:
        sampled = sample(sampler, tokens)
    found["tokens"] = sum(len(one.completion_ids) for one in sampled)
    return {**found, "tokens_per_s": found["tokens"] / found["seconds"]}


def sample(sampler: EmbeddedSampler, tokens: int) -> list[Any]:
    requests = [Request(prompt, seed, Sampling(1.0, tokens)) for seed, prompt in enumerate(prompts() * GENERATIONS)]

    async def collect() -> list[Any]:
        return await asyncio.gather(*map(sampler.sample, requests))

    return asyncio.run(collect())


def prompts() -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]


# -- the update --------------------------------------------------------------------------------------------------------


def update(
    size: str, device: torch.device, dtype: str, tokens: int, steps: int, options: dict[str, Any]
) -> dict[str, Any]:
    """The learner's update of one GRPO step."""
    settings = {"max_tokens_per_microbatch": 8192, "gradient_checkpointing": True, **options}
    config = GRPOConfig(max_prompt_length=PROMPT_TOKENS, max_completion_length=tokens, dtype=dtype, **settings)
    frozen = config.lora_rank and dtype == "bfloat16"
    model = with_lora(random_model(size, device, "bfloat16" if frozen else "float32"), config)
    parameters = sum(p.numel() for p in model.parameters())
    learner = Learner(model, config=config, ranks=Ranks(0, 1, device), dtype=dtype, total_updates=steps + 1)
    groups = made_up_groups(tokens)
    run_update(learner, groups[:3])  # warm-up; the first step makes the moments, too
    times = []
    for _ in range(steps):
        with clock(device) as found:
            report = run_update(learner, groups)
        times.append(found["seconds"])
    seconds = min(times)
    return {
        **found,
        "seconds": seconds,
        "all_seconds": times,
        "tokens": report.tokens,
        "tokens_per_s": report.tokens / seconds,
        "tflops": 6 * parameters * report.tokens / seconds / 1e12,
        "budget": learner.max_tokens,
    }


def run_update(learner: Learner, groups: Sequence[Group]) -> Any:
    algorithm = resolve_algorithm(learner.config)
    batch = with_advantages(make_batch(groups, 0, learner.ranks.device), algorithm)
    return learner.update(batch, PolicyObjective(algorithm))


def made_up_groups(tokens: int) -> list[Group]:
    """Random completions; half of each group is right."""
    draw = random.Random(1)
    groups = []
    for g, prompt in enumerate(prompts()):
        rollouts = [
            Rollout(
                prompt_id=f"made up:{g}",
                sample_index=i,
                prompt_ids=prompt,
                completion_ids=[draw.randrange(VOCABULARY) for _ in range(tokens)],
                logps=[-12.0] * tokens,
                version_spans=[VersionSpan(0, 0, tokens)],
                finish_reason="length",
                reward=float(i % 2),
            )
            for i in range(GENERATIONS)
        ]
        groups.append(Group(f"made up:{g}", g, "", None, {}, rollouts))
    return groups


# -- clock and table ---------------------------------------------------------------------------------------------------


@contextmanager
def clock(device: torch.device) -> Iterator[dict[str, Any]]:
    """Seconds of the block and the peak of memory in it, in GB: of tensors, and of what torch has taken for them."""
    found: dict[str, Any] = {}
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    yield found
    if on_gpu:
        torch.cuda.synchronize()
        found["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        found["reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
    found["seconds"] = time.perf_counter() - start


def line(row: dict[str, Any]) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in row["settings"].items()) or "defaults"
    head = f"{row['size']:5s} {row['what']:8s} {row['dtype']:8s} {settings:66s}"
    if "failed" in row:
        return f"{head} failed: {row['failed']}"
    tflops = f" {row['tflops']:6.1f} TFLOP/s" if "tflops" in row else ""
    memory = f" peak {row['peak_gb']:6.1f} GB (taken {row['reserved_gb']:.1f})" if "peak_gb" in row else ""
    return f"{head} {row['seconds']:7.2f} s {row['tokens_per_s']:9.0f} tokens/s{tflops}{memory}"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "CPU"


if __name__ == "__main__":
    main()
