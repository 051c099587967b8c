"""What the command line and a script's train() refuse before anything is started or generated."""

from __future__ import annotations

from collections.abc import Sequence

from postrl.config import GRPOConfig
from postrl.config.checks import context_exceeded, refuse
from postrl.config.engines import engine_of
from postrl.host.text import read_template
from postrl.launch.model import check_reward_models
from postrl.learning.context import context_length
from postrl.rewards.declared import check_options
from postrl.rewards.registry import RewardSpec, parse_option, resolve, with_options
from postrl.rows.recipes import own_rewards


def check_early(config: GRPOConfig, rewards: Sequence[RewardSpec] = (), *, model: str | None = None) -> None:
    """Lengths that the model cannot read, files that are not there, rewards without what they need.

    Args:
        rewards: a script's functions; default: those of the settings.
        model: where the model is, if that is another place than the settings say; "": it is an object.

    Raises:
        UsageError: the first of them.
    """
    if config.chat_template:
        read_template(config.chat_template)
    if not engine_of(config).samples:
        return
    refuse(context_exceeded(config, context_length(config.model if model is None else model)))
    specs = early_rewards(config, rewards)
    check_reward_models(specs)
    for spec in specs:
        check_options(spec, settings=config.part("reward"))


def early_rewards(config: GRPOConfig, rewards: Sequence[RewardSpec] = ()) -> list[RewardSpec]:
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
