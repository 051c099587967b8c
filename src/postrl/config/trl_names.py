"""TRL's names for our settings: converted where the meaning agrees, refused with the way out where it does not.

A script written for TRL keeps its `GRPOConfig(...)`. Names that mean the same pass; the batch names and a few others
are converted, with one printed line; every other field of TRL 1.16's GRPOConfig and of transformers'
TrainingArguments is refused by name, unless its value asks for what postrl does anyway (`deepspeed=None`, `top_p=1.0`).

TRL counts in completions: generation_batch_size = per_device_train_batch_size x processes x steps_per_generation, and
steps_per_generation is gradient_accumulation_steps by default. postrl counts in prompts: a step trains on
prompts_per_step x num_generations completions, in `minibatches` optimizer steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from postrl.algorithms.presets import PRESETS
from postrl.config.settings import Settings
from postrl.config.trl_refused import REFUSED
from postrl.errors import UsageError

Values = dict[str, Any]


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


def convert(values: Mapping[str, Any], cls: Any, *, source: str) -> Values:
    """TRL's names and values as ours, and the algorithm they are for; prints one line when something was converted.

    Args:
        values: settings as given, by our or TRL's names.
        cls: the class of settings; its `default_algorithm` is the one where none is given.
        source: what the settings come from, for messages.
    """
    own = [f.name for f in fields(Settings)]
    given, notes = dict(values), []
    for names, rule in RULES:
        if rule is _batch:  # the last one: a batch is counted in the groups of its algorithm
            given.setdefault("algorithm", cls.default_algorithm)
        found = {name: given.pop(name) for name in names if name in given}
        if not found:
            continue
        ours = rule(found, given)
        for name in ours.keys() & given.keys():
            if given[name] != ours[name]:
                raise _twice(source, found, ours, name, given[name])
        if found.keys() - ours.keys():
            notes.append(f"{_pairs(found)} -> {_pairs(ours) or 'no setting needed'}")
        given.update(ours)
    for name in [name for name in given if name not in own]:
        _refuse(name, given.pop(name), own, source)
    if notes:
        _say_once("TRL names: " + "; ".join(notes))
    return given


def _pairs(values: Values) -> str:
    return ", ".join(
        f"{name}={value!r}" if isinstance(value, str) else f"{name}={value}" for name, value in values.items()
    )


def _twice(source: str, found: Values, ours: Values, name: str, value: Any) -> UsageError:
    return UsageError(
        f"{source}: {_pairs(found)} means {name}={ours[name]!r}, and {name}={value!r} is given too",
        hint=f"keep one of {', '.join(found)} and {name}",
    )


def _refuse(name: str, value: Any, own: list[str], source: str) -> None:
    """Pass over a TRL field whose value asks for what we do anyway; raise for any other, and for unknown names."""
    from difflib import get_close_matches

    if name in REFUSED:
        row = REFUSED[name]
        if not row.is_ours(value):
            shown = name if "token" in name else f"{name}={value!r}"  # a secret does not belong on the screen
            raise UsageError(f"{source}: {shown} is TRL's: {row.why}", hint=row.hint or f"remove {name}")
        return
    trl = [trl_name for names, _ in RULES for trl_name in names]
    lists = "`postrl grpo --help-all` lists all settings"
    if name in OTHERS:
        raise UsageError(
            f"{source} has no setting {name}", hint=f"in postrl: {OTHERS[name].replace(' ', ': ')}; {lists}"
        )
    near = get_close_matches(name, [*own, *trl, *REFUSED], n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"{source} has no setting {name}", hint=f"{meant}{lists}")


_said: set[str] = set()


def _say_once(line: str) -> None:
    if line not in _said:
        _said.add(line)
        from postrl.console import note

        note(line)


# -- rules: (the names found, with values; all others, which a rule may change) -> our settings ------------------------

Rule = Callable[[Values, Values], Values]


def _batch(found: Values, rest: Values) -> Values:
    """prompts_per_step and minibatches that train on the completions that TRL would, in as many optimizer steps."""
    per_device, accumulation = found.get("per_device_train_batch_size", 8), found.get("gradient_accumulation_steps", 1)
    generation, steps = found.get("generation_batch_size"), found.get("steps_per_generation")
    per_step = per_device * _world(rest)
    algorithm = rest["algorithm"]
    own = PRESETS[algorithm].settings if algorithm in PRESETS else {}
    group = rest.get("num_generations", own.get("num_generations", 8))
    if generation is not None and steps is not None and generation != per_step * steps:
        raise UsageError(
            f"generation_batch_size = {generation} is not per_device_train_batch_size x processes x steps_per_generation "
            f"= {per_step} x {steps}",
            hint="give generation_batch_size or steps_per_generation, not both",
        )
    if generation is None:
        generation = per_step * (steps or accumulation)
    window = per_step * accumulation  # completions of one optimizer step in TRL
    batch = max(
        generation, window
    )  # TRL may generate in several goes before one optimizer step: nothing changes between
    for whole, part, names in (
        (generation, per_step, "per_device_train_batch_size x processes"),
        (batch, window, "per_device_train_batch_size x processes x gradient_accumulation_steps"),
        (batch, generation, "generation_batch_size"),
        (batch, group, "num_generations"),
    ):
        if part < 1 or whole % part:
            raise UsageError(
                f"a batch of {whole} completions does not divide by {names} = {part}",
                hint="set prompts_per_step (prompts of a step) and minibatches (optimizer steps of a step) instead",
            )
    return {"prompts_per_step": batch // group, "minibatches": batch // window}


def _world(rest: Values) -> int:
    import os

    return int(rest.get("num_processes") or os.environ.get("WORLD_SIZE") or 1)


def _precision(found: Values, rest: Values) -> Values:
    if found.get("fp16"):
        raise UsageError(
            "fp16=True: postrl does not train in float16 (its range is too small)", hint="dtype='bfloat16'"
        )
    if found.get("bf16") is None:
        return {}
    return {"dtype": "bfloat16" if found["bf16"] else "float32"}


def _engine(found: Values, rest: Values) -> Values:
    """use_vllm and its companions. Servers are started for you; an address means one that already runs."""
    ours: Values = {}
    if found.get("use_vllm") is not None:
        ours["engine"] = "vllm" if found["use_vllm"] else "transformers"
    if found.get("use_vllm") is False:
        return ours  # TRL ignores the rest then
    url = found.get("vllm_server_base_url")
    if url is None and ("vllm_server_host" in found or "vllm_server_port" in found):
        host = found.get("vllm_server_host", "0.0.0.0").replace("0.0.0.0", "127.0.0.1")
        url = f"http://{host}:{found.get('vllm_server_port', 8000)}"
    if url is not None:
        ours["vllm_server_url"] = [url]
    return ours


def _renamed(new: str) -> Rule:
    def rule(found: Values, rest: Values) -> Values:
        (value,) = found.values()
        return {} if value is None else {new: value}

    return rule


LOSSES = {
    "dapo": "token_mean",
    "bnpo": "token_mean",
    "grpo": "seq_mean_token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
}


def _loss_type(found: Values, rest: Values) -> Values:
    kind = found["loss_type"]
    if kind == "sapo":
        return {"algorithm": "sapo"}
    if kind == "cispo":  # TRL's epsilon_high is the cap itself there
        cap = rest.pop("epsilon_high", None)
        rest.pop("epsilon", None)  # the lower side, which TRL's cispo does not read
        return {"algorithm": "cispo", **({} if cap is None else {"is_cap_high": cap})}
    if kind not in LOSSES:
        raise UsageError(
            f"loss_type={kind!r}: postrl has {', '.join((*LOSSES, 'cispo', 'sapo'))} of TRL's losses",
            hint="choose an algorithm (docs/algorithms.md), and with loss_aggregation how token losses become one number",
        )
    return {"loss_aggregation": LOSSES[kind]}


def _level(found: Values, rest: Values) -> Values:
    level = found["importance_sampling_level"]
    if level not in ("token", "sequence"):
        raise UsageError(f"importance_sampling_level={level!r}: postrl has token and sequence", hint="algorithm='gspo'")
    return {"algorithm": "gspo"} if level == "sequence" else {}


def _bias_correction(found: Values, rest: Values) -> Values:
    return {"kl_estimator": "k3_unbiased" if found["use_bias_correction_kl"] else "k3_biased"}


def _truncation(off: Any) -> Rule:
    """top_p, top_k: TRL's spellings of "off"."""

    def rule(found: Values, rest: Values) -> Values:
        ((name, value),) = found.items()
        return {name: off if value in (None, -1) else value}

    return rule


