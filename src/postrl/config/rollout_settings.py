"""The settings of what is trained on: model, data, rewards, rollouts."""
# ruff: noqa: RUF009 (setting() gives lists a default_factory, so no default is shared)

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from postrl.config import engines, paths
from postrl.config.setting import (
    ASYNC,
    AT_LEAST_1,
    DATA,
    MODEL,
    NOT_NEGATIVE,
    POSITIVE,
    REWARD,
    ROLLOUT,
    SHARE,
    SHARE_ABOVE_0,
    SHARE_BELOW_1,
    setting,
)  # fmt: skip

Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(kw_only=True)
class RolloutSettings:
    """What comes before the update."""

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
    # fmt: on
