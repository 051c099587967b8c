"""What is refused before anything is started or a folder is made: the same for the command line and a script's train()."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from postrl.config import GRPOConfig
from postrl.config.algorithm_file import check_preset
from postrl.config.checks import context_exceeded
from postrl.config.engines import engine_of
from postrl.config.refuse import refuse
from postrl.data.prompts import check_sources
from postrl.errors import UsageError
from postrl.given import Given
from postrl.host.text import read_template
from postrl.launch.model import check_model, check_module, check_reward_models
from postrl.learning.context import context_length
from postrl.learning.hub import check_access
from postrl.rewards.declared import check_columns, check_options
from postrl.rewards.registry import RewardSpec, parse_option, resolve, with_options
from postrl.rows.recipes import dataset_names, find_recipe, own_rewards
from postrl.run.trackers import check_trackers


def preflight(config: GRPOConfig, given: Given | None = None, *, weights: bool = True) -> list[str]:
    """Everything that can be found wrong without starting a process.

    Args:
        given: what a script brings in place of settings.
        weights: whether the model must have some.

    Returns:
        What was guessed, a line each.

    Raises:
        PostrlError: the first thing that is wrong.
    """
    given = given or Given()
    notes: list[str] = []
    check_preset(config.algorithm)
    samples = engine_of(config).samples
    if samples:
        specs = known_rewards(config, given.rewards)
        notes = check_data(config, given.rewards) if given.train is None else []
        check_sandbox(config, specs)
    if given.model is None:
        check_model(config, tokenizer=given.tokenizer is None, weights=weights)
    else:
        adapted = config.lora_rank > 0 or given.peft_config is not None or hasattr(given.model, "peft_config")
        check_module(given.model, adapted=adapted)
    if config.chat_template:
        read_template(config.chat_template)
    if samples:
        refuse(context_exceeded(config, context_length(config.model if given.model is None else "")))
        check_reward_models(specs)
        for spec in specs:
            check_options(spec, settings=config.part("reward"))
    check_trackers(config.report_to)
    check_access(config.push_to_hub)
    return notes


def known_rewards(config: GRPOConfig, rewards: Sequence[RewardSpec] = ()) -> list[RewardSpec]:
    """The reward functions as far as they are known before the data is: a script's, those of the settings, else those of the
    named data sets.

    Raises:
        UsageError: one cannot be found; an option names none of them.
    """
    specs = list(rewards) or [resolve(spec) for spec in config.reward or own_rewards(config.dataset)]
    args = config.reward_arg
    if not (rewards or config.reward):  # the evaluation set may bring others
        args = [arg for arg in args if parse_option(arg)[0] in [spec.name for spec in specs]]
    return with_options(specs, args)


def check_data(config: GRPOConfig, rewards: Sequence[RewardSpec] = ()) -> list[str]:
    """Refuse data that cannot be read or that nothing would score; a line for each thing that was guessed."""
    notes = check_sources(config, partial(check_columns, known_rewards(config, rewards)))
    names = dataset_names(config.dataset) or config.dataset_path
    unscored = [name for name in names if find_recipe(name) is None]
    if unscored and not (config.reward or rewards):
        raise UsageError(
            f"no reward is given, and {unscored[0]} has none of its own",
            hint="--reward math, --reward code or --reward file.py:function",
        )
    return notes


def check_sandbox(config: GRPOConfig, specs: Sequence[RewardSpec]) -> None:
    """A sandbox that does not work here is refused before anything starts."""
    if any((spec.kind, spec.payload) == ("builtin", "code") for spec in specs):
        from postrl.rewards.code.sandbox import choose

        choose(config.sandbox)
