"""Small groups, runners and waits for the tests of rewards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import psutil

from postrl.rewards import resolve
from postrl.rewards.runner import RewardRunner
from postrl.types import Group, Messages, Rollout

PATIENCE = 60.0
"""Seconds a call that should succeed may take on a busy machine."""


def group(*completions: str, messages: Messages | None = None, rewards: tuple[str, ...] = (), **columns: Any) -> Group:
    rollouts = [
        Rollout("test:0", i, prompt_ids=[1], completion_ids=[2] * (i + 1), logps=[0.0] * (i + 1), version_spans=[],
                finish_reason="stop", completion=text)
        for i, text in enumerate(completions)
    ]  # fmt: skip
    return Group("test:0", 0, "What is 3 + 4?", messages, columns, rollouts, rewards)


def runner(*rewards: str | Callable[..., Any], timeout: float = PATIENCE, **settings: Any) -> RewardRunner:
    return RewardRunner([resolve(reward) for reward in rewards], timeout=timeout, **settings)


def score(rewards: RewardRunner, *groups: Group) -> None:
    async def all_groups() -> None:
        await asyncio.gather(*(rewards.score(g) for g in groups))

    asyncio.run(all_groups())


def values(g: Group, name: str) -> list[float | None]:
    return [rollout.rewards[name] for rollout in g.rollouts]


def statuses(g: Group, name: str) -> list[str]:
    return [rollout.statuses[name] for rollout in g.rollouts]


def reward_processes_of(parent: int) -> list[psutil.Process]:
    """The reward processes that a process started, and their guards, found by the parent's id in their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if "postrl.rewards.calling.serving" in command and command[-1] == str(parent):
            found.append(process)
    return found


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        time.sleep(0.02)
