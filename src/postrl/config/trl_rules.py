"""What becomes of TRL's fields whose meaning postrl has under another name, or with other values: rows of RULES."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from postrl.config.trl_counts import BATCH, STEPS, batch, strategy, warmup
from postrl.config.trl_values import Convert, Rest, Values, as_args, mapping, none_as, renamed, text
from postrl.errors import UsageError


class Rule(NamedTuple):
    """How some of TRL's fields become ours."""

    names: tuple[str, ...]
    convert: Convert
    ours: str
    """What to type instead, in flags."""


# -- model -------------------------------------------------------------------------------------------------------------


def _precision(found: Values, rest: Rest) -> Values:
    if found.get("fp16"):
        raise UsageError(
            "fp16=True: postrl does not train in float16 (its range is too small)", hint="dtype='bfloat16'"
        )
    if found.get("bf16") is None:
        return {}
    return {"dtype": "bfloat16" if found["bf16"] else "float32"}


MODEL_KEYS = {"dtype": "dtype", "torch_dtype": "dtype", "attn_implementation": "attn_implementation",
              "revision": "revision", "trust_remote_code": "trust_remote_code"}  # fmt: skip
PLACED = {"device_map", "use_cache", "low_cpu_mem_usage"}
"""Arguments of from_pretrained that postrl decides by itself."""


def _model_kwargs(found: Values, rest: Rest) -> Values:
    values = mapping("model_init_kwargs", found["model_init_kwargs"])
    if unknown := [key for key in values if key not in MODEL_KEYS and key not in PLACED]:
        raise UsageError(
            f"model_init_kwargs has {', '.join(unknown)}: postrl takes {', '.join(MODEL_KEYS)}",
            hint="build the model yourself and give GRPOTrainer(model=...) the module",
        )
    for key in PLACED & values.keys():
        rest.pass_over(f"model_init_kwargs' {key}", "postrl places the model and its cache by itself")
    given = {MODEL_KEYS[key]: value for key, value in values.items() if key in MODEL_KEYS and value is not None}
    return {name: text(value) if name == "dtype" else value for name, value in given.items()}


def _template_kwargs(found: Values, rest: Rest) -> Values:
    return {"chat_template_arg": as_args(mapping("chat_template_kwargs", found["chat_template_kwargs"]))}


# -- rollout -----------------------------------------------------------------------------------------------------------


def _engine(found: Values, rest: Rest) -> Values:
    """use_vllm and its companions. Servers are started for you; an address means one that already runs."""
    ours: Values = {}
    if found.get("use_vllm") is not None:
        ours["engine"] = "vllm" if found["use_vllm"] else "transformers"
    if found.get("use_vllm") is False or found.get("vllm_mode") == "colocate":
        return ours  # TRL ignores the address then
    url, mode = found.get("vllm_server_base_url"), found.get("vllm_mode")
    if url is None and (mode == "server" or "vllm_server_host" in found or "vllm_server_port" in found):
        host = found.get("vllm_server_host", "0.0.0.0").replace("0.0.0.0", "127.0.0.1")
        url = f"http://{host}:{found.get('vllm_server_port', 8000)}"
    if url is not None:
        rest.say(f"the server at {url} is one of `postrl serve MODEL`, not of `trl vllm-serve`")
        ours["vllm_server_url"] = [url]
        if found.get("vllm_server_timeout") is not None:
            ours["server_start_timeout"] = found["vllm_server_timeout"]
    return ours


MODES = {"token_truncate": "tis", "token_mask": "icepop", "sequence_truncate": "tis_seq", "sequence_mask": "mis_seq"}
"""TRL's ways to bound importance weights -> is_correction."""


def _correction(found: Values, rest: Rest) -> Values:
    """TRL corrects what vLLM has sampled, and nothing else."""
    if found.get("vllm_importance_sampling_correction") is False:
        return {"is_correction": "none"}
    if rest.get("engine") != "vllm" or "is_correction" in rest:
        return {}
    mode = found.get("vllm_importance_sampling_mode", "sequence_mask")
    if mode not in MODES:
        raise UsageError(
            f"vllm_importance_sampling_mode={mode!r}: TRL has {', '.join(MODES)}", hint="set is_correction"
        )
    cap = found.get("vllm_importance_sampling_cap")
    high = found.get("vllm_importance_sampling_clip_max", 3.0) if cap is None else cap
    low = found.get("vllm_importance_sampling_clip_min")
    bounds = {"is_low": low, "is_high": high}
    return {"is_correction": MODES[mode], **{name: value for name, value in bounds.items() if value is not None}}


GENERATION = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "stop": "stop",
              "stop_strings": "stop", "max_new_tokens": "max_completion_length", "max_tokens": "max_completion_length"}  # fmt: skip


