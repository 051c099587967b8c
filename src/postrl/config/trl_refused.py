"""The fields of TRL 1.16's GRPOConfig and of transformers' TrainingArguments that are not converted: those that mean the same
here, those that are passed over, and those that are refused, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMON = frozenset((
    "output_dir", "max_steps", "num_train_epochs", "learning_rate", "lr_scheduler_type", "warmup_steps", "optim",
    "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "gradient_checkpointing",
    "logging_steps", "report_to", "run_name", "project", "eval_steps", "save_steps", "save_total_limit",
    "push_to_hub", "seed", "debug", "trust_remote_code", "num_generations", "max_completion_length", "temperature",
    "top_p", "top_k", "beta", "num_iterations", "epsilon", "epsilon_high", "sapo_temperature_neg",
    "sapo_temperature_pos", "reward_weights", "multi_objective_aggregation", "scale_rewards",
    "mask_truncated_completions", "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps", "entropy_coef", "min_p", "num_generations_eval", "log_completions", "hub_strategy",
))  # fmt: skip
"""Names that TRL and postrl share. Some of them have other values, or are counted otherwise: see `trl_rules.RULES`."""


@dataclass(frozen=True)
class Row:
    """What there is to say of a field without a counterpart."""

    why: str
    """Why it is refused or passed over."""
    hint: str = ""
    """What to set instead."""
    same: tuple[Any, ...] = ()
    """Values that ask for what postrl does anyway, TRL's default among them; none: any empty one (None, False, 0, "")."""
    passed: bool = False
    """Any value is taken, and noted: it changes nothing that is trained."""

    def is_ours(self, value: Any) -> bool:
        return value in self.same if self.same else not value


REFUSED: dict[str, Row] = {}
"""TRL's name -> what there is to say of it."""


def _refused(names: str, why: str, hint: str = "", *, same: tuple[Any, ...] = ()) -> None:
    REFUSED.update(dict.fromkeys(names.split(), Row(why, hint, same)))


def _passed(names: str, why: str, hint: str = "", *, same: tuple[Any, ...] = ()) -> None:
    REFUSED.update(dict.fromkeys(names.split(), Row(why, hint, same, passed=True)))


ANY_SWITCH = (None, False, True)
"""Either way it is what postrl does."""

# -- rollout
_refused(
    "repetition_penalty",
    "importance ratios need the log-probs that the learner computes, which know no penalties",
    same=(None, 1, 1.0),
)
_passed("cache_implementation use_cache", "the engine manages its own cache", same=ANY_SWITCH)
_passed(
    "use_transformers_continuous_batching transformers_continuous_batching_config use_transformers_paged",
    "the transformers engine batches by itself",
    "engine='vllm' for continuous batching",
)
_refused("max_tool_calling_iterations", "postrl has no tools yet")
_refused("vllm_model_impl", "vLLM uses its own model code", "vllm_arg=['model-impl=...']", same=(None, "vllm"))
_passed("vllm_enable_sleep_mode", "memory is shared out by gpu_memory_utilization", "set gpu_memory_utilization")
_refused("vllm_structured_outputs_regex", "importance ratios need every token to be possible")
_passed("vllm_group_port", "postrl finds a free port by itself", same=(None, 51216))
_passed("ds3_gather_for_generation", "generation never uses the sharded weights", same=ANY_SWITCH)

# -- algorithm
_passed(
    "vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg", "they belong to the loss vespo", same=(None, 2.0, 3.0)
)
_refused("top_entropy_quantile", "every token of a completion is trained on", same=(None, 1, 1.0))
_refused("use_adaptive_entropy", "the weight of the entropy bonus is constant", "set entropy_coef")
_passed(
    "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target",
    "they belong to use_adaptive_entropy",
    same=(None, 0.0, 1.0, 0.005, 0.2),
)
_refused("off_policy_mask_threshold", "is_correction has that mask", "is_correction='opsm' with is_delta")
_refused("router_aux_loss_coef", "the loss has no router term")
_refused("label_smoothing_factor neftune_noise_alpha", "they belong to supervised training")

# -- model and optimizer
_passed("disable_dropout", "dropout of the base model is always off; adapters have lora_dropout", same=ANY_SWITCH)
_passed("cast_lm_head_to_fp32", "log-probabilities are computed in float32 anyway", same=ANY_SWITCH)
_passed(
    "gradient_checkpointing_kwargs", "postrl uses the non-reentrant kind", same=(None, {}, {"use_reentrant": False})
)
_refused("optim_args optim_target_modules", "optimizers have no further settings")
_passed("average_tokens_across_devices", "the loss always has one denominator over all ranks", same=(None, True))
_passed("bf16_full_eval fp16_full_eval tf32", "the compute dtype is one setting", "set dtype")
_passed("torch_compile torch_compile_backend torch_compile_mode", "the learner is not compiled")
_passed("use_liger_kernel liger_kernel_config", "log-probabilities are computed in chunks anyway")
_passed("torch_empty_cache_steps", "there is no need for it", "lower max_tokens_per_microbatch when memory runs out")
_passed(
    "auto_find_batch_size",
    "micro-batches follow a token budget, which is halved when memory runs out",
    "set max_tokens_per_microbatch",
)
_passed("pad_to_multiple_of", "padding follows the longest sequence of a micro-batch", same=(None, "auto"))
_refused(
    "use_cpu",
    "postrl uses the GPUs that it sees",
    "set the environment variable CUDA_VISIBLE_DEVICES to nothing",
    same=(None, False) if Path("/dev/nvidiactl").exists() else ANY_SWITCH,
)
_refused(
    "parallelism_config fsdp fsdp_config deepspeed",
    "sharding is torch's fully_shard, set up by postrl",
    "set num_processes",
)
_passed(
    "accelerator_config",
    "postrl has no data loader of accelerate's",
    same=(
        None,
        {
            "split_batches": False,
            "dispatch_batches": None,
            "even_batches": True,
            "use_seedable_sampler": True,
            "non_blocking": False,
            "gradient_accumulation_kwargs": None,
        },
    ),
)
_passed(
    "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend",
    "sharding is torch's fully_shard, set up by postrl",
)
_passed("ddp_timeout", "waits have their own deadlines", same=(None, 1800))
_passed("local_rank", "ranks come from the launcher", same=(None, -1, 0))

