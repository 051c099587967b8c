"""The fields of TRL 1.16's GRPOConfig and of transformers' TrainingArguments that have no counterpart here, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Refusal:
    """Why a field is refused, what to set instead, and which values of it are what postrl does anyway."""

    why: str
    hint: str = ""
    same: tuple[Any, ...] = ()

    def is_ours(self, value: Any) -> bool:
        return value in self.same if self.same else not value


REFUSED: dict[str, Refusal] = {}
"""TRL's name -> why it is refused. Without `same`, any empty value (None, False, 0, "") is passed over."""


def _rows(names: str, why: str, hint: str = "", *, same: tuple[Any, ...] = ()) -> None:
    REFUSED.update(dict.fromkeys(names.split(), Refusal(why, hint, same)))


# -- rollout
_rows("min_p", "training rollouts are sampled from the full distribution, which importance correction assumes")
_rows("repetition_penalty", "training rollouts are sampled without penalties", same=(None, 1, 1.0))
_rows("generation_kwargs", "postrl has temperature, max_completion_length and stop", "set those")
_rows(
    "chat_template_kwargs",
    "arguments of the chat template come with each row",
    "give the rows a column chat_template_kwargs (docs/data.md), or chat_template=FILE with the template you want",
)
_rows("cache_implementation use_cache", "the engine manages its own cache", same=(None, False, True))
_rows(
    "use_transformers_continuous_batching transformers_continuous_batching_config use_transformers_paged",
    "the transformers engine batches by itself",
    "engine='vllm' for continuous batching",
)
_rows("num_generations_eval", "evaluation samples each prompt once")
_rows("max_tool_calling_iterations", "postrl has no tools yet")
_rows("vllm_model_impl", "vLLM uses its own model code", "vllm_arg=['model-impl=...']", same=(None, "vllm"))
_rows("vllm_enable_sleep_mode", "the servers do not share their GPUs with the trainer")
_rows("vllm_structured_outputs_regex", "training rollouts are sampled from the full distribution")
_rows("vllm_group_port", "postrl finds a free port by itself", same=(None, 51216))
_rows("ds3_gather_for_generation", "generation never uses the sharded weights", same=(None, False, True))

# -- algorithm
_rows(
    "vllm_importance_sampling_mode vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_cap",
    "is_correction names how weights are bounded, is_low and is_high where",
    "is_correction='tis' (token_truncate), 'icepop' (token_mask), 'tis_seq' (sequence_truncate) or 'mis_seq' (sequence_mask)",
)
_rows("delta", "dual_clip bounds the ratio of tokens with a negative advantage", "dual_clip=3")
_rows(
    "vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg",
    "postrl does not have that loss",
)
_rows("top_entropy_quantile", "every token of a completion is trained on", same=(None, 1, 1.0))
_rows(
    "use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target",
    "the weight of the entropy bonus is constant",
    "set entropy_coef",
)
_rows("off_policy_mask_threshold", "is_correction has that mask", "is_correction='opsm' with is_delta")
_rows("router_aux_loss_coef", "the loss has no router term")
_rows("label_smoothing_factor neftune_noise_alpha", "they belong to supervised training")

# -- model and optimizer
_rows(
    "disable_dropout", "dropout of the base model is always off; adapters have lora_dropout", same=(None, False, True)
)
_rows("cast_lm_head_to_fp32", "log-probabilities are computed in float32 anyway", same=(None, False, True))
_rows("gradient_checkpointing_kwargs", "postrl uses the non-reentrant kind", same=(None, {}, {"use_reentrant": False}))
_rows("warmup_ratio", "the warm-up is counted in steps", "set warmup_steps")
_rows("lr_scheduler_kwargs", "schedules have no further settings", "set lr_scheduler_type and warmup_steps")
_rows("optim_args optim_target_modules", "optimizers have no further settings")
_rows("adam_beta1", "it is 0.9", same=(None, 0.9))
_rows("adam_beta2", "it is 0.999", same=(None, 0.999))
_rows("adam_epsilon", "it is 1e-8", same=(None, 1e-8))
_rows("average_tokens_across_devices", "the loss always has one denominator over all ranks", same=(None, True))
_rows("bf16_full_eval fp16_full_eval tf32", "the compute dtype is one setting", "set dtype")
_rows("torch_compile torch_compile_backend torch_compile_mode", "the learner is not compiled")
_rows("use_liger_kernel liger_kernel_config", "log-probabilities are computed in chunks anyway")
_rows("torch_empty_cache_steps", "there is no need for it", "lower max_tokens_per_microbatch when memory runs out")
_rows(
    "auto_find_batch_size",
    "micro-batches follow a token budget, which is halved when memory runs out",
    "set max_tokens_per_microbatch",
)
_rows("pad_to_multiple_of", "padding follows the longest sequence of a micro-batch")
_rows(
    "use_cpu",
    "postrl uses the GPUs that it sees",
    "set the environment variable CUDA_VISIBLE_DEVICES to nothing",
    same=(None, False) if Path("/dev/nvidiactl").exists() else (None, False, True),
)
_rows(
    "accelerator_config parallelism_config fsdp fsdp_config deepspeed ddp_find_unused_parameters ddp_bucket_cap_mb "
    "ddp_broadcast_buffers ddp_static_graph ddp_backend",
    "sharding is torch's fully_shard, set up by postrl",
    "set num_processes",
)
_rows("ddp_timeout", "waits have their own deadlines", same=(None, 1800))
_rows("local_rank", "ranks come from the launcher", same=(None, -1, 0))

