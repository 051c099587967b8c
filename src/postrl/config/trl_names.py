"""The door for scripts written for TRL: its names become ours, with TRL's meaning for what they leave unset.

A script keeps its `GRPOConfig(...)`. Names that mean the same pass; those of `trl_rules.RULES` are converted; of the others
`trl_refused` says what is passed over and what is refused, and why. Where one of TRL's own names is among the settings, what
is not set is as in TRL; a script that has only postrl's names and common ones has postrl's defaults. One printed block says
what was done and what is not as in TRL; all that is refused is refused at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any

from postrl.config.refuse import refuse_all
from postrl.config.setting import default_of
from postrl.config.settings import Settings
from postrl.config.trl_counts import batch, processes
from postrl.config.trl_refused import COMMON, REFUSED
from postrl.config.trl_rules import RULES, Rule
from postrl.config.trl_values import Rest, Values, of_algorithm
from postrl.errors import UsageError
from postrl.host.ranks import is_main

_OTHERS = {
    "lr": "learning_rate",
    "model_name model_path": "model",
    "batch_size train_batch_size global_batch_size rollout_batch_size": "prompts_per_step",
    "mini_batch_size num_minibatches": "minibatches",
    "epochs n_epochs num_epochs": "num_train_epochs",
    "steps num_steps train_steps total_steps": "max_steps",
    "n num_samples n_samples_per_prompt group_size": "num_generations",
    "max_tokens max_new_tokens max_length max_response_length": "max_completion_length",
    "kl_coef kl_loss_coef": "beta",
    "clip_range clip_ratio": "epsilon",
    "temp": "temperature",
    "output out out_dir save_dir": "output_dir",
    "data train_data train_file data_path": "dataset",
    "wandb": "report_to wandb",
    "tensorboard": "report_to tensorboard",
    "wandb_project project_name": "project",
    "tp tp_size": "tensor_parallel_size",
    "clip_grad gradient_clip gradient_clipping": "max_grad_norm",
}
OTHERS = {name: ours for names, ours in _OTHERS.items() for name in names.split()}
"""What other tools and hurried people call our settings."""

DEFAULTS: Values = {
    "num_train_epochs": 3.0,
    "lr_scheduler_type": "linear",
    "save_steps": 500,
    "save_total_limit": None,
    "logging_steps": 10,
}
"""TRL's defaults that are not ours, beside those of the batch (8 completions a process) and the engine (transformers)."""
OF_SERVERS = {"engine", "vllm_server_url", "num_servers", "vllm_arg", "max_staleness", "replay", "weight_sync"}
"""Settings that mean nothing to an engine inside the trainer, or choose one."""


def convert(values: Mapping[str, Any], cls: Any, *, source: str) -> Values:
    """TRL's names and values as ours, and the algorithm they are for; prints what was done where there is one of TRL's.

    Args:
        values: settings as given, by our or TRL's names.
        cls: the class of settings; its `default_algorithm` is the one where none is given.
        source: what the settings come from, for messages.

    Raises:
        UsageError: all that is refused, in one error.
    """
    own = {f.name: default_of(f) for f in fields(Settings)}
    rest = Rest(values, trl=any(name in TRLS and name not in own for name in values))
    problems: list[UsageError] = []
    converted: list[str] = []
    for rule in RULES:
        if rule.convert is batch:  # the last one: what chooses the algorithm is known
            rest.setdefault("algorithm", cls.default_algorithm)
            _fill(rest)
        try:
            converted += _apply(rule, rest, own, source)
        except UsageError as error:
            problems.append(error)
    for name in [name for name in rest if name not in own]:
        problems += _not_ours(name, rest.pop(name), list(own), rest, source)
    refuse_all([(error.message, error.hint) for error in problems], source)
    if rest.trl or rest.said:
        _say_once(_block(rest, converted))
    return dict(rest)


def _apply(rule: Rule, rest: Rest, own: Values, source: str) -> list[str]:
    """Convert the names of a rule; what was done, for the block: nothing where it comes to our default. Raises UsageError."""
    found = {name: rest.pop(name) for name in rule.names if name in rest}
    if not found and rule.convert is not batch:
        return []
    given = dict(found)
    ours = rule.convert(found, rest)
    shown = {name: value for name, value in found.items() if name not in rest.filled}
    for name, value in ours.items():
        if rest.get(name, value) != value:
            raise UsageError(
                f"{source}: {_pairs(shown)} means {name}={value!r}, and {name}={rest[name]!r} is given too",
                hint=f"keep one of {', '.join(shown)} and {name}",
            )
    rest.update(ours)
    rest.filled.update({name: value for name, value in ours.items() if name in rest.filled})
    named = {name: value for name, value in ours.items() if name not in rest.filled and given.get(name) != value}
    return [f"{_pairs(shown)} -> {_pairs(named)}"] if any(value != own[name] for name, value in named.items()) else []


