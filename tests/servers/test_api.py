"""What answers of a vLLM server mean; tests/test_servers.py has the connection."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fake_vllm import completion_answer
from postrl.servers.api import parse_completion, parse_metrics
from postrl.types import VersionSpan


def test_a_completion_keeps_tokens_logps_and_versions() -> None:
    completion = parse_completion(completion_answer())
    assert completion.completion_ids == [5, 6, 2]
    assert completion.logps[0] == -0.5 and math.isnan(completion.logps[1]) and completion.logps[2] == -0.25
    assert completion.version_spans == [VersionSpan(0, 0, 2), VersionSpan(1, 2, 3)]
    assert completion.finish_reason == "stop"


def test_missing_logps_are_nan_and_foreign_versions_are_not_ours() -> None:
    spans = [{"version": "default", "start": 0, "end": 3}]
    completion = parse_completion(completion_answer(logprobs=None, weight_versions=spans))
    assert all(map(math.isnan, completion.logps)) and len(completion.logps) == 3
    assert completion.version_spans == [VersionSpan(-1, 0, 3)]
    assert parse_completion(completion_answer(weight_versions=None)).version_spans == [VersionSpan(-1, 0, 3)]


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_versions": [{"version": "0", "start": 0, "end": 2}]},
        {"weight_versions": [{"version": "0", "start": 1, "end": 3}]},
        {"weight_versions": [{"version": "0", "start": 0, "end": 2}, {"version": "1", "start": 1, "end": 3}]},
        {"logprobs": {"content": [{"logprob": -0.5}]}},
        {"finish_reason": "error"},
    ],
    ids=["short spans", "late spans", "overlapping spans", "too few log-probs", "an error"],
)
def test_what_is_no_completion_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        parse_completion(completion_answer(**changes))


def test_metrics_of_data_parallel_engines_are_added_up() -> None:
    page = """
# HELP vllm:kv_cache_usage_perc KV-cache usage.
vllm:kv_cache_usage_perc{engine="0",model_name="m {x} 7"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m {x} 7"} 0.5
vllm:num_preemptions_total{engine="0"} 2.0
vllm:num_preemptions_total{engine="1"} 1.0
vllm:generation_tokens_total{engine="0"} 1.5e+03
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
"""
    metrics = parse_metrics(page)
    assert (metrics.kv_cache_usage, metrics.preemptions, metrics.generation_tokens) == (0.5, 3, 1500)
    assert (metrics.running, metrics.waiting) == (0, 0)
