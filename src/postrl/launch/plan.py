"""--dry-run: processes, devices, batch arithmetic and memory of a run, on stdout."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from postrl.algorithms.presets import has_critic
from postrl.config import GRPOConfig
from postrl.config.engines import engine_of
from postrl.launch.adapters import AdapterPlan, adapter_plan
from postrl.launch.placement import Placement
from postrl.launch.vllm import server_command
from postrl.models.folder import has_weights
from postrl.models.weights import parameter_count, shown_bytes
from postrl.rows.recipes import own_rewards


def show_plan(config: GRPOConfig, placement: Placement) -> None:
    for name, text in plan(config, placement):
        sys.stdout.write(f"{name:<15} {text}\n")


def plan(config: GRPOConfig, placement: Placement) -> Iterator[tuple[str, str]]:
    """(what, how) for each line."""
    yield "run folder", config.output_dir or ""
    yield "model", config.model + _without_weights(config)
    if config.adapter:
        yield "adapter", f"{config.adapter} (LoRA, rank {config.lora_rank}), trained on"
    yield "data", _data(config) if engine_of(config).samples else f"the rollouts stored in {config.replay}"
    if engine_of(config).samples:
        yield "reward", ", ".join(config.reward or _own_rewards(config))
    yield from _samplers(config, placement)
    where = f"GPUs {_commas(placement.trainer_devices)}" if placement.trainer_devices else "the CPU"
    yield "trainer", f"{placement.num_processes} rank{_s(placement.num_processes)} on {where}"
    yield "steps", str(config.max_steps) if config.max_steps > 0 else f"{config.num_train_epochs:g} x the prompts"
    updates = config.num_iterations * config.minibatches
    yield (
        "a step",
        f"{config.prompts_per_step} prompts x {config.num_generations} completions = {config.rollouts_per_step} rollouts; "
        f"{updates} optimizer step{_s(updates)} of {config.rollouts_per_step // config.minibatches}",
    )
    device = "cuda" if placement.trainer_devices else "cpu"
    yield (
        "a rollout",
        f"at most {config.max_prompt_length} prompt and {config.max_completion_length} completion tokens; "
        f"forward passes of at most {config.microbatch_tokens(device)} tokens",
    )
    if size := parameter_count(config.model):
        yield "memory", _memory(config, placement, size)


def _without_weights(config: GRPOConfig) -> str:
    folder = Path(config.model).expanduser()
    if not folder.is_dir() or has_weights(folder):
        return ""
    return " (the folder holds no weights: enough for this plan, and not for a start)"


def _data(config: GRPOConfig) -> str:
    names = ", ".join(config.dataset) or ", ".join(config.dataset_path)
    files = f" from {', '.join(config.dataset_path)}" if config.dataset and config.dataset_path else ""
    evaluation = f"; evaluation on {config.eval_dataset}" if config.eval_dataset else ""
    return names + files + evaluation


def _own_rewards(config: GRPOConfig) -> list[str]:
    return [f"{name} (the data set's own)" for name in own_rewards(config.dataset)]


def _samplers(config: GRPOConfig, placement: Placement) -> Iterator[tuple[str, str]]:
    if not engine_of(config).samples:
        return
    if engine_of(config).embedded:
        yield "engine", f"{config.engine}, inside the trainer"
    adapters = adapter_plan(config, config.model, cpu=placement.cpu)
    for url in config.vllm_server_url:
        yield "vLLM server", f"{url} (already running)"
    for index, devices in enumerate(placement.server_devices):
        argv, _ = server_command(config, model=config.model, port=0, devices=devices, token="", adapters=adapters)
        where = f"GPUs {_commas(devices)}" if devices else "the CPU"
        yield f"vLLM server {index}", f"on {where}: {shlex.join(argv)}"
    if engine_of(config).servers and config.lora_rank:
        yield "weight sync", _weight_sync(adapters)


def _weight_sync(adapters: AdapterPlan) -> str:
    if adapters.rank:
        return f"the LoRA adapter alone (rank {adapters.rank}), by a name for each version"
    return adapters.note() or "all weights, with the LoRA adapter merged in"


def _memory(config: GRPOConfig, placement: Placement, size: int) -> str:
    """Weights, gradients and two moments in float32; under LoRA the frozen weights only. A critic is counted as large as
    the policy; a reference is a second copy of the weights, but under LoRA the model itself."""
    frozen = 4 if placement.cpu else 2
    trained = frozen if config.lora_rank else 16
    critic, reference = has_critic(config.algorithm), bool(config.beta) and not config.lora_rank
    total = size * (trained * (1 + critic) + 4 * reference) / placement.num_processes
    what = "frozen weights" if config.lora_rank else "weights, gradients and optimizer"
    of = " of policy and critic" * critic + ", and of the reference" * reference
    return f"{shown_bytes(total)} of {what}{of} in a rank; activations come on top"


def _commas(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _s(number: int) -> str:
    return "" if number == 1 else "s"
