"""What a script for TRL's trainer may ask for and postrl does otherwise: methods to override, arguments, further names."""

from __future__ import annotations

import inspect
from typing import Any

from postrl.errors import UsageError

_LOSS = "the loss is that of the algorithm: algorithm='file.py:PRESET' brings one of your own (docs/algorithms.md)"
_REWARDS = "reward functions give the rewards: reward_funcs (docs/rewards.md)"
_SAMPLING = "engines sample the completions (temperature, top_p, stop, vllm_arg; docs/settings.md)"
_DATA = "prompts come from train_dataset in an order of postrl's own (docs/data.md)"
_STEPS = "the loop is train() in postrl/trainer.py, whose verbs (generate, assess, advantage, update) may be overridden"
_OPTIM = "settings choose optimizer and schedule: optim, learning_rate, lr_scheduler_type, warmup_steps"
_EVALUATION = (
    "evaluation samples the prompts of eval_dataset and scores them; its metrics come to a callback's on_evaluate"
)
_LOGS = "a callback's on_log gets all metrics (callbacks=[...])"

_HOOKS = {
    "compute_loss _compute_loss compute_liger_loss _get_per_token_logps _get_per_token_logps_and_entropies "
    "_get_last_hidden_state get_high_entropy_mask get_off_policy_mask": _LOSS,
    "_calculate_rewards": _REWARDS,
    "_generate_and_score_completions _generate _generate_single_turn _prepare_inputs _tool_call_loop": _SAMPLING,
    "get_train_dataloader get_eval_dataloader get_test_dataloader _get_train_sampler _get_eval_sampler "
    "_set_signature_columns_if_needed": _DATA,
    "training_step inner_training_loop _inner_training_loop _save_checkpoint": _STEPS,
    "create_optimizer create_scheduler create_optimizer_and_scheduler get_decay_parameter_names": _OPTIM,
    "prediction_step prediction_loop evaluation_loop compute_metrics": _EVALUATION,
    "log _maybe_log_save_evaluate": _LOGS,
}
HOOKS = {name: instead for names, instead in _HOOKS.items() for name in names.split()}
"""Methods of TRL's trainer that nothing here would call -> what does their work."""

_ARGUMENTS = {
    "tools": "a completion is one answer of the model here: there is no loop that calls tools",
    "environment_factory": "a completion is one answer of the model here: there are no environments",
    "rollout_func": _SAMPLING,
    "optimizers optimizer_cls_and_kwargs": _OPTIM,
    "quantization_config": "weights are not quantized; lora_rank=16, or peft_config, trains an adapter alone",
    "data_collator": _DATA,
    "compute_metrics preprocess_logits_for_metrics": _EVALUATION,
    "compute_loss_func": _LOSS,
    "tokenizer": "it is called processing_class",
    "ref_model": "the reference is the model as it is at the start (beta, sync_ref_model)",
    "model_init": "give the model itself: GRPOTrainer(model=...)",
}
ARGUMENTS = {name: why for names, why in _ARGUMENTS.items() for name in names.split()}
"""Arguments of TRL's and transformers' trainers that this one does not have -> why, or what instead."""

_ELSEWHERE = {
    "predict": "evaluate() samples and scores eval_dataset",
    "_metrics": "RUN/metrics.jsonl has each step's, and a callback's on_log",
    "_logs": "RUN/rollouts has every prompt and completion",
    "vllm_client llm vllm_generation": "vLLM servers are processes of their own; postrl talks to them",
    "model_wrapped deepspeed is_deepspeed_enabled is_fsdp_enabled": "trainer.model is the model that is trained",
    "callback_handler": "add_callback, remove_callback and pop_callback are the trainer's own",
}
ELSEWHERE = {name: where for names, where in _ELSEWHERE.items() for name in names.split()} | HOOKS | ARGUMENTS


def refuse_hooks(cls: type) -> None:
    """Raise UsageError where a subclass has a method of TRL's trainer that would never be called."""
    found = [name for name in vars(cls) if name in HOOKS]
    if found:
        raise UsageError(
            f"{cls.__name__} overrides {', '.join(found)}, which TRL's trainer calls and postrl's does not",
            hint="; ".join(dict.fromkeys(HOOKS[name] for name in found)),
        )


def refuse_arguments(given: dict[str, Any], trainer: type) -> None:
    """Raise UsageError for arguments that `trainer` does not have. Those that ask for nothing (None, []) pass."""
    from difflib import get_close_matches

    known = [name for name in inspect.signature(trainer.__init__).parameters if name not in ("self", "further")]  # type: ignore[misc]
    told = []
    for name, value in given.items():
        if name not in ARGUMENTS:
            near = get_close_matches(name, known, n=1)
            told.append((name, f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"))
        elif value is not None and value not in ([], (None, None)):
            told.append((name, ARGUMENTS[name]))
    if told:
        raise UsageError(
            f"{trainer.__name__} has no argument {', '.join(name for name, _ in told)}",
            hint="; ".join(f"{name}: {why}" for name, why in told),
        )


def missing(name: str, trainer: str) -> AttributeError:
    """For a name that the trainer does not have: where to look."""
    where = ELSEWHERE.get(name) or "docs/from_trl.md lists what it has of TRL's"
    return AttributeError(f"{trainer} has no {name}: {where}")
