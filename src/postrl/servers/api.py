"""What requests to a vLLM server say and what its answers mean. No connection: `postrl.servers.client` has that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from postrl.types import Sampled, VersionSpan

NOT_OURS = -1
"""Version of weights that postrl did not push: those a server was started with, or a label someone else set."""

MISSING_LOGP = -9999.0
"""vLLM's stand-in for a log-probability that is NaN, -inf or absent."""

PASSING = (408, 425, 429)
"""Statuses of a client's error that pass: too slow, too early, too many."""
UNKNOWN_MODEL = "NotFoundError"
"""In vLLM's answer to a request for a model or adapter that it does not have; a route that is not there says otherwise."""
GENERATE = "/inference/v1/generate"
MODELS = "/v1/models"
LOAD_ADAPTER = "/v1/load_lora_adapter"
RUNTIME_ADAPTERS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
"""Variable of a server that opens the routes for adapters."""

ADAPTER_PREFIX = "policy-"


def adapter_name(version: int) -> str:
    """What servers call the LoRA adapter of a weight version; -1: the canary's, which is not a version."""
    return f"{ADAPTER_PREFIX}perturbed" if version == NOT_OURS else f"{ADAPTER_PREFIX}v{version}"


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """The numbers of /metrics that a run reports; data-parallel engines are added up."""

    kv_cache_usage: float
    """Share of the KV cache in use, 0 to 1; of the fullest engine."""
    preemptions: int
    """Requests pushed out of the KV cache since the server started. A push that clears the cache counts too."""
    generation_tokens: int
    """Tokens generated since the server started."""
    prompt_tokens: int
    """Tokens read since then. Counters that both stand still while requests run mean a stuck server."""
    running: int
    waiting: int


def sampling_params(
    seed: int,
    temperature: float,
    max_tokens: int,
    stop: Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
) -> dict[str, Any]:
    """What makes /inference/v1/generate sample one completion from the whole, unpenalised distribution.

    All of it is said, so that no default of the server or of the model's generation_config steps in.
    """
    sampling: dict[str, Any] = {
        "n": 1, "seed": seed, "temperature": temperature, "max_tokens": max_tokens, "logprobs": 0,
        "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
    }  # fmt: skip
    if stop_token_ids:
        sampling["stop_token_ids"] = list(stop_token_ids)
    # The server needs the text only to look for stop strings, and those may hold special tokens.
    sampling |= {"stop": list(stop), "skip_special_tokens": False} if stop else {"detokenize": False}
    return sampling


def request_body(token_ids: Sequence[int], sampling: dict[str, Any], **others: Any) -> dict[str, Any]:
    """What /inference/v1/generate is asked; of `others`, what is not empty."""
    others = {name: value for name, value in others.items() if value}
    return {"token_ids": list(token_ids), "sampling_params": sampling, **others}


def parse_version(text: str | int) -> int:
    """The weight version that vLLM reports as text; -1 for what is no plain number, such as "default"."""
    return int(text) if str(text).isdecimal() else NOT_OURS


def parse_logp(entry: dict[str, Any] | None) -> float:
    logp = None if entry is None else entry.get("logprob")
    return math.nan if logp is None or logp <= MISSING_LOGP else float(logp)


def parse_completion(answer: dict[str, Any]) -> Sampled:
    """The one completion in the answer of /inference/v1/generate; ValueError, KeyError or TypeError: there is not one."""
    (choice,) = answer["choices"]
    token_ids = [int(token) for token in choice["token_ids"]]
    content = (choice.get("logprobs") or {}).get("content")
    logps = [math.nan] * len(token_ids) if content is None else [parse_logp(entry) for entry in content]
    if len(logps) != len(token_ids):
        raise ValueError(f"{len(logps)} log-probs for {len(token_ids)} tokens")
    if choice["finish_reason"] not in ("stop", "length", "abort"):
        raise ValueError(f"finish_reason {choice['finish_reason']!r}")
    return Sampled(
        token_ids, logps, parse_spans(choice.get("weight_versions"), len(token_ids)), choice["finish_reason"]
    )


def parse_spans(spans: list[dict[str, Any]] | None, length: int) -> list[VersionSpan]:
    """vLLM's weight_versions as spans that cover `length` tokens without gap or overlap; None: nobody's weights."""
    if spans is None:
        return [VersionSpan(NOT_OURS, 0, length)] if length else []
    parsed = [VersionSpan(parse_version(span["version"]), span["start"], span["end"]) for span in spans]
    parsed = [span for span in parsed if span.start != span.end]
    edges = [0, *(span.end for span in parsed)]
    if edges[-1] != length or any(span.start != edge or span.end < edge for span, edge in zip(parsed, edges)):
        raise ValueError(f"weight_versions {spans} do not cover {length} tokens")
    return parsed


def parse_metrics(text: str) -> ServerMetrics:
    """Pick vLLM's numbers out of a Prometheus page; what is not there counts as 0."""
    values: dict[str, list[float]] = {}
    for line in text.splitlines():
        if line.startswith("vllm:"):
            name = line.partition("{")[0].partition(" ")[0]
            values.setdefault(name, []).append(float(line.rsplit(" ", 1)[1]))

    def total(name: str) -> int:
        return int(sum(values.get(name, [0])))

    return ServerMetrics(
        kv_cache_usage=max(values.get("vllm:kv_cache_usage_perc", [0.0])),
        preemptions=total("vllm:num_preemptions_total"),
        generation_tokens=total("vllm:generation_tokens_total"),
        prompt_tokens=total("vllm:prompt_tokens_total"),
        running=total("vllm:num_requests_running"),
        waiting=total("vllm:num_requests_waiting"),
    )


def way_out(route: str, status: int) -> str:
    if status == 401:
        return "set POSTRL_SERVER_TOKEN to the token that the server was started with"
    if status in (403, 404) and route == GENERATE:
        return "start the server with --enable-scale-out"
    if status == 404 and route == LOAD_ADAPTER:
        return f"start the server with --enable-lora, and {RUNTIME_ADAPTERS}=True in its environment"
    if status == 404:
        return "start the server with VLLM_SERVER_DEV_MODE=1 in its environment"
    return ""


def excerpt(text: str, length: int = 600) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[:length]}..."
