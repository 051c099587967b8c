"""Every setting of a run, once: the dataclass field is the flag, the help text and the YAML key.

A default is the setting we would defend. Checks that compare two settings are in `postrl.config.checks` and run before
any process starts. Same meaning, TRL's name; TRL's batch names are converted (see `postrl.config.trl_names`).
"""
# ruff: noqa: RUF009 (setting() gives lists a default_factory, so no default is shared)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, NamedTuple

from postrl.config import engines, paths


class Range(NamedTuple):
    """The numbers that a setting may have. None means "default" and is always allowed; NaN never is."""

    words: str
    holds: Callable[[float], bool]


AT_LEAST_1 = Range("1 or more", lambda x: x >= 1)
POSITIVE = Range("more than 0", lambda x: 0 < x < math.inf)
NOT_NEGATIVE = Range("0 or more", lambda x: 0 <= x < math.inf)
SHARE = Range("a share from 0 to 1", lambda x: 0 <= x <= 1)
SHARE_ABOVE_0 = Range("a share above 0, at most 1", lambda x: 0 < x <= 1)
SHARE_BELOW_1 = Range("a share from 0, below 1", lambda x: 0 <= x < 1)
STEPS = Range("1 or more, or -1 for num_train_epochs", lambda x: x == -1 or x >= 1)
STEPS_OR_SHARE = Range("0 or more; below 1: a share of all steps", lambda x: 0 <= x < 1 or x == x // 1 < math.inf)
SOME_STEPS_OR_SHARE = Range("1 or more, or a share of all steps", lambda x: 0 < x < 1 or 1 <= x == x // 1 < math.inf)


def setting(
    default: Any,
    panel: str,
    help: str,
    *,
    within: Range | None = None,
    resumable: bool = False,
    part_of: str = "",
    path: paths.Kind | None = None,
) -> Any:
    """A dataclass field with all that is told of a setting.

    Args:
        panel: where the help shows it.
        help: its help line.
        within: what a number may be.
        resumable: a resumed run may have it otherwise than the run it continues.
        part_of: what depends on it beside training, of: plan (what a run starts, needs and takes, in time and memory),
            serve (a server), score (the rewards of stored completions), reward (built-in ones that have an option of
            its name).
        path: of a setting that may be a path: which part of its value is one (see `postrl.config.paths`).
    """
    metadata = {
        "panel": panel, "help": help, "within": within, "resumable": resumable, "part_of": part_of.split(), "path": path,
    }  # fmt: skip
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def default_of(f: Field[Any]) -> Any:
    """A setting's default value."""
    return f.default if f.default is not MISSING else f.default_factory() if f.default_factory is not MISSING else None


MODEL, DATA, REWARD, ROLLOUT, ASYNC = "Model", "Data", "Reward", "Rollout", "Asynchronous mode"
ALGORITHM, CRITIC, OPTIMIZER, RUN = "Algorithm", "Critic (ppo, vapo)", "Optimizer", "Run"
PANELS = (MODEL, DATA, REWARD, ROLLOUT, ASYNC, ALGORITHM, CRITIC, OPTIMIZER, RUN)

Steps = float
"""A number of steps, or below 1 a share of all steps."""
Dtype = Literal["auto", "float32", "bfloat16"]
Correction = Literal[
    "tis", "tis_seq", "icepop", "mis_seq", "seq_mask_tis", "opsm", "binary_kl", "decoupled", "seed", "none"
]
Schedule = Literal[
    "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "cosine_with_min_lr",
    "cosine_warmup_with_min_lr", "warmup_stable_decay",
]  # fmt: skip
Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]


def in_steps(value: float, total: int) -> int:
    """A number of steps, where it may be a share of `total` ones."""
    return math.ceil(value * total) if 0 < value < 1 else int(value)


@dataclass(kw_only=True)
class Settings:
    """The fields. `postrl.config.config` checks them, reads and writes them."""

    # fmt: off
    # -- model ---------------------------------------------------------------------------------------------------
    model: str = setting("", MODEL,
        "Model id on the hub, a local folder, or the packaged demo model smollm2-135m; of a LoRA adapter: see "
        "--adapter.", part_of="plan serve", path=paths.folder_or_name)
    revision: str | None = setting(None, MODEL, "Branch, tag or commit of the model on the hub.", part_of="plan serve")
    trust_remote_code: bool = setting(False, MODEL,
        "Run Python code that comes with the model. Only for authors you trust.", resumable=True, part_of="plan serve")
    dtype: Dtype = setting("auto", MODEL,
        "Compute dtype of learner and sampler; auto: bfloat16 on GPUs, float32 on CPUs. Trained weights are kept in "
        "float32.", part_of="plan serve")
    attn_implementation: str | None = setting(None, MODEL,
        "Attention kernel of the learner, such as sdpa or flash_attention_2; default: transformers' choice.")
    chat_template: str | None = setting(None, MODEL,
        "Jinja file that replaces the tokenizer's chat template.", path=paths.path_itself)
    adapter: str | None = setting(None, MODEL,
        "LoRA adapter to go on from, such as RUN/model: folder or hub id. --model ADAPTER is short for it, with the "
        "model that it belongs to; the --lora settings are its own.", part_of="plan serve", path=paths.folder_or_name)
    lora_rank: int = setting(0, MODEL,
        "Rank of LoRA adapters; 0 trains all weights.", within=NOT_NEGATIVE, part_of="plan serve")
    lora_alpha: int | None = setting(None, MODEL, "LoRA scale; default: twice the rank.", within=AT_LEAST_1)
    lora_dropout: float = setting(0.0, MODEL, "Dropout inside LoRA adapters.", within=SHARE_BELOW_1)
    lora_target_modules: list[str] = setting(["all-linear"], MODEL,
        "Modules that get an adapter; repeatable.", part_of="plan serve")

    # -- data ----------------------------------------------------------------------------------------------------
    dataset: list[str] = setting([], DATA,
        "arithmetic, gsm8k, humaneval, mbpp, any hub id or a local file; repeatable, with a weight as NAME=0.5.",
        part_of="plan score", path=paths.data_or_name)
    dataset_path: list[str] = setting([], DATA,
        "Local JSONL, JSON, Parquet or CSV file (or folder of them) with the rows of --dataset; one of several data "
        "sets: NAME=PATH, repeatable.", resumable=True, part_of="plan score", path=paths.path_with_name)
    dataset_config: str | None = setting(None, DATA,
        "Configuration of the hub data set, such as main.", part_of="plan score")
    dataset_split: str | None = setting(None, DATA, "Split to train on; default: train.", part_of="plan score")
    prompt_column: str | None = setting(None, DATA,
        "Column with the prompt: text, given to the model as it is, or a list of messages; default: the data set's "
        "own, else prompt or the only likely one (docs/data.md).", part_of="plan score")
    answer_column: str | None = setting(None, DATA,
        "Column with the reference answer; default: the data set's own, else answer or the only likely one.",
        part_of="plan score")
    system_prompt: str | None = setting(None, DATA,
        "System message put before every prompt, in place of a row's own; makes text prompts conversations.",
        part_of="score")
    chat: bool | None = setting(None, DATA,
        "Make text prompts user messages, in the model's chat template; --no-chat: never, also not those of known "
        "data sets; default: those of known data sets alone, and a line where other text prompts meet a chat template.",
        part_of="score")
    chat_template_arg: list[str] = setting([], DATA,
        "Argument of the chat template as KEY=VALUE, such as enable_thinking=false; a row's chat_template_kwargs stand "
        "before it; repeatable.", part_of="score")
    shuffle: bool = setting(True, DATA, "Shuffle the rows, with the run's seed, anew each epoch.", part_of="score")
    max_prompt_length: int = setting(1024, DATA,
        "Prompts of more tokens than this are dropped before training, and counted.",
        within=AT_LEAST_1, part_of="plan serve score")

    # -- reward --------------------------------------------------------------------------------------------------
    reward: list[str] = setting([], REWARD,
        "Built-in name (math, code, arithmetic, format, soft_overlong, cosine, repetition, judge), reward_model:MODEL "
        "or file.py:function; repeatable; default: the data set's own.", part_of="plan score", path=paths.function)
    reward_weights: list[float] = setting([], REWARD,
        "Weight of each --reward, in the same order; default: 1 each.", part_of="score")
    reward_timeout: float = setting(60.0, REWARD,
        "Seconds one call of a reward function may take before its process is killed.",
        within=POSITIVE, resumable=True, part_of="score")
    reward_error_budget: float = setting(0.05, REWARD,
        "Share of a batch's rewards that may fail before the run stops.", within=SHARE, resumable=True, part_of="score")
    reward_arg: list[str] = setting([], REWARD,
        "Option of a reward function as NAME.KEY=VALUE, such as soft_overlong.cache=64; repeatable.",
        part_of="plan score", path=paths.option)
    reward_workers: int = setting(1, REWARD,
        "Processes of each reward function of yours; built-in ones have a number of their own. 0: called in the process that "
        "scores, the script's own with engine transformers, where nothing ends a call or outlives a crash.",
        within=NOT_NEGATIVE, resumable=True, part_of="score")
    reward_batch: Literal["group", "step"] = setting("group", REWARD,
        "What a reward function of yours is called with: the completions of one prompt, while others are sampled, or "
        "all of a step.", part_of="score")
    sandbox: Literal["auto", "strict", "landlock", "basic"] = setting("auto", REWARD,
        "How the code reward confines model-written code; auto: the strongest that works here, strict: that or an "
        "error.", resumable=True, part_of="plan score reward")

    # -- rollout -------------------------------------------------------------------------------------------------
    engine: engines.EngineName = setting("auto", ROLLOUT, engines.HELP, resumable=True, part_of="plan")
    vllm_server_url: list[str] = setting([], ROLLOUT,
        "A vLLM server that already runs; repeatable; nothing is started or stopped then.",
        resumable=True, part_of="plan")
    num_servers: int = setting(1, ROLLOUT, "vLLM servers to start.", within=AT_LEAST_1, resumable=True, part_of="plan")
    tensor_parallel_size: int = setting(1, ROLLOUT,
        "GPUs per vLLM server.", within=AT_LEAST_1, resumable=True, part_of="plan serve")
    gpu_memory_utilization: float = setting(0.9, ROLLOUT,
        "Share of a GPU's memory that its vLLM server may take.",
        within=SHARE_ABOVE_0, resumable=True, part_of="plan serve")
    max_model_len: int | None = setting(None, ROLLOUT,
        "Context length of the vLLM servers; default: max_prompt_length + max_completion_length, within the model's.",
        within=AT_LEAST_1, resumable=True, part_of="plan serve")
    vllm_arg: list[str] = setting([], ROLLOUT,
        "Further flag for the vLLM servers as KEY=VALUE, such as enforce-eager=true; repeatable.",
        resumable=True, part_of="plan serve")
    simulation_arg: list[str] = setting([], ROLLOUT,
        "What engine simulated and `postrl plan --simulate` assume, as KEY=VALUE, such as length-mean=300; repeatable "
        "(docs/planning.md).", resumable=True, part_of="plan")
    server_start_timeout: float = setting(900.0, ROLLOUT,
        "Seconds a vLLM server may take to start.", within=POSITIVE, resumable=True)
    server_frozen_timeout: float = setting(60.0, ROLLOUT,
        "Seconds a vLLM server may fail to answer /health before it is ended and started again.",
        within=POSITIVE, resumable=True)
    server_restarts: int = setting(3, ROLLOUT,
        "Restarts of one vLLM server within half an hour; one that falls again is given up, and the run goes on with "
        "the others.", within=NOT_NEGATIVE, resumable=True)
    worker_restarts: int = setting(3, ROLLOUT,
        "Restarts of the rollout worker within half an hour, where it died without an error of its own.",
        within=NOT_NEGATIVE, resumable=True)
    request_timeout: float = setting(600.0, ROLLOUT,
        "Seconds one completion may take before it is cancelled and asked for again.", within=POSITIVE, resumable=True)
    weight_sync: Literal["auto", "full", "lora", "merge"] = setting("auto", ROLLOUT,
        "What vLLM servers are sent after an update: full (all weights), lora (the LoRA adapter alone, loaded beside "
        "the older ones) or merge (all weights with the adapter merged in); auto: lora for LoRA where the servers "
        "can, else all weights.", resumable=True, part_of="plan serve")
    prompts_per_step: int = setting(32, ROLLOUT,
        "Prompts of one step; times num_generations gives the completions it trains on.",
        within=AT_LEAST_1, part_of="plan")
    num_generations: int = setting(8, ROLLOUT,
        "Completions per prompt: the size of a group.", within=AT_LEAST_1, part_of="plan")
    max_completion_length: int = setting(512, ROLLOUT,
        "Most tokens of one completion.", within=AT_LEAST_1, part_of="plan serve score reward")
    temperature: float = setting(1.0, ROLLOUT, "Sampling temperature of training rollouts.", within=POSITIVE)
    top_p: float = setting(1.0, ROLLOUT,
        "Nucleus sampling of training rollouts: only the likeliest tokens that make up this share; 1: off.",
        within=SHARE_ABOVE_0)
    top_k: int = setting(0, ROLLOUT, "Only the K likeliest tokens in training rollouts; 0: off.", within=NOT_NEGATIVE)
    min_p: float = setting(0.0, ROLLOUT,
        "Only tokens at least this share as likely as the likeliest in training rollouts; 0: off.", within=SHARE)
    stop: list[str] = setting([], ROLLOUT,
        "Text that ends a completion, beside eos tokens and, in conversations, the end of the turn; repeatable.")

    # -- asynchronous mode -----------------------------------------------------------------------------------------
    max_staleness: int = setting(0, ASYNC,
        "Weight versions that a completion may be behind the policy it trains; above 0 the servers go on generating "
        "while the trainer trains. --async is short for 1.", within=NOT_NEGATIVE, resumable=True, part_of="plan serve")
    stale_policy: Literal["wait", "drop_rollout", "drop_group"] = setting("wait", ASYNC,
        "What becomes of a completion that is not finished when the last batch it may train is put together: that "
        "batch waits for it, or it is dropped, alone or with its group. Dropping what is slow trains on what is short.",
        resumable=True, part_of="plan")
    stale_wait: float = setting(600.0, ASYNC,
        "Seconds that a batch which could be full without it waits for such a completion (stale_policy wait).",
        within=POSITIVE, resumable=True, part_of="plan")
    rollout_queue_size: int | None = setting(None, ASYNC,
        "Most groups that are being generated or wait to be trained on; default: as many as max_staleness allows.",
        within=AT_LEAST_1, resumable=True, part_of="plan")
    in_flight: Literal["keep", "keep_kv", "wait", "abort"] = setting("keep", ASYNC,
        "What becomes of running completions when new weights come: keep (they go on, keys and values computed anew), "
        "keep_kv (they go on with the old ones), wait (they end first), abort (they are sent again with what they "
        "have).", resumable=True, part_of="plan")

    # -- algorithm -----------------------------------------------------------------------------------------------
    algorithm: str = setting("grpo", ALGORITHM,
        "What is computed, with its own defaults: NAME as in `postrl NAME`, or file.py:PRESET (docs/algorithms.md).",
        part_of="plan", path=paths.function)
    beta: float = setting(0.0, ALGORITHM,
        "Weight of the KL to the initial policy; 0: no reference model is held.", within=NOT_NEGATIVE, part_of="plan")
    kl_placement: Literal["loss", "reward"] = setting("loss", ALGORITHM,
        "Where the KL counts: a term of the loss, or taken off the reward of each token.")
    kl_estimator: Literal["k1", "k2", "k3_unbiased", "k3_biased"] | None = setting(None, ALGORITHM,
        "How the KL is estimated; default: k3_unbiased in the loss, k1 in the reward.")
    sync_ref_model: bool = setting(False, ALGORITHM,
        "Let the reference follow the policy, every ref_model_sync_steps steps.")
    ref_model_sync_steps: int = setting(512, ALGORITHM,
        "Steps between two refreshes of the reference.", within=AT_LEAST_1)
    ref_model_mixup_alpha: float = setting(0.6, ALGORITHM,
        "Share of the policy in a refreshed reference; the rest is the old reference.", within=SHARE_ABOVE_0)
    epsilon: float = setting(0.2, ALGORITHM,
        "Trust region: the ratio is clipped below at 1 - epsilon.", within=NOT_NEGATIVE)
    epsilon_high: float | None = setting(None, ALGORITHM,
        "Trust region: the ratio is clipped above at 1 + epsilon_high; default: epsilon.", within=NOT_NEGATIVE)
    dual_clip: float | None = setting(None, ALGORITHM,
        "Trust region: ceiling of the ratio for negative advantages, above 1 + epsilon_high; 3 is usual; default: "
        "none.")
    allow_wide_clip: bool = setting(False, ALGORITHM, "Allow gspo an epsilon of 0.01 or more.")
    proximal: Literal["learner", "sampler"] = setting("learner", ALGORITHM,
        "Policy that ratios are taken against: the learner's when the step started, or the sampler's (is_correction "
        "none).")
    is_cap_low: float = setting(0.0, ALGORITHM, "cispo: least weight of a token.", within=NOT_NEGATIVE)
    is_cap_high: float = setting(5.0, ALGORITHM, "cispo: largest weight of a token.", within=AT_LEAST_1)
    sapo_temperature_pos: float = setting(1.0, ALGORITHM,
        "sapo: sharpness of the gate for positive advantages.", within=POSITIVE)
    sapo_temperature_neg: float = setting(1.05, ALGORITHM,
        "sapo: sharpness of the gate for negative advantages.", within=POSITIVE)
    scale_rewards: Literal["group", "batch", "none"] = setting("group", ALGORITHM,
        "What divides the centred rewards: the group's standard deviation, the batch's, or nothing.")
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = setting("sum_then_normalize", ALGORITHM,
        "Several rewards: their weighted sum is normalised, or each is normalised before they are added.")
    loss_aggregation: Aggregation = setting("token_mean", ALGORITHM,
        "How token losses become one number (docs/algorithms.md).")
    num_iterations: int = setting(1, ALGORITHM, "Passes over each batch.", within=AT_LEAST_1, part_of="plan")
    minibatches: int = setting(1, ALGORITHM,
        "Optimizer steps per pass over a batch.", within=AT_LEAST_1, part_of="plan")
    is_correction: Correction = setting("tis", ALGORITHM,
        "Correction of the difference between sampler and learner: importance weights of tokens truncated to [0, 2] "
        "(tis), none, or one of the others (docs/algorithms.md).")
    is_low: float | None = setting(None, ALGORITHM,
        "Lower bound of the importance ratio, from 0 to 1, below which is_correction truncates or rejects; default: "
        "its own.", within=SHARE)
    is_high: float | None = setting(None, ALGORITHM,
        "Upper bound of the importance ratio, 1 or more; default: its own.", within=AT_LEAST_1)
    is_eps: float | None = setting(None, ALGORITHM,
        "is_correction seed truncates to [1 - is_eps, 1 + is_eps]; default: 0.2.", within=SHARE_ABOVE_0)
    is_delta: float | None = setting(None, ALGORITHM,
        "is_correction opsm rejects completions worse than their group that became less likely by more than this, in "
        "nats a token; default: 0.1. binary_kl rejects those whose mean binary KL is above it; default: 0.005.",
        within=POSITIVE)
    entropy_coef: float = setting(0.0, ALGORITHM, "Weight of the entropy bonus in the loss.", within=NOT_NEGATIVE)
    dynamic_sampling: bool = setting(False, ALGORITHM,
        "Replace groups whose completions are all right or all wrong by those of other prompts.")
    max_refills: int = setting(10, ALGORITHM,
        "Batches' worth of groups that dynamic_sampling may replace for one batch; then what is there is trained on.",
        within=NOT_NEGATIVE)
    overlong_buffer: float = setting(0.0, ALGORITHM,
        "Soft overlong punishment: over this last share of max_completion_length the reward falls, by up to 1; 0: "
        "none.", within=SHARE_BELOW_1)
    mask_truncated_completions: bool = setting(False, ALGORITHM,
        "Leave completions that hit the token limit out of the loss.")

    # -- critic --------------------------------------------------------------------------------------------------
    critic_model: str | None = setting(None, CRITIC,
        "Model whose body the critic starts from, with a new head that gives 0: id, folder or packaged name; default: "
        "the policy's own.", part_of="plan", path=paths.folder_or_name)
    critic_learning_rate: float = setting(1e-5, CRITIC, "Peak learning rate of the critic.", within=NOT_NEGATIVE)
    critic_warmup_steps: int = setting(0, CRITIC,
        "First steps in which the critic alone is trained: the policy stays as it is.",
        within=NOT_NEGATIVE, part_of="plan")
    value_clip: float | None = setting(0.5, CRITIC,
        "The critic's new value is clipped to its old one plus or minus this; null in YAML: never.", within=POSITIVE)
    gamma: float = setting(1.0, CRITIC, "Discount of rewards by token (also of reinforce_pp).", within=SHARE)
    gae_lambda: float = setting(1.0, CRITIC, "Lambda of the policy's advantages.", within=SHARE)
    gae_lambda_critic: float = setting(1.0, CRITIC, "Lambda of the critic's returns.", within=SHARE)
    length_adaptive_alpha: float | None = setting(None, CRITIC,
        "Lambda of the policy is 1 - 1 / (alpha * length) for each completion; default: gae_lambda for all.",
        within=POSITIVE)
    bootstrap_truncated: bool = setting(False, CRITIC,
        "Completions cut at the token limit end with the critic's value instead of 0.")
    whiten_advantages: bool = setting(True, CRITIC,
        "Scale advantages to mean 0 and variance 1 over the batch's tokens.")
    nll_coef: float = setting(0.0, CRITIC,
        "Weight of the negative log-likelihood of completions that a verifier found right.", within=NOT_NEGATIVE)

    # -- optimizer -----------------------------------------------------------------------------------------------
    learning_rate: float = setting(1e-6, OPTIMIZER, "Peak learning rate.", within=NOT_NEGATIVE)
    lr_scheduler_type: Schedule = setting("constant", OPTIMIZER,
        "Shape of the learning rate after the warm-up, as transformers' schedule of this name has it: constant, linear, "
        "cosine, ... (docs/settings.md).")
    lr_scheduler_arg: list[str] = setting([], OPTIMIZER,
        "Argument of the schedule as KEY=VALUE, such as num_cycles=3 or min_lr_rate=0.1; repeatable.")
    warmup_steps: Steps = setting(0, OPTIMIZER,
        "Optimizer steps over which the learning rate rises from 0.", within=STEPS_OR_SHARE)
    weight_decay: float = setting(0.0, OPTIMIZER, "Decoupled weight decay.", within=NOT_NEGATIVE)
    adam_beta1: float = setting(0.9, OPTIMIZER, "AdamW: decay of the mean of gradients.", within=SHARE_BELOW_1)
    adam_beta2: float = setting(0.999, OPTIMIZER, "AdamW: decay of the mean of their squares.", within=SHARE_BELOW_1)
    adam_epsilon: float = setting(1e-8, OPTIMIZER, "AdamW: added to the root of that mean.", within=NOT_NEGATIVE)
    max_grad_norm: float = setting(1.0, OPTIMIZER,
        "Gradients are scaled down to this norm; 0: never.", within=NOT_NEGATIVE)
    optim: Literal["adamw", "sgd"] = setting("adamw", OPTIMIZER, "Optimizer.")
    gradient_checkpointing: bool | None = setting(None, OPTIMIZER,
        "Recompute activations in the backward pass to save memory; default: on GPUs only.", resumable=True)
    max_tokens_per_microbatch: int | None = setting(None, OPTIMIZER,
        "Most tokens (prompt and completion, padded) of one forward pass; lower it when memory runs out. Default: "
        "8192 on GPUs, 1536 on CPUs, more where one rollout needs it.",
        within=AT_LEAST_1, resumable=True, part_of="plan")
    num_processes: int | None = setting(None, OPTIMIZER,
        "Trainer ranks; default: the GPUs that the vLLM servers leave free, 1 on CPUs.",
        within=AT_LEAST_1, resumable=True, part_of="plan")

    # -- run -----------------------------------------------------------------------------------------------------
    output_dir: str | None = setting(None, RUN,
        "The run's folder; default: runs/<run name>.", resumable=True, part_of="plan serve", path=paths.place_to_write)
    run_name: str | None = setting(None, RUN,
        "Name of the run; default: model, data set and time.", resumable=True, part_of="plan")
    max_steps: int = setting(-1, RUN,
        "Steps to train; -1: as many as num_train_epochs needs.", within=STEPS, resumable=True, part_of="plan")
    num_train_epochs: float = setting(1.0, RUN,
        "Passes over the prompts when max_steps is -1.", within=POSITIVE, resumable=True, part_of="plan")
    save_steps: Steps = setting(100, RUN,
        "Steps between checkpoints; 0: only at the end and when it is stopped.", within=STEPS_OR_SHARE, resumable=True)
    on_hangup: Literal["save", "continue"] = setting("save", RUN,
        "What a closed terminal (SIGHUP) means: save: finish the step, save and stop; continue: go on without it.",
        resumable=True)
    save_total_limit: int | None = setting(2, RUN,
        "Checkpoints to keep, the newest ones.", within=AT_LEAST_1, resumable=True)
    eval_steps: Steps = setting(0, RUN,
        "Steps between evaluations; 0: only before and after training, and only with an evaluation set.",
        within=STEPS_OR_SHARE, resumable=True)
    eval_dataset: str | None = setting(None, RUN,
        "Data set to evaluate on: NAME, NAME:split or a local file.",
        resumable=True, part_of="plan score", path=paths.data_or_name)
    eval_prompts: int = setting(200, RUN,
        "Most prompts of one evaluation, spread evenly over the rows.", within=AT_LEAST_1, resumable=True)
    num_generations_eval: int = setting(1, RUN,
        "Completions of each prompt of an evaluation: 1: a greedy one; more: sampled as in training.",
        within=AT_LEAST_1, resumable=True)
    logging_steps: Steps = setting(1, RUN,
        "Steps between lines on the screen; metrics.jsonl has every step.", within=SOME_STEPS_OR_SHARE, resumable=True)
    seed: int = setting(42, RUN, "Seed of data order and sampling.", within=NOT_NEGATIVE, part_of="plan serve")
    resume: bool = setting(False, RUN,
        "Continue from the newest checkpoint in output_dir.", resumable=True, part_of="plan")
    replay: str | None = setting(None, RUN,
        "Train on the stored rollouts of this run folder instead of generating.",
        part_of="plan", path=paths.path_itself)
    report_to: list[str] = setting([], RUN,
        "Trackers to log to: tensorboard, wandb, trackio, mlflow; repeatable.", resumable=True, part_of="plan")
    project: str | None = setting(None, RUN,
        "The trackers' project; default: the variable WANDB_PROJECT (of wandb; the others have theirs), else postrl.",
        resumable=True)
    push_to_hub: str | None = setting(None, RUN, "Hub id to upload the final model to.", resumable=True, part_of="plan")
    debug: bool = setting(False, RUN, "Show tracebacks.", resumable=True, part_of="plan serve")
    # fmt: on

    @classmethod
    def part(cls, name: str) -> frozenset[str]:
        """The settings that something depends on; see `part_of` of `setting`."""
        return frozenset(f.name for f in fields(Settings) if name in f.metadata["part_of"])

    @property
    def rollouts_per_step(self) -> int:
        return self.prompts_per_step * self.num_generations

    @property
    def max_loras(self) -> int:
        """LoRA adapters that a server holds at once: those that a rollout may need, and the one before them."""
        return self.max_staleness + 2

    def microbatch_tokens(self, device: str) -> int:
        """`max_tokens_per_microbatch`, or its default on a device of this type ("cuda", "cpu")."""
        longest = self.max_prompt_length + self.max_completion_length
        return self.max_tokens_per_microbatch or max(longest, 1536 if device == "cpu" else 8192)