# -- data
_rows("remove_unused_columns", "every column reaches the reward functions", same=(None, False))
_rows(
    "dataloader_drop_last dataloader_num_workers dataloader_persistent_workers dataloader_prefetch_factor "
    "dataloader_multiprocessing_context",
    "prompts come from memory, without a data loader",
)
_rows(
    "dataloader_pin_memory dataloader_in_order",
    "prompts come from memory, without a data loader",
    same=(None, False, True),
)
_rows(
    "label_names length_column_name include_for_metrics",
    "columns other than the prompt belong to the reward functions",
    same=(None, [], "length"),
)
_rows("train_sampling_strategy", "prompts are shuffled or not", "set shuffle", same=(None, "random"))
_rows("data_seed", "one seed rules data order and sampling", "set seed")
_rows("ignore_data_skip", "a resumed run always continues at its place in the data")

# -- evaluation
_rows(
    "per_device_eval_batch_size",
    "evaluation batches by max_tokens_per_microbatch and eval_prompts",
    "set eval_prompts for how many",
)
_rows(
    "eval_accumulation_steps eval_delay batch_eval_metrics eval_use_gather_object",
    "evaluation has no such setting",
    "set eval_steps",
)
_rows("eval_on_start", "an evaluation set is always evaluated before and after training", same=(None, False, True))
_rows("eval_do_concat_batches prediction_loss_only", "evaluation reports rewards", same=(None, False, True))
_rows("do_train do_eval", "the call decides: train() or evaluate()", same=(None, False, True))
_rows("do_predict", "postrl has no predict()")
_rows(
    "load_best_model_at_end metric_for_best_model greater_is_better",
    "the final model is the last one",
    "keep more checkpoints with save_total_limit and choose",
)

# -- run
_rows("overwrite_output_dir", "postrl never overwrites a run", "choose another output_dir, or resume=True")
_rows(
    "logging_first_step logging_nan_inf_filter log_on_each_node",
    "metrics.jsonl has every step as it is",
    same=(None, False, True),
)
_rows("include_num_input_tokens_seen", "metrics.jsonl has the tokens of each step", same=(None, "no", False))
_rows("log_level log_level_replica", "each process has a log file in RUN/logs", same=(None, "passive", "warning"))
_rows("disable_tqdm", "the progress bar shows on terminals only", same=(None, False, True))
_rows("log_completions", "every completion is stored in RUN/rollouts", same=(None, False, True))
_rows(
    "num_completions_to_print log_unique_prompts log_multimodal log_completions_hub_repo",
    "every completion is stored in RUN/rollouts",
    same=(None, False, True),
)
_rows(
    "trackio_space_id trackio_bucket_id trackio_static_space_id", "trackio is configured by its environment variables"
)
_rows("save_only_model", "checkpoints are there to resume from", "save_steps=0 keeps only the final model")
_rows("save_on_each_node enable_jit_checkpoint", "checkpoints are written once, and on Ctrl-C")
_rows("restore_callback_states_from_checkpoint", "callbacks keep their own state")
_rows("hub_token", "the token comes from the environment", "`hf auth login`, or HF_TOKEN")
_rows(
    "hub_private_repo hub_always_push hub_revision",
    "the hub repository has no settings here",
    "create it on the hub first",
)
_rows("hub_strategy", "the final model is uploaded, once", same=(None, "end"))
_rows("skip_memory_metrics", "memory/peak_gb is always measured", same=(None, False, True))
_rows("full_determinism", "the same seed gives the same data and sampling seeds", "set seed")

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
    _rows(_theirs, "it has another name here", _ours)
_rows("dataset_streaming", "prompts are read whole before the first step")
_rows(
    "lora_task_type lora_modules_to_save use_rslora use_dora",
    "adapters have a rank, a scale, dropout and modules",
    "set lora_rank, lora_alpha, lora_dropout or lora_target_modules",
)
_rows(
    "load_in_4bit load_in_8bit use_bnb_nested_quant bnb_4bit_quant_type",
    "weights are not loaded quantized",
    "lora_rank=16 trains an adapter alone",
)
