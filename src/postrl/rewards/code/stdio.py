"""Tests that are inputs and expected outputs of a script, as in APPS and LiveCodeBench.

The script runs once for each test, as `__main__`, on real pipes, in an empty folder. What it should print is known here
only.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from postrl.rewards.code.asserts import ENTRY
from postrl.rewards.code.bundle import code_fd
from postrl.rewards.code.compare import same_output
from postrl.rewards.code.extract import Program
from postrl.rewards.code.hide import beside
from postrl.rewards.code.places import packages
from postrl.rewards.code.sandbox import Finished, Limits, Sandbox
from postrl.rewards.code.script import DOES_NOT_COMPILE
from postrl.rewards.code.verdict import NoSuite, Verdict

Checker = Callable[[str, str, str], bool]
"""(input, output of the program, expected output) -> whether that is right, for problems with many answers."""
LEAST_OUTPUT = 1 << 20


@dataclass(frozen=True)
class Example:
    """One test."""

    input: str
    output: str


def read_examples(tests: Any) -> tuple[Example, ...]:
    """The tests of a row: objects with `input` and `output` (text, or a list of lines), or one object with lists of
    both under `inputs` and `outputs` (APPS).

    Raises:
        NoSuite: they are something else.
    """
    if isinstance(tests, dict):
        inputs, outputs = tests.get("inputs", tests.get("input")), tests.get("outputs", tests.get("output"))
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise NoSuite("stdio tests need inputs and outputs, as many of the one as of the other")
        return tuple(Example(_text(i), _text(o)) for i, o in zip(inputs, outputs))
    examples = []
    for test in tests:
        if not isinstance(test, dict) or "input" not in test or "output" not in test:
            raise NoSuite(f"a stdio test that is not an object with input and output: {test!r:.100}")
        examples.append(Example(_text(test["input"]), _text(test["output"])))
    return tuple(examples)


def run_stdio(
    sandbox: Sandbox, program: Program, examples: Sequence[Example], *, wall: float, total_wall: float, memory: int,
    partial: bool = False, checker: Checker | None = None,
) -> Verdict:  # fmt: skip
    """Run a program on all inputs, until one fails unless `partial`.

    Args:
        wall: seconds for one test.
        total_wall: seconds for all of them.
        memory: bytes.
        checker: decides instead of the comparison.

    Raises:
        SandboxError: the sandbox failed, nothing can be said about the program.
    """
    deadline = time.monotonic() + total_wall
    passed, failed = 0, None
    with tempfile.TemporaryFile() as source:
        alternatives = [["\n".join(sources)] for sources in program.alternatives]
        source.write(json.dumps([alternatives, beside(tuple(packages()))]).encode())
        source.flush()
        for example in examples:
            left = min(wall, deadline - time.monotonic())
            status, detail = _run(sandbox, source.fileno(), example, left, memory, checker) if left > 0 else LATE
            passed += status == "correct"
            if status != "correct":
                failed = failed or (status, detail)
                if not partial or status == "no_answer":
                    break
    status, detail = failed or ("correct", "")
    if status == "no_answer" and program.fenced:
        status = "crashed"
    return Verdict(status, passed, len(examples), detail)


LATE = ("timeout", "no time was left for further tests")


def _run(
    sandbox: Sandbox, source: int, example: Example, wall: float, memory: int, checker: Checker | None
) -> tuple[str, str]:
    """Status of one test, and what was wrong."""
    largest = max(LEAST_OUTPUT, 2 * len(example.output.encode("utf-8", "surrogatepass")))
    limits = Limits(wall=wall, memory=memory, output=largest)
    with sandbox.start(
        ENTRY, ["script", str(code_fd()), str(source)], limits=limits, pass_fds=(code_fd(), source),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as contained:  # fmt: skip
        finished = contained.communicate(example.input.encode("utf-8", "surrogatepass"), wall)
    return _judge(finished, example, checker)


def _judge(finished: Finished, example: Example, checker: Checker | None) -> tuple[str, str]:
    if finished.timed_out or finished.outcome.limit == "cpu":
        return "timeout", "it took too long"
    if finished.output_overflow:
        return "resource", "it printed too much"
    if finished.outcome.limit or b"MemoryError" in finished.stderr[-200:]:
        return "resource", finished.outcome.limit or "memory"
    if finished.status == DOES_NOT_COMPILE:
        return "no_answer", "it does not compile"
    if finished.status != 0:
        return "crashed", finished.stderr[-500:].decode(errors="replace") or f"exit status {finished.status}"
    printed = finished.stdout.decode("utf-8", "surrogateescape")
    right = _checked(checker, example, printed) if checker else same_output(printed, example.output)
    return ("correct", "") if right else ("wrong", f"it printed {printed!r:.200}, expected {example.output!r:.200}")


def _checked(checker: Checker, example: Example, printed: str) -> bool:
    """A checker that cannot read an output has not found it right."""
    try:
        return bool(checker(example.input, printed, example.output))
    except Exception:
        return False


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "\n".join(_lines(value))
    raise NoSuite(f"an input or output that is neither text nor a list of lines: {value!r:.100}")


def _lines(value: Sequence[Any]) -> Iterator[str]:
    for line in value:
        if not isinstance(line, str | int | float):
            raise NoSuite(f"a line of an input or output that is not text: {line!r:.100}")
        yield str(line)
