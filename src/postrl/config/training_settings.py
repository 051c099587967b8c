"""The settings of how it is trained: algorithm, critic, optimizer, and the run around them."""
# ruff: noqa: RUF009 (setting() gives lists a default_factory, so no default is shared)

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from postrl.config import paths
from postrl.config.setting import (
    ALGORITHM,
    AT_LEAST_1,
    CRITIC,
    NOT_NEGATIVE,
    OPTIMIZER,
    POSITIVE,
    RUN,
    SHARE,
    SHARE_ABOVE_0,
    SHARE_BELOW_1,
    SOME_STEPS_OR_SHARE,
    STEPS,
    STEPS_OR_SHARE,
    Steps,
    setting,
)  # fmt: skip

Correction = Literal[
    "tis", "tis_seq", "icepop", "mis_seq", "seq_mask_tis", "opsm", "binary_kl", "decoupled", "seed", "none"
]
Schedule = Literal[
    "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "cosine_with_min_lr",
    "cosine_warmup_with_min_lr", "warmup_stable_decay",
]  # fmt: skip
Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]


@dataclass(kw_only=True)
class TrainingSettings:
    """The update, and what a run leaves behind."""

    # fmt: off
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
    log_completions: int = setting(0, RUN,
        "Completions of a step to show under its line, shortened, with prompt and reward; all are in RUN/rollouts.",
        within=NOT_NEGATIVE, resumable=True)
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
    hub_strategy: Literal["end", "every_save"] = setting("end", RUN,
        "When the model is uploaded: at the end, or also with every checkpoint.", resumable=True)
    debug: bool = setting(False, RUN, "Show tracebacks.", resumable=True, part_of="plan serve")
    # fmt: on
