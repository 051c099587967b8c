"""How a vLLM server that someone else started differs from what a run needs, read from its /server_info.

Each mismatch is one line with the flag that mends it; `VLLMServer.attach_problems` asks the server and lists them all.
"""

from __future__ import annotations

from typing import Any

RUNTIME_ADAPTERS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"


def config_problems(
    info: dict[str, Any], *, model: str | None, dtype: str | None, max_model_len: int | None, backend: str | None
) -> list[str]:
    """How a server's configuration differs from what a run needs, each with the way out."""
    config = info.get("vllm_config") or {}
    served = config.get("model_config") or {}
    transfer = config.get("weight_transfer_config") or {}
    checks = [
        ("logprobs_mode", served.get("logprobs_mode"), "processed_logprobs"),
        ("model", served.get("model"), model),
        ("dtype", str(served.get("dtype")).removeprefix("torch."), dtype),
        ("weight_transfer_config", transfer.get("backend"), backend),
    ]
    problems = [
        f"its {name} is {found}, expected {wanted}: start it with {flag(name, wanted)}"
        for name, found, wanted in checks
        if wanted is not None and found != wanted
    ]
    if max_model_len is not None and (length := served.get("max_model_len") or 0) < max_model_len:
        problems.append(_too_small("max_model_len", length, max_model_len))
    return problems


def adapter_problems(info: dict[str, Any], *, rank: int, number: int) -> list[str]:
    """Why a server cannot hold `number` LoRA adapters of `rank` that come while it runs; empty: it can."""
    problems = []
    lora = (info.get("vllm_config") or {}).get("lora_config")
    if not lora:
        problems.append(f"it takes no LoRA adapters: start it with --enable-lora --max-lora-rank {rank} or more")
    else:
        for name, wanted in (("max_lora_rank", rank), ("max_loras", number)):
            if (found := lora.get(name) or 0) < wanted:
                problems.append(_too_small(name, found, wanted))
    if not (info.get("vllm_env") or {}).get(RUNTIME_ADAPTERS):
        problems.append(f"it takes no adapters while it runs: start it with {RUNTIME_ADAPTERS}=True in its environment")
    return problems


def _too_small(name: str, found: int, wanted: int) -> str:
    return f"its {name} is {found}, and the run needs {wanted}: start it with {flag(name, str(wanted))}"


def flag(name: str, value: str) -> str:
    value = f'\'{{"backend": "{value}"}}\'' if name == "weight_transfer_config" else value
    return f"--{name.replace('_', '-')} {value}"
