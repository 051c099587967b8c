"""Tests that are Python statements, as in HumanEval and MBPP.

Two processes, each in a sandbox of its own, talk over two pipes: the candidate's (`candidate`), which never sees a
test, and that of the tests (`tester`), which never runs a line of the candidate and whose word is the verdict. Exit
codes and what anybody printed decide nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from postrl.rewards.code.bundle import code_fd
from postrl.rewards.code.extract import Program
from postrl.rewards.code.hide import beside
from postrl.rewards.code.places import packages
from postrl.rewards.code.sandbox import Contained, Finished, Limits, Sandbox
from postrl.rewards.code.suite import Suite
from postrl.rewards.code.verdict import Verdict

ENTRY = Path(__file__).with_name("entry.py")
AFTERLIFE = 2.0
"""Seconds in which the process of a candidate that hung up ends, so that its last words tell why."""
MARGIN = 5.0
"""Seconds that the candidate's process may live beyond the tests, whose clock is the one that counts."""


def run_asserts(
    sandbox: Sandbox,
    program: Program,
    suite: Suite,
    *,
    wall: float,
    memory: int,
    partial: bool = False,
    test_wall: float = 0,
) -> Verdict:
    """Run a program's tests.

    Args:
        wall: seconds for all of them.
        test_wall: seconds for each; 0 for no limit of its own.
        memory: bytes for each of the two processes.
        partial: go on after a test that failed.

    Raises:
        SandboxError: the sandbox failed, nothing can be said about the program.
    """
    limits = Limits(wall=wall + MARGIN, cpu=wall + 1, memory=memory)
    with contextlib.ExitStack() as stack:
        candidate, tester = _start_both(sandbox, limits, stack)
        job = {
            "sources": program.alternatives,
            "readable": beside(tuple(packages())),
            "tests": suite.tests,
            "tested": suite.tested,
            "required": suite.required,
            "constants": suite.constants,
            "classes": suite.classes,
            "helpers": suite.helpers,
            "given": suite.given,
            "needs": suite.needs,
            "modules": suite.modules,
            "partial": partial,
            "test_wall": test_wall,
        }
        finished = tester.communicate(json.dumps(job).encode(), wall)
        total = sum(counts for _, counts in suite.tests)
        return _verdict(finished, candidate, total, program.fenced)


def _start_both(sandbox: Sandbox, limits: Limits, stack: contextlib.ExitStack) -> tuple[Contained, Contained]:
    """The candidate's process and that of the tests, with a pipe each way that nobody else holds."""
    requests, replies = os.pipe(), os.pipe()
    try:
        candidate = _start(sandbox, "candidate", (requests[0], replies[1]), limits, subprocess.DEVNULL)
        stack.enter_context(candidate)
        tester = _start(sandbox, "tester", (replies[0], requests[1]), limits, subprocess.PIPE)
        stack.enter_context(tester)
    finally:
        for fd in (*requests, *replies):
            os.close(fd)
    return candidate, tester


def _start(sandbox: Sandbox, role: str, fds: tuple[int, int], limits: Limits, streams: int) -> Contained:
    arguments = [role, *map(str, (code_fd(), *fds))]
    return sandbox.start(
        ENTRY, arguments, limits=limits, stdin=streams, stdout=streams, stderr=streams, pass_fds=(code_fd(), *fds)
    )


def _verdict(finished: Finished, candidate: Contained, total: int, fenced: bool) -> Verdict:
    """What the tests said, and where they lost the candidate how that ended."""
    said = _read(finished.stdout)
    if said is None:
        limit = "timeout" if finished.timed_out or finished.outcome.limit == "cpu" else finished.outcome.limit
        return Verdict(_by_limit(limit), 0, total, limit or f"the tests ended with status {finished.status}")
    status, passed, detail = said["status"], sum(said["passed"]), said["detail"]
    if status == "correct":
        return Verdict("correct", total, total)
    if status == "syntax":
        return Verdict("crashed" if fenced else "no_answer", 0, total, detail)
    if status == "timeout":
        return Verdict("timeout", passed, total, detail)
    if said["memory"]:
        return Verdict("resource", passed, total, detail)
    if status == "crashed":
        candidate.wait(AFTERLIFE)
        outcome = candidate.outcome
        limit = outcome.limit if outcome else None
        detail = f"{detail} ({limit or (outcome and f'status {outcome.status}')})"
        return Verdict(_by_limit(limit), passed, total, detail)
    return Verdict("wrong", passed, total, detail)


def _by_limit(limit: str | None) -> str:
    return "timeout" if limit in ("timeout", "wall", "cpu") else "resource" if limit else "crashed"


def _read(stdout: bytes) -> dict[str, Any] | None:
    """The tests' last words. They are our own program's, which a candidate's values may have killed first."""
    try:
        said = json.loads(stdout)
        return said if isinstance(said, dict) else None
    except ValueError:
        return None
