"""Processes that are killed or frozen in the middle of a run on real vLLM servers: the run goes on, nothing is lost.

An asynchronous run loses its rollout worker, its server (frozen, then killed) and its launcher, and resumed its trainer; a
synchronous one loses its terminal, one of two servers for good, and later the other. Both are resumed and end their epoch, so
that every prompt can be counted. Servers that are killed must be the run's own, so each of the two starts its own, and starts
them again; they are resumed beside a server that runs already.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from e2e.runs import SERVER_ENV, SMALL_SERVER, Command, Finished, Run, Workplace, wait_for
from live_servers import Live
from postrl.errors import PostrlError
from postrl.launch.ports import LOOPBACK
from postrl.servers.client import VLLMServer

pytestmark = pytest.mark.slow

PROMPTS, PER_STEP, GROUP = 40, 2, 4
STEPS = PROMPTS // PER_STEP
RUN = ("--model", "tiny", "--dataset", "many.jsonl", "--reward", "rewards.py:letters", *SMALL_SERVER)
RUN += ("--prompts-per-step", f"{PER_STEP}", "--num-generations", f"{GROUP}")
RUN += ("--max-prompt-length", "100", "--max-completion-length", "150")
RUN += ("--learning-rate", "1e-3")
API_SERVER, WORKER, TRAINER = "vllm.entrypoints", "postrl worker", "postrl learner"
PATIENCE = 1500.0
"""Seconds a run has for the next step after a fault, with a server to be started again."""


@pytest.fixture(scope="module")
def rows(place: Workplace) -> None:
    """PROMPTS different prompts."""
    lines = [json.dumps({"prompt": f"Count from {n} to {2 * n}: "}) for n in range(PROMPTS)]
    (place.folder / "many.jsonl").write_text("\n".join(lines))


# -- one server: worker, server, launcher and trainer, one after the other ---------------------------------------------


@pytest.fixture(scope="module")
def stricken_run(float32_server: Live) -> Run:
    """Its folder."""
    return Run(float32_server.runs / "stricken")


@pytest.fixture(scope="module")
def stricken(place: Workplace, rows: None, stricken_run: Run) -> tuple[Finished, list[psutil.Process]]:
    """A run whose launcher was killed after worker and server were: what it said, and which of its processes are left."""
    run = stricken_run
    flags = (
        "--output-dir",
        str(run.path),
        "--max-staleness",
        "1",
        "--server-frozen-timeout",
        "30",
        "--save-steps",
        "1",
    )
    with started(place, *RUN, *flags) as command:
        goes_on(command, run, steps=2)
        strike(command, WORKER, signal.SIGKILL)
        goes_on(command, run)
        strike(command, API_SERVER, signal.SIGSTOP)
        goes_on(command, run)
        strike(command, API_SERVER, signal.SIGKILL)
        goes_on(command, run)
        family = command.descendants()
        assert command.only("EngineCore") in family
        os.kill(command.process.pid, signal.SIGKILL)
        return command.wait(PATIENCE), psutil.wait_procs(family, timeout=30)[1]


@pytest.fixture(scope="module")
def trainerless(
    place: Workplace, stricken: Any, stricken_run: Run, float32_server: Live
) -> tuple[Finished, list[psutil.Process]]:
    """The same run, resumed, whose trainer was killed then: what it said, and which of its processes are left."""
    with beside(place, stricken_run, float32_server) as command:
        goes_on(command, stricken_run)
        wait_for("requests to run", lambda: command.ended() or float32_server.server.metrics().running)
        assert not command.ended(), command.said()
        family = command.descendants()
        command.only(TRAINER).kill()
        return command.wait(PATIENCE), psutil.wait_procs(family, timeout=30)[1]


@pytest.fixture(scope="module")
def resumed(place: Workplace, trainerless: Any, stricken_run: Run, float32_server: Live) -> Finished:
    """The same run, continued to its end."""
    with beside(place, stricken_run, float32_server) as command:
        return command.wait(PATIENCE)


def test_a_killed_worker_and_a_killed_or_frozen_server_are_started_again(stricken: Any) -> None:
    said = stricken[0].err
    assert "the rollout worker ended with exit code 137 (SIGKILL) and is started again" in said
    assert "vLLM server 0 ended with exit code 137 (SIGKILL); it is started again" in said
    assert "vLLM server 0 has not answered /health for 30 s; it is started again" in said
    assert said.count("and holds weight version") == 2


def test_nothing_outlives_a_killed_launcher_its_servers_processes_neither(stricken: Any) -> None:
    finished, left = stricken
    assert (finished.code, finished.survivors, left) == (-signal.SIGKILL, [], [])


def test_a_killed_trainer_ends_the_run_with_the_way_to_go_on_and_no_process_is_left(
    trainerless: Any, stricken_run: Run, float32_server: Live
) -> None:
    finished, left = trainerless
    assert (finished.code, finished.survivors, left) == (1, [], [])
    assert "error: trainer: rank 0 was ended by SIGKILL" in finished.err
    assert "continue from step_" in finished.err
    assert finished.err.endswith(f"with: postrl grpo --config {stricken_run.path}/config.yaml --resume\n")
    assert stricken_run.checkpoints()
    assert float32_server.server.health(), "a server that is not the run's goes on"


def test_the_resumed_run_trains_every_prompt_of_the_epoch_once(resumed: Finished, stricken_run: Run) -> None:
    assert (resumed.code, resumed.survivors) == (0, []), resumed.err
    trained_once(stricken_run, max_staleness=1)


# -- two servers, one lost for good, then the other --------------------------------------------------------------------


@dataclass
class Halved:
    """A run whose servers may not be started again, after it lost its terminal, one of two servers and the other."""

    run: Run
    finished: Finished
    without_terminal: str
    """What it had said some steps after all its processes, the servers' among them, had got SIGHUP in the middle of a step."""
    between: list[int]
    """Its steps between the loss of one server and of the other."""


