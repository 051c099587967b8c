"""One workplace for all tests of this folder, and runs that several of them look at."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.runs import REWARDED, Finished, Workplace
from helpers import base_model_dir, tiny_model_dir

REWARDS = """
import os, time

calls = 0

def letters(completions, completion_ids, **kwargs):
    global calls
    calls += 1  # one a group
    if calls > int(os.environ.get("HOLD_AFTER_CALLS", "1000000")):
        time.sleep(3600)
    return [sum(token % 7 for token in tokens) / (7 * len(tokens)) for tokens in completion_ids]
"""
"""A reward that differs between random completions; HOLD_AFTER_CALLS keeps a run inside a step."""

HOSTILE = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3}
mixed_precision: fp16
num_machines: 4
num_processes: 32
machine_rank: 3
main_process_ip: 203.0.113.1
main_process_port: 1
"""
"""An accelerate configuration, at the place where accelerate looks for it, with which nothing can start."""


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Workplace:
    """The workplace. Its home holds a hostile accelerate configuration; every run here is in spite of it."""
    folder, home = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("home")
    tiny_model_dir(folder / "tiny")
    base_model_dir(folder / "base")
    (folder / "rewards.py").write_text(REWARDS)
    config = home / ".cache" / "huggingface" / "accelerate" / "default_config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(HOSTILE)
    return Workplace(folder, home)


@pytest.fixture(scope="session")
def side_by_side() -> Iterator[ThreadPoolExecutor]:
    """Runs commands next to each other."""
    with ThreadPoolExecutor(3) as executor:
        yield executor
        executor.shutdown(cancel_futures=True)


SIX_STEPS = (*REWARDED, "--max-steps", "6", "--eval-dataset", "arithmetic:eval", "--eval-prompts", "4")


@pytest.fixture(scope="session")
def whole(place) -> Finished:
    """`postrl grpo` over six steps with evaluation, in the folder `whole`."""
    return place.postrl("grpo", *SIX_STEPS, "--output-dir", "whole")