def _correction(found: Values, rest: Values) -> Values:
    return {"is_correction": "tis" if found["vllm_importance_sampling_correction"] else "none"}


def _scale_rewards(found: Values, rest: Values) -> Values:
    value = found["scale_rewards"]
    return {"scale_rewards": {True: "group", False: "none"}[value] if isinstance(value, bool) else value}


def _report_to(found: Values, rest: Values) -> Values:
    value = found["report_to"]
    names = [] if value is None else [value] if isinstance(value, str) else list(value)
    if "all" in names:
        raise UsageError("report_to='all': postrl logs to the trackers that you name", hint="report_to=['tensorboard']")
    return {"report_to": [name for name in names if name != "none"]}


def _optim(found: Values, rest: Values) -> Values:
    name = _text(found["optim"])
    return {"optim": "adamw" if name in ("adamw_torch", "adamw_torch_fused") else name}


def _scheduler(found: Values, rest: Values) -> Values:
    name = _text(found["lr_scheduler_type"])
    return {"lr_scheduler_type": "constant" if name == "constant_with_warmup" else name}


def _text(value: Any) -> str:
    """An enum member of transformers, a torch dtype or a plain string as the plain string."""
    return str(getattr(value, "value", value)).removeprefix("torch.")


def _strategy(steps: str, off: Values) -> Rule:
    """save_strategy, eval_strategy, logging_strategy: "steps" is what postrl does, "no" switches off where it can."""

    def rule(found: Values, rest: Values) -> Values:
        ((name, value),) = found.items()
        value = _text(value)
        if value == "no" and off:
            rest.pop(steps, None)  # as in TRL, without a strategy its steps mean nothing
            return dict(off)
        if value != "steps":
            raise UsageError(f"{name}={value!r}: postrl counts in steps", hint=f"set {steps}")
        if name == "eval_strategy" and rest.get(steps) is None:
            rest.pop(steps, None)
            return {steps: rest.get("logging_steps", 10)}  # TRL's default for eval_steps
        return {}

    return rule


