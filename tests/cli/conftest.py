"""Runs the command line as a process: what a user's shell sees."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def postrl(tmp_path) -> Callable[..., Finished]:
    """`postrl("grpo", "--help")`: in an empty folder, 100 columns wide, without colour."""
    return lambda *args: help_of(*args) if {"--help", "--help-all"} & {*args} else run(args, tmp_path)


@functools.cache
def help_of(*args: str) -> Finished:
    """What a command shows with --help, as many tests read it, depends on its words alone."""
    with tempfile.TemporaryDirectory() as empty:
        return run(args, empty)


def run(args: Sequence[str], folder: str | Path) -> Finished:
    env = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [sys.executable, "-m", "postrl", *args],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=folder,
        env={**env, "COLUMNS": "100", "NO_COLOR": "1"},
        timeout=60,
    )
