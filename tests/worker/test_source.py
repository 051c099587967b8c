"""Where groups come from: how many steps there are, stored runs, a worker inside this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from learning.batches import make_groups
from postrl.config import GRPOConfig
from postrl.errors import DataError, UsageError
from postrl.rollout.store import write_rollouts
from postrl.types import GREEDY
from postrl.worker.source import LocalSource, Loop, ReplaySource, total_steps
from postrl.worker.worker import NO_TURN


def steps(num_prompts: int, **options) -> int:
    return total_steps(GRPOConfig(**options), SimpleNamespace(num_prompts=num_prompts))


# -- how long a run is -------------------------------------------------------------------------------------------------


def test_max_steps_rules():
    assert steps(1000, max_steps=7, num_train_epochs=3) == 7


@pytest.mark.parametrize(
    ("num_prompts", "per_step", "epochs", "expected"),
    [(100, 10, 1, 10), (101, 10, 1, 11), (100, 10, 2.5, 25), (3, 32, 1, 1), (1000, 10, 0.001, 1), (100, 1, 0.07, 7)],
)
def test_epochs_give_the_steps_that_pass_over_all_prompts(num_prompts, per_step, epochs, expected):
    assert steps(num_prompts, prompts_per_step=per_step, num_train_epochs=epochs) == expected


# -- a stored run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    for step in (1, 2, 3):
        write_rollouts(tmp_path / "rollouts", step, "train", make_groups(2, 2, seed=step))
    write_rollouts(tmp_path / "rollouts", 3, "eval", make_groups(1, 1))
    return tmp_path


def test_a_replay_gives_the_groups_of_each_step_as_they_were_scored(run):
    source = ReplaySource(run, GRPOConfig())
    for step in (1, 3):
        groups, metrics = source.groups(step, version=9)
        assert [[r.completion_ids for r in g.rollouts] for g in groups] == [
            [r.completion_ids for r in g.rollouts] for g in make_groups(2, 2, seed=step)
        ]
        assert [[r.reward for r in g.rollouts] for g in groups] == [[0.0, 1.0], [0.0, 1.0]]
        assert metrics == {}
    assert not source.has_evaluation


def test_a_replay_has_the_greedy_completions_too(tmp_path):
    groups = make_groups(2, 2)
    groups[0].greedy = replace(groups[0].rollouts[1], sample_index=GREEDY, reward=0.25, dropped="greedy")
    write_rollouts(tmp_path / "rollouts", 1, "train", groups)
    found, _ = ReplaySource(tmp_path, GRPOConfig()).groups(1, version=0)
    assert [group.greedy and group.greedy.reward for group in found] == [0.25, None]
    assert [len(group.rollouts) for group in found] == [2, 2]


def test_a_replay_has_as_many_steps_as_are_stored(run):
    source = ReplaySource(run, GRPOConfig())
    assert [total_steps(GRPOConfig(max_steps=n), source) for n in (-1, 2, 50)] == [3, 2, 3]
    with pytest.raises(UsageError, match="holds 3 stored steps, and step 4 is asked for"):
        source.groups(4, 0)


def test_a_replay_of_nothing_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no stored rollouts"):
        ReplaySource(tmp_path, GRPOConfig())


def test_a_damaged_file_is_refused(run):
    (run / "rollouts" / "step_000002.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"step_000002.parquet is not a file of stored rollouts"):
        ReplaySource(run, GRPOConfig()).groups(2, 0)


# -- a worker inside this process --------------------------------------------------------------------------------------


class Worker:
    """The part of a rollout worker that LocalSource uses."""

    evaluation = None
    names = ("arithmetic",)
    turn = NO_TURN

    def __init__(self) -> None:
        self.rewards = self
        self.started = 0

    async def start(self) -> None:
        self.started += 1

    def pushed(self, version):
        self.version = version

    async def groups(self, version):
        await asyncio.sleep(0)
        assert version == self.version
        return [version], {}


def test_a_worker_in_this_process_works_in_a_notebook_too():
    """There, an event loop runs already in the thread of the script."""
    worker = Worker()

    async def cell() -> list:
        return LocalSource(worker, 10).groups(1, 4)[0]

    assert LocalSource(worker, 10).rewards == ["arithmetic"]
    worker.started = 0
    assert LocalSource(worker, 10).groups(1, 3)[0] == [3]
    assert asyncio.run(cell()) == [4]
    assert worker.started == 2


def test_what_a_coroutine_raises_comes_out_of_either_way():
    async def fail():
        raise UsageError("no")

    async def cell():
        return Loop().run(fail())

    for call in (lambda: Loop().run(fail()), lambda: asyncio.run(cell())):
        with pytest.raises(UsageError, match="no"):
            call()