def _hub(found: Values, rest: Values) -> Values:
    push, name = found.get("push_to_hub"), found.get("hub_model_id")
    if isinstance(push, str) or push is None:
        return {"push_to_hub": push or name}
    if push and not name:
        raise UsageError("push_to_hub=True does not say where to", hint="push_to_hub='user/name'")
    return {"push_to_hub": name if push else None}


def _resume(found: Values, rest: Values) -> Values:
    value = found["resume_from_checkpoint"]
    if isinstance(value, str | Path):
        raise UsageError(
            f"resume_from_checkpoint={str(value)!r}: postrl continues from the newest checkpoint of output_dir",
            hint="output_dir=RUN, resume=True",
        )
    return {"resume": bool(value)}


MODEL_KEYS = {"dtype": "dtype", "torch_dtype": "dtype", "attn_implementation": "attn_implementation",
              "revision": "revision", "trust_remote_code": "trust_remote_code"}  # fmt: skip


def _model_kwargs(found: Values, rest: Values) -> Values:
    values = found["model_init_kwargs"] or {}
    unknown = [key for key in values if key not in MODEL_KEYS]
    if unknown:
        raise UsageError(
            f"model_init_kwargs has {', '.join(unknown)}: postrl takes {', '.join(MODEL_KEYS)}",
            hint="build the model yourself and give GRPOTrainer(model=...) the module",
        )
    return {MODEL_KEYS[key]: _text(value) if "dtype" in key else value for key, value in values.items()}


def _debug(found: Values, rest: Values) -> Values:
    """TRL's `debug` names torch debuggers; ours shows tracebacks."""
    value = found["debug"]
    if value in ("", [], None):
        return {"debug": False}
    if not isinstance(value, bool):
        raise UsageError(
            f"debug={value!r}: postrl has none of the Trainer's debuggers", hint="debug=True shows tracebacks"
        )
    return {"debug": value}


def _none_is_empty(found: Values, rest: Values) -> Values:
    ((name, value),) = found.items()
    return {name: [] if value is None else value}


RULES: tuple[tuple[tuple[str, ...], Rule], ...] = (
    (("bf16", "fp16"), _precision),
    (("use_vllm", "vllm_mode", "vllm_server_base_url", "vllm_server_host", "vllm_server_port"), _engine),
    (("vllm_server_timeout",), _renamed("server_start_timeout")),
    (("vllm_gpu_memory_utilization",), _renamed("gpu_memory_utilization")),
    (("vllm_tensor_parallel_size",), _renamed("tensor_parallel_size")),
    (("vllm_max_model_length",), _renamed("max_model_len")),
    (("vllm_importance_sampling_correction",), _correction),
    (("shuffle_dataset",), _renamed("shuffle")),
    (("loss_type",), _loss_type),
    (("importance_sampling_level",), _level),
    (("use_bias_correction_kl",), _bias_correction),
    (("top_p",), _truncation(1.0)),
    (("top_k",), _truncation(0)),
    (("model_init_kwargs",), _model_kwargs),
    (("resume_from_checkpoint",), _resume),
    (("save_strategy",), _strategy("save_steps", {"save_steps": 0})),
    (("eval_strategy",), _strategy("eval_steps", {"eval_steps": 0})),
    (("logging_strategy",), _strategy("logging_steps", {})),
    # the same name, with values that TRL spells otherwise
    (("scale_rewards",), _scale_rewards),
    (("report_to",), _report_to),
    (("optim",), _optim),
    (("lr_scheduler_type",), _scheduler),
    (("push_to_hub", "hub_model_id"), _hub),
    (("debug",), _debug),
    (("reward_weights",), _none_is_empty),
    (
        ("per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation"),
        _batch,
    ),
)
TRLS = frozenset(name for names, *_ in RULES for name in names) | REFUSED.keys()
"""All names of TRL's that we know and do not just take; a few of them are ours too."""
