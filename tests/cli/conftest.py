"""Runs the command line as a process: what a user's shell sees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def postrl(tmp_path) -> Callable[..., Finished]:
    """`postrl("grpo", "--help")`: in an empty folder, 100 columns wide, without colour."""
    env = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "PYTHONPATH", "VIRTUAL_ENV")}

    def run(*args: str) -> Finished:
        command = [sys.executable, "-m", "postrl", *args]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**env, "COLUMNS": "100", "NO_COLOR": "1"},
            timeout=60,
        )

    return run
