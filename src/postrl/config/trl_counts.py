"""What TRL counts otherwise: a batch in completions, everything else in optimizer steps.

generation_batch_size = per_device_train_batch_size x processes x steps_per_generation, and steps_per_generation is
gradient_accumulation_steps by default. postrl counts in prompts: a step trains on prompts_per_step x num_generations
completions, in minibatches x num_iterations optimizer steps.
"""

from __future__ import annotations

import math

from postrl.config.trl_values import Convert, Rest, Values, of_algorithm
from postrl.errors import UsageError
from postrl.host.ranks import world_size

BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation")
STEPS = ("max_steps", "save_steps", "eval_steps", "logging_steps", "ref_model_sync_steps")
"""Settings that TRL counts in optimizer steps, and postrl in batches. warmup_steps are optimizer steps in both."""


def processes(rest: Values) -> int:
    """Trainer ranks, of the settings or of `accelerate launch`."""
    return int(rest.get("num_processes") or world_size())


def batch(found: Values, rest: Rest) -> Values:
    """prompts_per_step and minibatches that train on the completions that TRL would, in as many optimizer steps; and the step
    counts of a script of TRL's in these batches."""
    steps = {name: value for name in STEPS if (value := found.pop(name, None)) is not None}
    if not found and (not rest.trl or {"prompts_per_step", "minibatches"} & (rest.keys() | of_algorithm(rest).keys())):
        return steps
    ours = _completions(found, rest)
    if not found:
        rest.filled.update(ours)
    each = ours["minibatches"] * rest.or_default("num_iterations", 1)
    counted = {name: _batches(name, value, each, rest) for name, value in steps.items()}
    found.update({name: value for name, value in steps.items() if counted[name] != value})
    return {**ours, **counted}


def _completions(found: Values, rest: Rest) -> dict[str, int]:
    per_device, accumulation = found.get("per_device_train_batch_size", 8), found.get("gradient_accumulation_steps", 1)
    generation, steps = found.get("generation_batch_size"), found.get("steps_per_generation")
    per_step = per_device * processes(rest)
    group = rest.or_default("num_generations", 8)
    if generation is not None and steps is not None and generation != per_step * steps:
        raise UsageError(
            f"generation_batch_size = {generation} is not per_device_train_batch_size x processes x steps_per_generation "
            f"= {per_step} x {steps}",
            hint="give generation_batch_size or steps_per_generation, not both",
        )
    if generation is None:
        generation = per_step * (steps or accumulation)
    window = per_step * accumulation  # completions of one optimizer step in TRL
    whole_batch = max(generation, window)  # TRL may generate in several goes before one step: nothing changes between
    for whole, part, names in (
        (generation, per_step, "per_device_train_batch_size x processes"),
        (whole_batch, window, "per_device_train_batch_size x processes x gradient_accumulation_steps"),
        (whole_batch, generation, "generation_batch_size"),
        (whole_batch, group, "num_generations"),
    ):
        if part < 1 or whole % part:
            raise UsageError(
                f"a batch of {whole} completions does not divide by {names} = {part}",
                hint="set prompts_per_step (prompts of a step) and minibatches (optimizer steps of a step) instead",
            )
    return {"prompts_per_step": whole_batch // group, "minibatches": whole_batch // window}


def _batches(name: str, steps: float, each: int, rest: Rest) -> float:
    """Optimizer steps as batches of `each`; a share of all steps, and -1, stay."""
    if each == 1 or steps < 1:
        return steps
    batches = math.ceil(steps / each)
    if batches * each != steps and name not in rest.filled:
        rest.say(
            f"{name}={steps:g} optimizer steps are no whole number of batches, which take {each} each: {name} is {batches} "
            f"batches, {batches * each} optimizer steps"
        )
    return batches


def strategy(steps: str, off: Values) -> Convert:
    """save_strategy, eval_strategy, logging_strategy: "steps" is what postrl does, "no" switches off where it can."""

    def rule(found: Values, rest: Rest) -> Values:
        ((name, value),) = found.items()
        value = str(getattr(value, "value", value))
        if value == "no" and off:
            rest.pop(steps, None)  # as in TRL, without a strategy its steps mean nothing
            return dict(off)
        if value != "steps":
            raise UsageError(f"{name}={value!r}: postrl counts in steps", hint=f"set {steps}")
        if name == "eval_strategy" and rest.get(steps) is None:
            rest[steps] = rest.get("logging_steps", 10)  # TRL's default for eval_steps
        return {}

    return rule


def warmup(found: Values, rest: Rest) -> Values:
    """warmup_ratio of older versions; warmup_steps win where both are given."""
    if rest.get("warmup_steps") or not found["warmup_ratio"]:
        return {}
    rest.pop("warmup_steps", None)
    return {"warmup_steps": found["warmup_ratio"]}
