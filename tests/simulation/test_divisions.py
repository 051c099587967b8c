"""GPUs between servers and trainer ranks."""

from __future__ import annotations

import pytest

from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.simulation.assumptions import Assumptions
from postrl.simulation.divisions import MOST_DIVISIONS, best, compare, divisions
from postrl.simulation.loop import Division, Report

SMALL = {"model": "m", "prompts_per_step": 4, "num_generations": 2}


def assumed(train: float) -> Assumptions:
    return Assumptions(
        length_mean=50.0, length_sigma=0.0, prompt_tokens=10.0, slots=4.0, lone_tokens_per_s=2.0, full_tokens_per_s=4.0,
        prefill_tokens_per_s=1000.0, train_tokens_per_s=train, push_seconds=0.0,
    )  # fmt: skip


def test_every_gpu_is_a_servers_or_the_trainers():
    assert divisions(4, 1) == [Division(1, 3), Division(2, 2), Division(3, 1)]
    assert divisions(8, 2) == [Division(1, 6), Division(2, 4), Division(3, 2)]
    many = divisions(64, 1)
    assert len(many) == MOST_DIVISIONS
    assert (many[0], many[-1]) == (Division(1, 63), Division(63, 1))
    with pytest.raises(UsageError, match="2 GPUs are not enough for a server of tensor_parallel_size = 2"):
        divisions(2, 2)


@pytest.mark.parametrize(("train", "servers"), [(1.0, 1), (300.0, 3)])
def test_what_is_slow_gets_the_gpus(train, servers):
    reports = compare(GRPOConfig(**SMALL), assumed(train), divisions(4, 1), steps=4)
    assert len(reports) == 9
    assert [r.steps_per_hour for r in reports] == sorted((r.steps_per_hour for r in reports), reverse=True)
    assert best(reports).division == Division(servers, 4 - servers)


def test_of_those_as_fast_the_least_stale_is_taken():
    reports = compare(
        GRPOConfig(**SMALL), assumed(3.0), [Division(1, 1)], steps=4
    )  # training is all: nothing beats staleness 1
    assert best(reports).config.max_staleness == 1
    assert reports[0].steps_per_hour == pytest.approx(best(reports).steps_per_hour, rel=0.02)


def test_a_little_faster_is_not_worth_staleness():
    def took(seconds: float, max_staleness: int) -> Report:
        return Report(GRPOConfig(**SMALL, max_staleness=max_staleness), Division(1, 1), steps=10, seconds=seconds)

    fastest, little, slow = took(100.0, 2), took(101.0, 1), took(110.0, 0)
    assert best([fastest, little, slow]) is little
    assert best([fastest, slow]) is fastest


def test_the_bound_of_the_settings_is_compared_too():
    reports = compare(GRPOConfig(**SMALL, max_staleness=4), assumed(3.0), [Division(1, 1)], steps=2)
    assert sorted(r.config.max_staleness for r in reports) == [0, 1, 2, 4]