@pytest.fixture(scope="module")
def halved(place: Workplace, resumed: Finished, stricken_run: Run, float32_server: Live) -> Halved:
    """Its model is the one that the run above saved: vLLM loads it."""
    run = Run(float32_server.runs / "halved")
    flags = ("--output-dir", str(run.path), "--num-servers", "2", "--server-restarts", "0", "--on-hangup", "continue")
    with started(place, *RUN, "--model", f"{stricken_run.path}/model", *flags) as command:
        goes_on(command, run, steps=1)
        wait_for("requests to run", lambda: command.ended() or any(map(generates, command.named(API_SERVER))))
        everyone = [command.process, *command.descendants()]
        assert all(c.laddr.ip == LOOPBACK for p in everyone for c in p.net_connections() if c.status == "LISTEN")
        for process in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGHUP)
        goes_on(command, run, steps=2)
        without_terminal = command.said()
        strike(command, API_SERVER, signal.SIGKILL, which=1)
        before = len(run.steps())
        goes_on(command, run, steps=4)
        between = run.steps()[before:]
        strike(command, API_SERVER, signal.SIGKILL)
        return Halved(run, command.wait(PATIENCE), without_terminal, between)


@pytest.fixture(scope="module")
def rescued(place: Workplace, halved: Halved, float32_server: Live) -> Finished:
    """The same run, continued to its end."""
    with beside(place, halved.run, float32_server) as command:
        return command.wait(PATIENCE)


def test_a_run_goes_on_without_its_terminal_and_its_servers_do_not_fall(halved: Halved) -> None:
    assert halved.finished.err.count("SIGHUP: the terminal is gone, and the run goes on") == 1
    assert "SIGHUP" in halved.without_terminal and "vLLM server" not in halved.without_terminal


def test_a_run_goes_on_with_the_server_that_is_left(halved: Halved) -> None:
    said = halved.finished.err
    assert re.search(r"vLLM server \d ended with exit code 137 \(SIGKILL\); it is given up", said)
    assert "it is started again" not in said
    assert len(halved.between) >= 4