TRLS = frozenset(name for names, *_ in RULES for name in names) | REFUSED.keys()
"""All names of TRL's that we know and do not just take; a few of them are ours too."""


def _fill(rest: Rest) -> None:
    """TRL's defaults, where one of TRL's names was given."""
    if not rest.trl:
        return
    values = dict(DEFAULTS)
    if rest.keys().isdisjoint(OF_SERVERS) and processes(rest) == 1:
        values["engine"] = "transformers"
    if rest.get("engine") == "vllm" and rest.keys().isdisjoint(("is_low", "is_high", "is_eps", "is_delta", "proximal")):
        values["is_correction"] = "mis_seq"
    if rest.get("eval_steps"):
        values["num_generations_eval"] = rest.or_default("num_generations", 8)
    if rest.get("push_to_hub"):
        values["hub_strategy"] = "every_save"
    rest.fill(values)


def _pairs(values: Values) -> str:
    return ", ".join(
        f"{name}={value!r}" if isinstance(value, str) else f"{name}={value}" for name, value in values.items()
    )


def _not_ours(name: str, value: Any, own: list[str], rest: Rest, source: str) -> Iterator[UsageError]:
    """What is wrong with a name that is no setting, and was not converted: nothing where TRL's field changes nothing here."""
    from difflib import get_close_matches

    lists = "`postrl grpo --help-all` lists all settings"
    if name in REFUSED:
        row = REFUSED[name]
        if row.passed and not row.is_ours(value):
            rest.pass_over(name, row.why)
        elif not row.is_ours(value):
            shown = name if "token" in name else f"{name}={value!r}"  # a secret does not belong on the screen
            yield UsageError(f"{source}: {shown} is TRL's: {row.why}", hint=row.hint or f"remove {name}")
    elif name in OTHERS:
        meant = f"in postrl: {OTHERS[name].replace(' ', ': ')}; "
        yield UsageError(f"{source} has no setting {name}", hint=f"{meant}{lists}")
    else:
        near = get_close_matches(name, [*own, *TRLS], n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        yield UsageError(f"{source} has no setting {name}", hint=f"{meant}{lists}")


# -- what is said ------------------------------------------------------------------------------------------------------


def _block(rest: Rest, converted: list[str]) -> str:
    """What became of a script of TRL's settings."""
    lines = list(converted)
    if rest.filled:
        lines.append(f"as in TRL, where nothing is set: {_pairs(rest.filled)}")
    if rest.passed:
        lines.append(f"passed over: {'; '.join(f'{name} ({why})' for name, why in rest.passed.items())}")
    lines += [f"not as in TRL: {line}" for line in (*rest.said, *_differences(rest))]
    return "TRL's names (docs/from_trl.md):" + "".join(f"\n  {line}" for line in lines)


def _differences(rest: Rest) -> Iterator[str]:
    """What stays otherwise than in TRL, and how it is set."""
    if "engine" not in rest and "vllm_server_url" not in rest and processes(rest) > 1:
        yield "vLLM servers generate for several ranks; use_vllm=True says so"
    if own := {name: value for name, value in of_algorithm(rest).items() if name not in rest}:
        yield f"{rest['algorithm']} has its own defaults: {_pairs(own)}"
    if rest.get("weight_decay"):
        yield "weight_decay is for all weights (TRL: not for norms and biases)"
    if rest.trl and "max_prompt_length" not in rest:
        yield "prompts of more than max_prompt_length=1024 tokens are dropped, and counted"


def tell_unspoken(given: Collection[str], algorithm: str) -> None:
    """Tell a script that may be one of TRL's, and has given none of its own names nor of ours, which defaults it has."""
    if algorithm != "grpo" or not COMMON.issuperset(given):
        return
    own = {f.name: default_of(f) for f in fields(Settings)}
    trls = {"prompts_per_step": "8 completions in all", "engine": "transformers", **DEFAULTS}
    pairs = [f"{name}={own[name]!r} (TRL: {theirs})" for name, theirs in trls.items() if name not in given]
    _say_once(
        f"not set, and otherwise than in TRL: {', '.join(pairs)}. One of TRL's own names, such as "
        "per_device_train_batch_size=8, brings TRL's defaults (docs/from_trl.md)"
    )


_said: set[str] = set()


def _say_once(line: str) -> None:
    if line not in _said and is_main():
        _said.add(line)
        from postrl.console import note

        note(line)
