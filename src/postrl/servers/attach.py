"""What keeps a vLLM server that someone else started from being used: each mismatch with the flag that mends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from postrl.errors import ServerError, WaitTimeout
from postrl.servers.api import NOT_OURS, RUNTIME_ADAPTERS
from postrl.servers.client import VLLMServer

T = TypeVar("T")


def attach_problems(
    server: VLLMServer,
    *,
    model: str | None = None,
    dtype: str | None = None,
    max_model_len: int | None = None,
    backend: str | None = None,
    adapters: tuple[int, int] | None = None,
    resumes: bool = False,
) -> list[str]:
    """Every mismatch at once; empty: the server can be used.

    Args:
        model: path or id that it should serve.
        dtype: "float32" or "bfloat16".
        max_model_len: tokens of prompt and completion that it must take.
        backend: weight-transfer backend, such as "nccl".
        adapters: rank and number of the LoRA adapters that it must hold.
        resumes: the first push replaces all that it holds, and resumes it where it was left paused.
    """
    if not server.health():
        return [f"{server.url} does not answer /health with 200: start it, or correct the URL"]
    problems: list[str] = []

    def ask(call: Callable[[], T]) -> T | None:
        try:
            return call()
        except (ServerError, WaitTimeout) as error:
            problems.append(f"{error.message} ({error.hint})" if error.hint else error.message)
            return None

    if (info := ask(server.server_info)) is not None:
        problems += config_problems(info, model=model, dtype=dtype, max_model_len=max_model_len, backend=backend)
        if adapters:
            problems += ask(lambda: adapter_problems(server, rank=adapters[0], number=adapters[1])) or []
    ask(server.weight_info)
    paused = ask(server.is_paused)
    if paused and not resumes:
        problems.append("it is paused, perhaps in the middle of a weight update of a run that died: restart it")
    if paused is False:  # a paused server would not answer
        ask(server.probe)
    return [problem if server.url in problem else f"{server.url}: {problem}" for problem in dict.fromkeys(problems)]


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
    on_cpu = (config.get("device_config") or {}).get("device") == "cpu"
    if on_cpu and (config.get("scheduler_config") or {}).get("enable_chunked_prefill"):
        problems.append(
            "it reads long prompts in parts, and on a CPU its engine dies of the first seeded request among them: "
            "start it with --no-enable-chunked-prefill"
        )
    if max_model_len is not None and (length := served.get("max_model_len") or 0) < max_model_len:
        problems.append(_too_small("max_model_len", length, max_model_len))
    return problems


def adapter_problems(server: VLLMServer, *, rank: int, number: int) -> list[str]:
    """Why a server cannot hold `number` LoRA adapters of `rank` that come while it runs; empty: it can.

    Raises:
        ServerError, WaitTimeout: it does not answer.
    """
    info, problems = server.server_info(), []
    lora = (info.get("vllm_config") or {}).get("lora_config")
    if not lora:
        problems.append(f"it takes no LoRA adapters: start it with --enable-lora --max-lora-rank {rank} or more")
    else:
        for name, wanted in (("max_lora_rank", rank), ("max_loras", number)):
            if (found := lora.get(name) or 0) < wanted:
                problems.append(_too_small(name, found, wanted))
    if not (info.get("vllm_env") or {}).get(RUNTIME_ADAPTERS):
        problems.append(f"it takes no adapters while it runs: start it with {RUNTIME_ADAPTERS}=True in its environment")
    if (version := server.weight_info()) != NOT_OURS:
        problems.append(
            f"adapters belong to the model it was started with, and weights of version {version} were pushed to it since: restart it"
        )
    return problems


def _too_small(name: str, found: int, wanted: int) -> str:
    return f"its {name} is {found}, and the run needs {wanted}: start it with {flag(name, str(wanted))}"


def flag(name: str, value: str) -> str:
    value = f'\'{{"backend": "{value}"}}\'' if name == "weight_transfer_config" else value
    return f"--{name.replace('_', '-')} {value}"
