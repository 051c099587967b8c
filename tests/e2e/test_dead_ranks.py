"""One of two ranks fails: the run names that one and what it failed of, whoever else then lost the connection to it."""

from __future__ import annotations

import pytest

from e2e.runs import Command, wait_for
from learning.batches import make_groups
from postrl.rollout.store import write_rollouts

pytestmark = pytest.mark.slow

ALGORITHM = """
import ctypes, os, signal, time
from postrl.algorithms import Preset

def loss(logp_BT, prox_BT, advantages, mask_BT, a):
    if os.environ["RANK"] == "1":
        fail(os.environ["FAILS"])
    return -(advantages.unsqueeze(-1) * (logp_BT - prox_BT).exp()), {}

def fail(how):
    if how == "crash":
        ctypes.string_at(0)
    if how == "raise":
        raise KeyError("entropy_bonus")
    if how == "memory":
        raise MemoryError("40 GiB")
    open("waiting", "w").close()
    time.sleep(3600)

Failing = Preset("failing", advantage="group", loss=loss)
"""
RUN = ("--model", "tiny", "--replay", "stored", "--engine", "transformers", "--num-processes", "2")
RUN += ("--prompts-per-step", "4", "--num-generations", "4", "--max-completion-length", "16")


@pytest.fixture(scope="module")
def workplace(place):
    (place.folder / "failing.py").write_text(ALGORITHM)
    write_rollouts(place.folder / "stored" / "rollouts", 1, "train", make_groups(seed=1))
    return place


def listening(command: Command) -> list[str]:
    everyone = [command.process, *command.descendants()]
    return [c.laddr.ip for process in everyone for c in process.net_connections() if c.status == "LISTEN"]


@pytest.fixture(scope="module")
def failed(workplace, side_by_side):
    """How the second rank fails -> a future: how the run ended."""

    def run(how):
        args = (*RUN, "--algorithm", "failing.py:Failing", "--output-dir", f"failed-{how}")
        return workplace.start("grpo", *args, FAILS=how)

    return {how: side_by_side.submit(lambda how=how: run(how).wait()) for how in ("crash", "raise", "memory")} | {
        "kill": side_by_side.submit(killed, workplace, run)
    }


def killed(workplace, run):
    """The second rank is killed where it stands; what the run listened on until then comes first."""
    command = run("kill")
    wait_for("the second rank", lambda: (workplace.folder / "waiting").exists() or command.ended())
    ips = listening(command)
    ranks = {process.environ()["RANK"]: process for process in command.named("postrl learner")}
    ranks["1"].kill()
    return ips, command.wait()


@pytest.mark.parametrize(
    "how, message",
    [
        ("crash", "error: trainer: rank 1 was ended by SIGSEGV, in native code called from code of yours ({file}:12, in fail)"),
        ("raise", "error: the trainer (rank 1) failed in code of yours with KeyError: 'entropy_bonus'\n    {file}:14, in fail: "),
        ("memory", "error: the trainer (rank 1) ran out of memory: MemoryError: 40 GiB\n    {file}:16, in fail: "),
    ],
)  # fmt: skip
def test_a_rank_that_fails_is_named_with_its_cause(workplace, failed, how, message):
    finished = failed[how].result()
    assert (finished.code, finished.survivors) == (1, [])
    assert message.format(file=workplace.folder / "failing.py") in finished.err
    assert "bug in postrl" not in finished.err


def test_a_rank_that_is_killed_is_named_and_not_who_lost_it(failed):
    _, finished = failed["kill"].result()
    assert (finished.code, finished.survivors) == (1, [])
    assert (
        "error: trainer: rank 1 was ended by SIGKILL\n(the other ranks then lost the connection to it)" in finished.err
    )
    assert "bug in postrl" not in finished.err


def test_two_ranks_listen_on_the_loopback_interface_only(failed):
    ips, _ = failed["kill"].result()
    assert len(ips) >= 3  # the store, and a socket of gloo for each rank
    assert {*ips} <= {"127.0.0.1", "::1"}