def _generation_kwargs(found: Values, rest: Rest) -> Values:
    values = mapping("generation_kwargs", found["generation_kwargs"])
    if unknown := [key for key in values if key not in GENERATION]:
        raise UsageError(
            f"generation_kwargs has {', '.join(unknown)}: the log-probs of what is sampled would not be the learner's",
            hint=f"it may have {', '.join(GENERATION)}",
        )
    ours = {GENERATION[key]: value for key, value in values.items()}
    for name in ours:
        rest.pop(name, None)  # as in TRL, they win
    return ours


# -- algorithm ---------------------------------------------------------------------------------------------------------

LOSSES = {
    "dapo": "token_mean",
    "bnpo": "token_mean",
    "grpo": "seq_mean_token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
}


def _loss_type(found: Values, rest: Rest) -> Values:
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


def _level(found: Values, rest: Rest) -> Values:
    level = found["importance_sampling_level"]
    if level not in ("token", "sequence"):
        raise UsageError(f"importance_sampling_level={level!r}: postrl has token and sequence", hint="algorithm='gspo'")
    return {"algorithm": "gspo"} if level == "sequence" else {}


def _bias_correction(found: Values, rest: Rest) -> Values:
    return {"kl_estimator": "k3_unbiased" if found["use_bias_correction_kl"] else "k3_biased"}


def _scale_rewards(found: Values, rest: Rest) -> Values:
    value = found["scale_rewards"]
    return {"scale_rewards": {True: "group", False: "none"}[value] if isinstance(value, bool) else value}


# -- optimizer ---------------------------------------------------------------------------------------------------------


ADAMW = ("adamw_torch", "adamw_torch_fused")
SMALLER_ADAMW = ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw", "paged_adamw_32bit", "paged_adamw_8bit")


def _optim(found: Values, rest: Rest) -> Values:
    name = text(found["optim"])
    if name in SMALLER_ADAMW:
        rest.say(
            f"optim={name!r} is adamw, whose state is neither paged nor in 8 bits: it takes 8 bytes for each trained weight, of "
            "which there are few with lora_rank or a peft_config"
        )
    return {"optim": "adamw" if name in (*ADAMW, *SMALLER_ADAMW) else name}


def _scheduler(found: Values, rest: Rest) -> Values:
    name = text(found["lr_scheduler_type"])
    if name == "constant" and rest.trl and rest.pop("warmup_steps", 0):
        rest.say("warmup_steps counts for nothing: TRL's constant schedule has no warm-up (constant_with_warmup has)")
    return {"lr_scheduler_type": "constant" if name == "constant_with_warmup" else name}


def _scheduler_kwargs(found: Values, rest: Rest) -> Values:
    return {"lr_scheduler_arg": as_args(mapping("lr_scheduler_kwargs", found["lr_scheduler_kwargs"]))}


# -- run ---------------------------------------------------------------------------------------------------------------


def _report_to(found: Values, rest: Rest) -> Values:
    value = found["report_to"]
    names = [] if value is None else [value] if isinstance(value, str) else list(value)
    if "all" in names:
        raise UsageError("report_to='all': postrl logs to the trackers that you name", hint="report_to=['tensorboard']")
    return {"report_to": [name for name in names if name != "none"]}


def _hub(found: Values, rest: Rest) -> Values:
    push, name = found.get("push_to_hub"), found.get("hub_model_id")
    if isinstance(push, str) or push is None:
        return {"push_to_hub": push or name}
    if push and not name and not rest.get("output_dir"):
        raise UsageError(
            "push_to_hub=True uploads under the name of output_dir, which is not given", hint="push_to_hub='user/name'"
        )
    return {"push_to_hub": (name or Path(rest["output_dir"]).name) if push else None}


def _hub_strategy(found: Values, rest: Rest) -> Values:
    value = text(found["hub_strategy"])
    if value not in ("end", "every_save"):
        raise UsageError(
            f"hub_strategy={value!r}: checkpoints stay in the run's folder, the model is uploaded",
            hint="hub_strategy='every_save'",
        )
    return {"hub_strategy": value}


def _log_completions(found: Values, rest: Rest) -> Values:
    shown, number = found.get("log_completions"), found.get("num_completions_to_print") or 8
    return {} if shown is None else {"log_completions": number * shown if isinstance(shown, bool) else shown}


def _resume(found: Values, rest: Rest) -> Values:
    value = found["resume_from_checkpoint"]
    if isinstance(value, str | Path):
        raise UsageError(
            f"resume_from_checkpoint={str(value)!r}: postrl continues from the newest checkpoint of output_dir",
            hint="output_dir=RUN, resume=True",
        )
    return {"resume": bool(value)}


