"""Engines are rows: what a run may ask for follows from its row, and nobody asks for an engine by its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import postrl
from postrl.config import GRPOConfig
from postrl.config.engines import ENGINES, EngineName, decided, engine_of, servers_of
from postrl.launch.placement import place


def test_every_engine_of_the_flag_is_a_row():
    assert {*get_args(EngineName)} == ENGINES.keys() - {"replay"}


@pytest.mark.parametrize("engine", ["auto", "transformers", "vllm"])
def test_stored_rollouts_are_the_engine_whatever_the_flag_says(engine):
    config = GRPOConfig(
        engine=engine, replay="runs/old", num_processes=2, max_staleness=1, num_generations=1, top_p=0.9
    )
    assert engine_of(config).name == "replay" and servers_of(config) == 0
    assert place(2, engine=engine_of(config).name, num_servers=1).server_devices == []


@pytest.mark.parametrize(
    ("settings", "installed", "found"),
    [
        ({}, True, "vllm"),
        ({}, False, "transformers"),
        ({"vllm_server_url": ["http://127.0.0.1:1", "http://127.0.0.1:2"]}, False, "vllm"),
        ({"engine": "transformers"}, True, "transformers"),
    ],
)
def test_auto_is_vllm_where_it_is_installed_or_a_server_is_named(settings, installed, found):
    assert decided(GRPOConfig(**settings), installed=installed) == found


def test_servers_that_run_already_are_counted_instead_of_those_to_start():
    assert servers_of(GRPOConfig(engine="vllm", num_servers=3)) == 3
    assert servers_of(GRPOConfig(vllm_server_url=["http://127.0.0.1:1"], num_servers=3)) == 1
    assert servers_of(GRPOConfig(engine="transformers", num_servers=3)) == 0


def test_no_code_asks_for_an_engine_by_its_name():
    by_name = re.compile(r"\bengine (==|!=|in|not in) ")
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(postrl.__file__).parent.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if by_name.search(line) and not line.lstrip().startswith(("#", '"""'))
    ]
    assert found == ['engines.py: engine_of(config).embedded      not: config.engine == "transformers"']
