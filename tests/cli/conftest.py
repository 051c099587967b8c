"""Runs command lines as processes, and shows what a user's shell would see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

Finished = subprocess.CompletedProcess[str]

FORKS = """
import json, os, sys
import postrl.cli
import typer._adapters  # which it loads with its first command
for line in sys.stdin:
    folder, args = json.loads(line)
    child = os.fork()
    if not child:
        for name, number in ((os.devnull, 0), ("out", 1), ("err", 2)):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(folder)
        sys.argv[1:] = args
        postrl.cli.main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Forks of a process that has loaded the command line: to load it is most of what a short command does. That nothing else is
needed is tested where it is started by its names (tests/host, tests/e2e)."""


@pytest.fixture(scope="session")
def command_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path, Sequence[str]], Finished]]:
    """`command_line(folder, args)`: `postrl ARGS` in that folder, 100 columns wide, without colour. What a command shows with
    --help depends on its words alone, and is asked once."""
    here, helped = tmp_path_factory.mktemp("command line"), {}
    env = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "PYTHONPATH", "VIRTUAL_ENV")}
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS], cwd=here, env={**env, "COLUMNS": "100", "NO_COLOR": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    assert process.stdin and process.stdout

    def run(folder: Path, args: Sequence[str]) -> Finished:
        if {"--help", "--help-all"} & {*args}:
            if args not in helped:
                helped[args] = forked(here, args)
            return helped[args]
        return forked(folder, args)

    def forked(folder: Path, args: Sequence[str]) -> Finished:
        process.stdin.write(json.dumps([str(folder), args]) + "\n")
        code = int(process.stdout.readline())
        return Finished(args, code, *((here / name).read_text(encoding="utf-8") for name in ("out", "err")))

    yield run
    process.stdin.close()
    process.wait()


@pytest.fixture
def postrl(tmp_path: Path, command_line: Callable[[Path, Sequence[str]], Finished]) -> Callable[..., Finished]:
    """`postrl("grpo", "--help")`, in an empty folder."""
    return lambda *args: command_line(tmp_path, args)