def test_a_run_that_lost_its_last_server_saves_and_says_why_it_ends(halved: Halved) -> None:
    finished, run = halved.finished, halved.run
    last = run.steps()[-1]
    assert (finished.code, finished.survivors) == (1, [])
    assert re.search(r"(?s)error: vLLM server \d ended with exit code 137 .*no other server is left", finished.err)
    assert run.checkpoints() == [f"step_{last:06d}"]
    again = f"postrl grpo --config {run.path}/config.yaml --resume"
    assert f"continue from step_{last:06d} with: {again}" in finished.err


def test_the_rescued_run_has_trained_every_prompt_of_the_epoch_once(rescued: Finished, halved: Halved) -> None:
    assert (rescued.code, rescued.survivors) == (0, []), rescued.err
    trained_once(halved.run, max_staleness=0)


# -- faults ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(place: Workplace, *args: str, **env: str) -> Iterator[Command]:
    """`postrl grpo ARGS`; what is left of it is killed with the block."""
    command = place.start("grpo", *args, **SERVER_ENV, **env)
    try:
        yield command
    finally:
        if not command.ended():
            command.process.kill()
            command.wait()


def beside(place: Workplace, run: Run, live: Live) -> contextlib.AbstractContextManager[Command]:
    """The run, resumed beside a server that runs already."""
    flags = ("--config", f"{run.path}/config.yaml", "--resume", "--vllm-server-url", live.server.url)
    return started(place, *flags, "--num-servers", "1", **live.attaching())


def strike(command: Command, name: str, number: signal.Signals, which: int = 0) -> None:
    """Sends a signal to a process of the run while its server generates."""
    wait_for("requests to run", lambda: command.ended() or any(map(generates, command.named(API_SERVER))))
    assert not command.ended(), command.said()
    process = command.named(name)[which] if which else command.only(name)
    process.send_signal(number)
    if number == signal.SIGKILL:
        process.wait(PATIENCE)


def generates(server: psutil.Process) -> bool:
    """Whether requests are running in this API server."""
    try:
        (port,) = [arg.removeprefix("--port=") for arg in server.cmdline() if arg.startswith("--port=")]
        token = server.environ()["POSTRL_SERVER_TOKEN"]
        return VLLMServer(f"http://127.0.0.1:{port}", token=token).metrics().running > 0
    except (PostrlError, psutil.Error):
        return False


def goes_on(command: Command, run: Run, steps: int = 2) -> None:
    """Waits for the next steps of the run."""
    target = max(run.steps(), default=0) + steps
    wait_for(f"step {target}", lambda: run.reached(target) or command.ended(), PATIENCE)
    assert run.reached(target), command.said()


# -- what a run has trained --------------------------------------------------------------------------------------------


def trained_once(run: Run, max_staleness: int) -> None:
    """Every prompt of the epoch is in exactly one step, whole; no weights were too old, and the canary saw each push."""
    metrics, rollouts = run.metrics(), run.rollouts()
    assert [row["step"] for row in metrics] == [*range(1, STEPS + 1)]
    assert [row["weights/version"] for row in metrics] == [*range(STEPS)]
    trained = defaultdict(list)
    for row in rollouts:
        if row["dropped"] is None:
            trained[row["prompt_id"]].append(row)
        first, last = row["version_spans"][0]["version"], row["version_spans"][-1]["version"]
        assert row["step"] - 1 - max_staleness <= first <= last <= row["step"] - 1
    dropped = {row["prompt_id"] for row in rollouts if row["dropped"] is not None}
    assert len({*trained} | dropped) == PROMPTS
    for prompt, group in trained.items():
        assert len({row["step"] for row in group}) == 1, prompt
        assert sorted(row["sample_index"] for row in group) == [*range(GROUP)], prompt
    assert all("weights/canary" in row for row in metrics[:-1])