def _debug(found: Values, rest: Rest) -> Values:
    """TRL's `debug` names torch debuggers; ours shows tracebacks."""
    value = found["debug"]
    if value in ("", [], None):
        return {"debug": False}
    if not isinstance(value, bool):
        raise UsageError(
            f"debug={value!r}: postrl has none of the Trainer's debuggers", hint="debug=True shows tracebacks"
        )
    return {"debug": value}


def _rule(names: str, convert: Convert, ours: str) -> Rule:
    return Rule(tuple(names.split()), convert, ours)


RULES: tuple[Rule, ...] = (
    # what chooses the algorithm comes first: its defaults stand before TRL's
    _rule("loss_type", _loss_type, "an algorithm (`postrl dapo`, `dr_grpo`, `cispo`, `sapo`) or --loss-aggregation"),
    _rule("importance_sampling_level", _level, "`postrl gspo` for sequence"),
    _rule("generation_kwargs", _generation_kwargs, "--temperature, --top-p, --top-k, --min-p, --stop and --max-completion-length"),
    _rule("bf16 fp16", _precision, "--dtype bfloat16 (auto is that on GPUs) or float32"),
    _rule(
        "use_vllm vllm_mode vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout", _engine,
        "--engine vllm, which starts the servers by itself, beside the trainer, or transformers; --vllm-server-url "
        "http://HOST:PORT is a server that runs already, --server-start-timeout its time to come",
    ),
    _rule("vllm_gpu_memory_utilization", renamed("gpu_memory_utilization"), "--gpu-memory-utilization"),
    _rule("vllm_tensor_parallel_size", renamed("tensor_parallel_size"), "--tensor-parallel-size"),
    _rule("vllm_max_model_length", renamed("max_model_len"), "--max-model-len"),
    _rule(
        "vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_clip_max "
        "vllm_importance_sampling_clip_min vllm_importance_sampling_cap", _correction,
        "--is-correction none, tis (token_truncate), icepop (token_mask), tis_seq (sequence_truncate) or mis_seq "
        "(sequence_mask), with --is-low and --is-high",
    ),
    _rule("delta", renamed("dual_clip"), "--dual-clip 3, above 1 + epsilon_high"),
    _rule("use_bias_correction_kl", _bias_correction, "--kl-estimator k3_unbiased or k3_biased"),
    _rule("shuffle_dataset", renamed("shuffle"), "--shuffle or --no-shuffle"),
    _rule("top_p", none_as(1.0), "None: off"),
    _rule("top_k", none_as(0), "None and -1: off"),
    _rule("min_p", none_as(0.0), "None: off"),
    _rule("chat_template_kwargs", _template_kwargs, "--chat-template-arg KEY=VALUE"),
    _rule("num_generations_eval", renamed("num_generations_eval"), "None: num_generations, where eval_strategy is steps"),
    _rule("model_init_kwargs", _model_kwargs, "--dtype, --attn-implementation, --revision and --trust-remote-code"),
    _rule("resume_from_checkpoint", _resume, "--output-dir RUN --resume"),
    _rule("save_strategy", strategy("save_steps", {"save_steps": 0}), "--save-steps N; 0 for no"),
    _rule("eval_strategy", strategy("eval_steps", {"eval_steps": 0}), "--eval-steps N; 0 for no"),
    _rule("logging_strategy", strategy("logging_steps", {}), "--logging-steps N"),
    _rule("warmup_ratio", warmup, "--warmup-steps, which may be a share of all steps"),
    _rule("scale_rewards", _scale_rewards, "True is group, False none"),
    _rule("report_to", _report_to, "none and None: no tracker; all is refused"),
    _rule("optim", _optim, "adamw of torch and those of bitsandbytes (8-bit, paged) are adamw, whose state is of 32 bits"),
    _rule("lr_scheduler_type", _scheduler, "constant_with_warmup is constant, which has a warm-up here"),
    _rule("lr_scheduler_kwargs", _scheduler_kwargs, "--lr-scheduler-arg KEY=VALUE"),
    _rule("push_to_hub hub_model_id", _hub, "--push-to-hub user/name; True: the name of output_dir"),
    _rule("hub_strategy", _hub_strategy, "checkpoint and all_checkpoints are refused"),
    _rule("log_completions num_completions_to_print", _log_completions, "--log-completions N; True is 8"),
    _rule("debug", _debug, "True shows tracebacks; the debuggers of torch are refused"),
    _rule("reward_weights", none_as([]), "None: 1 each"),
    # the last one: a batch is counted in the groups of its algorithm
    _rule(
        " ".join((*BATCH, *STEPS)), batch,
        "--prompts-per-step (times --num-generations: the completions of a step) and --minibatches (its optimizer steps)",
    ),
)  # fmt: skip