# -- data
_refused("remove_unused_columns", "every column reaches the reward functions", same=(None, False))
_passed(
    "dataloader_drop_last dataloader_num_workers dataloader_persistent_workers dataloader_prefetch_factor "
    "dataloader_multiprocessing_context",
    "prompts come from memory, without a data loader",
)
_passed("dataloader_pin_memory dataloader_in_order", "prompts come from memory, without a data loader", same=ANY_SWITCH)
_passed(
    "label_names length_column_name include_for_metrics",
    "columns other than the prompt belong to the reward functions",
    same=(None, [], "length"),
)
_refused("train_sampling_strategy", "prompts are shuffled or not", "set shuffle", same=(None, "random"))
_refused("data_seed", "one seed rules data order and sampling", "set seed")
_refused("ignore_data_skip", "a resumed run always continues at its place in the data")

# -- evaluation
_passed(
    "per_device_eval_batch_size eval_accumulation_steps batch_eval_metrics eval_use_gather_object",
    "evaluation is batched by the engine",
    "set eval_prompts for how many",
    same=(None, False, 0, 8),
)
_refused("eval_delay", "evaluation begins with the first step", "set eval_steps")
_passed("eval_on_start", "an evaluation set is always evaluated before and after training", same=ANY_SWITCH)
_passed("eval_do_concat_batches prediction_loss_only", "evaluation reports rewards", same=ANY_SWITCH)
_passed("do_train do_eval", "the call decides: train() or evaluate()", same=ANY_SWITCH)
_refused("do_predict", "postrl has no predict()")
_refused(
    "load_best_model_at_end",
    "the final model is the last one",
    "keep more checkpoints with save_total_limit and choose",
)
_passed("metric_for_best_model greater_is_better", "they belong to load_best_model_at_end")

# -- run
_passed("overwrite_output_dir", "postrl never overwrites a run", "choose another output_dir, or resume=True")
_passed(
    "logging_first_step logging_nan_inf_filter log_on_each_node",
    "metrics.jsonl has every step as it is",
    same=ANY_SWITCH,
)
_passed("include_num_input_tokens_seen", "metrics.jsonl has the tokens of each step", same=(None, "no", False))
_passed("log_level log_level_replica", "each process has a log file in RUN/logs", same=(None, "passive", "warning"))
_passed("disable_tqdm", "the progress bar shows on terminals only", same=ANY_SWITCH)
_passed(
    "log_unique_prompts log_multimodal log_completions_hub_repo",
    "every completion is stored in RUN/rollouts",
    same=(None, False, True),
)
_passed(
    "trackio_space_id trackio_bucket_id trackio_static_space_id", "trackio is configured by its environment variables"
)
_refused("save_only_model", "checkpoints are there to resume from", "save_steps=0 keeps only the final model")
_passed("save_on_each_node enable_jit_checkpoint", "checkpoints are written once, and on Ctrl-C")
_passed("restore_callback_states_from_checkpoint", "callbacks keep their own state")
_refused(
    "hub_token", "the token comes from the environment", "`hf auth login`, or HF_TOKEN", same=(None, "<HUB_TOKEN>")
)
_refused("hub_private_repo hub_revision", "the hub repository has no settings here", "create it on the hub first")
_passed("hub_always_push", "an upload is waited for")
_passed("skip_memory_metrics", "memory/peak_gb is always measured", same=ANY_SWITCH)
_refused("full_determinism", "the same seed gives the same data and sampling seeds", "set seed")

# -- of TRL's command line and scripts, beside its GRPOConfig
for _theirs, _ours in (
    ("model_name_or_path", "set model"),
    ("model_revision", "set revision"),
    ("torch_dtype", "set dtype"),
    ("chat_template_path", "set chat_template"),
    ("dataset_name", "set dataset"),
    ("dataset_train_split", "set dataset_split"),
    ("dataset_test_split", "eval_dataset='NAME:split'"),
    ("reward_funcs", "set reward"),
    ("reward_model_name_or_path", "reward='reward_model:MODEL'"),
    ("lora_r use_peft", "set lora_rank"),
):
    _refused(_theirs, "it has another name here", _ours)
_refused("dataset_streaming", "prompts are read whole before the first step")
_refused(
    "lora_task_type lora_modules_to_save use_rslora use_dora",
    "adapters have a rank, a scale, dropout and modules",
    "set lora_rank, lora_alpha, lora_dropout or lora_target_modules",
)
_refused(
    "load_in_4bit load_in_8bit use_bnb_nested_quant bnb_4bit_quant_type",
    "weights are not loaded quantized",
    "lora_rank=16 trains an adapter alone",
)

OLDER = frozenset(("warmup_ratio", "overwrite_output_dir"))
"""Fields of earlier versions."""
