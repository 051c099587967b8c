"""Checks of the settings, run before any process starts: each names the settings, their values and the way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from difflib import get_close_matches

from postrl.algorithms.presets import PRESETS, Preset, find
from postrl.algorithms.refused import Problem, flag, problem
from postrl.config.engines import engine_of
from postrl.config.refuse import refuse_all
from postrl.config.settings import Settings
from postrl.config.values import arguments
from postrl.rows.plain import HALF_A_CHARACTER
from postrl.rows.recipes import dataset_names
from postrl.rows.rendering import TAKEN

MOST_ROLLOUTS = 1 << 20


def check(config: Settings) -> None:
    """Run all checks: those of single values first, and of the others only what can be trusted then.

    Raises:
        UsageError: all problems found.
    """
    for looks in (VALUES, CHECKS):
        refuse_all([found for look in looks if (found := look(config))], type(config).__name__)


def _ranges(c: Settings) -> Problem:
    for f in fields(Settings):
        value, within = getattr(c, f.name), f.metadata["within"]
        if within and value is not None and not within.holds(value):
            return f"{f.name} is {value}, expected {within.words}", f"set {flag(f.name)} to {within.words}"
    return None


def _choices(c: Settings) -> Problem:
    from typing import get_args, get_type_hints

    for name, hint in get_type_hints(Settings).items():
        options = get_args(hint)
        if options and all(isinstance(o, str) for o in options) and getattr(c, name) not in options:
            return f"{name} is {getattr(c, name)!r}", f"choose one of {', '.join(options)}"
    return None


def _algorithm(c: Settings) -> Problem:
    try:
        preset = find(c.algorithm)
    except ValueError as error:
        near = get_close_matches(c.algorithm, PRESETS, n=1)
        return str(error), f"did you mean {near[0]}?" if near else "or give one of your own as file.py:PRESET"
    if preset is None:
        return None
    return problem(c, preset) or group_of_one(c, preset)


def group_of_one(c: Settings, preset: Preset) -> Problem:
    """What is wrong with groups of one completion for an algorithm that compares those of a group."""
    if preset.compares_groups and c.num_generations < 2 and engine_of(c).samples:
        return (
            f"num_generations is {c.num_generations}: in algorithm = {preset.name} a group of one has no baseline, every "
            "advantage would be 0",
            "set --num-generations to 2 or more (8 is usual), or use an algorithm that needs no group, such as "
            "flash_reinforce",
        )
    return None


def length_twice(c: Settings, rewards: Sequence[str]) -> Problem:
    """What is wrong where two of the settings punish long completions; `rewards`: names of built-in ones."""
    if c.overlong_buffer and "soft_overlong" in rewards:
        return (
            f"overlong_buffer = {c.overlong_buffer:g} (algorithm = {c.algorithm}) and the reward soft_overlong both punish long "
            "completions",
            "set --overlong-buffer 0, or leave the reward out",
        )
    return None


def _reference(c: Settings) -> Problem:
    if not c.sync_ref_model:
        return None
    if not c.beta:
        return "sync_ref_model is on, and beta = 0 holds no reference", "set --beta above 0, or --no-sync-ref-model"
    if c.lora_rank:
        return (
            f"sync_ref_model is on, and with lora_rank = {c.lora_rank} the reference is the policy of the start, which "
            "does not move",
            "set --no-sync-ref-model, or train all weights with --lora-rank 0",
        )
    return None


def _dynamic_sampling(c: Settings) -> Problem:
    if c.dynamic_sampling and c.num_generations < 2:
        return (
            f"dynamic_sampling replaces groups whose completions are all alike, and num_generations = {c.num_generations} "
            "makes every group so",
            "set --num-generations to 2 or more, or --no-dynamic-sampling",
        )
    if c.dynamic_sampling and c.reward_batch == "step":
        return (
            "dynamic_sampling replaces groups while a step is put together, and reward_batch = step scores them afterwards",
            "remove --reward-batch, or set --no-dynamic-sampling",
        )
    return None


_BOUNDED = ("tis", "tis_seq", "icepop", "mis_seq", "seq_mask_tis", "decoupled")
BOUNDS_OF: dict[str, tuple[str, ...]] = {
    "is_low": _BOUNDED, "is_high": _BOUNDED, "is_eps": ("seed",), "is_delta": ("opsm", "binary_kl"),
}  # fmt: skip
"""Bounds of importance ratios -> the values of is_correction that have them."""


def _correction_bounds(c: Settings) -> Problem:
    for name, corrections in BOUNDS_OF.items():
        if getattr(c, name) is not None and c.is_correction not in corrections:
            return (
                f"{name} = {getattr(c, name):g} has no meaning for is_correction = {c.is_correction}",
                f"remove {flag(name)}, or use --is-correction {' or '.join(corrections)}",
            )
    return None


def _step_size(c: Settings) -> Problem:
    if c.rollouts_per_step > MOST_ROLLOUTS:
        return (
            f"prompts_per_step x num_generations = {c.prompts_per_step} x {c.num_generations} = {c.rollouts_per_step} completions "
            f"in one step, expected at most {MOST_ROLLOUTS}: all of them are held in memory",
            "lower --prompts-per-step (32 is the default); --max-steps says how long a run is",
        )
    return None


def _minibatches_divide(c: Settings) -> Problem:
    if c.rollouts_per_step % c.minibatches:
        return (
            f"prompts_per_step x num_generations = {c.prompts_per_step} x {c.num_generations} = {c.rollouts_per_step} "
            f"completions do not divide into minibatches = {c.minibatches}",
            "choose --minibatches among the divisors, or change --prompts-per-step",
        )
    return None


def _reward_weights(c: Settings) -> Problem:
    if c.reward and c.reward_weights and len(c.reward_weights) != len(c.reward):  # a script gives functions instead
        return (
            f"{len(c.reward_weights)} reward_weights for {len(c.reward)} rewards",
            "give one --reward-weights for each --reward, in the same order",
        )
    return None


WRITTEN_AS = {
    "vllm_arg": ("KEY=VALUE", "enforce-eager=true"),
    "simulation_arg": ("KEY=VALUE", "length-mean=300"),
    "lr_scheduler_arg": ("KEY=VALUE", "num_cycles=3"),
    "chat_template_arg": ("KEY=VALUE", "enable_thinking=false"),
    "reward_arg": ("NAME.KEY=VALUE", "soft_overlong.cache=64"),
}
"""Settings of several options -> how one is written, and an example."""


def _options(c: Settings) -> Problem:
    for name, (form, example) in WRITTEN_AS.items():
        for arg in getattr(c, name):
            key, equals, _ = arg.partition("=")
            if not equals or form.count(".") > key.count("."):
                return f"{name} is {arg!r}", f"write it as {form}, such as {flag(name)} {example}"
    return None


def _dataset_path(c: Settings) -> Problem:
    names = dataset_names(c.dataset) if c.dataset_path else []
    for path in c.dataset_path:
        if path.partition("=")[0] not in names and max(len(c.dataset_path), len(names)) > 1:
            return (
                f"dataset_path {path} does not say which data set it is for: {', '.join(names) or 'none is named'}",
                f"write it as --dataset-path {names[0] if names else 'NAME'}={path}",
            )
    return None


def _chat(c: Settings) -> Problem:
    if c.chat is False and c.system_prompt is not None:
        return (
            "chat is off, and system_prompt makes text prompts conversations",
            "remove --no-chat, or put the text of --system-prompt into the prompts",
        )
    if taken := sorted(TAKEN & arguments(c.chat_template_arg).keys()):
        return f"chat_template_arg sets {', '.join(taken)}, which postrl sets itself", "leave it out"
    return None


def _texts(c: Settings) -> Problem:
    for name, texts in {"system_prompt": [c.system_prompt or ""], "stop": c.stop}.items():
        if broken := next((text for text in texts if HALF_A_CHARACTER.search(text)), None):
            return f"{name} is {broken!a}, which is not valid text", f"give {flag(name)} as UTF-8"
    return None


def _microbatch_holds_one(c: Settings) -> Problem:
    longest = c.max_prompt_length + c.max_completion_length
    if c.max_tokens_per_microbatch is not None and c.max_tokens_per_microbatch < c.max_completion_length:
        return (
            f"max_tokens_per_microbatch = {c.max_tokens_per_microbatch} is less than max_completion_length = {c.max_completion_length}",
            f"set --max-tokens-per-microbatch to {longest} (the longest prompt and completion) or more",
        )
    return None


def _server_urls(c: Settings) -> Problem:
    for url in c.vllm_server_url:
        if not url.startswith(("http://", "https://")):
            return f"vllm_server_url is {url!r}", "write it as http://host:port"
    return None


def _inside_the_trainer(c: Settings) -> Problem:
    """What an engine refuses that samples in the one trainer process."""
    engine = engine_of(c)
    refused = {
        "vllm_server_url": (engine.embedded and c.vllm_server_url, "vllm_server_url names a server"),
        "num_processes": (engine.embedded and (c.num_processes or 1) > 1, f"num_processes = {c.num_processes}"),
        "max_staleness": (not engine.overlaps and c.max_staleness, f"nothing overlaps: max_staleness = {c.max_staleness}"),
        "weight_sync": (engine.embedded and c.weight_sync == "lora", "weight_sync = lora loads adapters into vLLM servers"),
    }  # fmt: skip
    for name, (found, why) in refused.items():
        if found:
            message = f"engine = {c.engine} generates inside the one trainer process, and {why}"
            return message, f"remove {flag(name)}, or use --engine vllm"
    return None


def _asynchronous(c: Settings) -> Problem:
    if c.in_flight == "abort" and c.stop:
        return (
            f"in_flight = abort cuts completions in two, and a text of stop = {c.stop} across a cut would not be seen",
            "use --in-flight keep, or leave --stop out",
        )
    if c.rollout_queue_size is not None and c.rollout_queue_size < c.prompts_per_step:
        return (
            f"rollout_queue_size = {c.rollout_queue_size} holds no batch of prompts_per_step = {c.prompts_per_step} groups",
            f"set --rollout-queue-size to {c.prompts_per_step} or more, or leave it out",
        )
    return None


def _simulated(c: Settings) -> Problem:
    if engine_of(c).trains:
        return None
    for name in ("replay", "resume", "eval_dataset", "vllm_server_url", "push_to_hub", "report_to"):
        if value := getattr(c, name):
            return (
                f"engine = {c.engine} has no model, no data and no checkpoint, and {name} is {value}",
                f"remove {flag(name)}, or use another --engine",
            )
    if c.max_steps == -1:
        return (
            f"engine = {c.engine} reads no data set, so num_train_epochs says nothing about the number of its steps",
            "set --max-steps",
        )
    return None


def _weight_sync(c: Settings) -> Problem:
    if c.weight_sync == "full" and c.lora_rank:
        return (
            f"weight_sync = full sends all weights as they are, and lora_rank = {c.lora_rank} trains an adapter beside them",
            "use --weight-sync merge to send all weights with the adapter merged in, or lora to send the adapter alone",
        )
    return None


def _narrowed(c: Settings) -> Problem:
    narrows = engine_of(c).narrows and not (c.vllm_server_url and engine_of(c).servers)
    if (c.top_p < 1 or c.top_k or c.min_p) and not narrows:
        return (
            f"top_p = {c.top_p:g}, top_k = {c.top_k}, min_p = {c.min_p:g} leave tokens out of what training rollouts are drawn from, and vLLM's "
            "servers do not say which: the trainer's log-probs would be those of all tokens, and no importance ratio right",
            "leave --top-p, --top-k and --min-p out, or use --engine transformers, which says it",
        )
    return None


def context_exceeded(c: Settings, context: int | None) -> Problem:
    """What is wrong where a prompt and its completion may be longer than the model reads (`context`) or the servers are to
    take (max_model_len)."""
    longest = c.max_prompt_length + c.max_completion_length
    limits = [
        (c.max_model_len, f"max_model_len = {c.max_model_len}"),
        (context, f"the context of {c.model or 'the model'}, {context} tokens"),
    ]
    for limit, what in limits:
        if limit and longest > limit and not (what.startswith("max_model_len") and engine_of(c).embedded):
            left = limit - c.max_completion_length
            return (
                f"max_prompt_length + max_completion_length = {c.max_prompt_length} + {c.max_completion_length} = {longest} "
                f"tokens exceed {what}",
                f"set --max-prompt-length to {left} or less (longer prompts are dropped, and counted)"
                if left >= 1
                else f"set --max-completion-length below {limit}, and --max-prompt-length to what is left",
            )
    return None


VALUES: tuple[Callable[[Settings], Problem], ...] = (_ranges, _choices)
CHECKS: tuple[Callable[[Settings], Problem], ...] = (
    _algorithm, lambda c: length_twice(c, c.reward), _reference, _dynamic_sampling, _correction_bounds, _step_size, _minibatches_divide, _reward_weights, _options,
    _dataset_path, _chat, _texts, _microbatch_holds_one, _server_urls, _inside_the_trainer, _asynchronous, _simulated,
    _weight_sync, _narrowed,
)  # fmt: skip
