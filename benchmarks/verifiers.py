"""How fast and how polite the math and code verifiers are.

  python benchmarks/verifiers.py                # about two minutes on 2 cores
  python benchmarks/verifiers.py math code heartbeat memory

math       plain verdicts a second, and verdicts on expressions, which are compared by their values to many digits; every
           answer is another one, so that the verdict cache does not help
code       samples of HumanEval's kind a second, four asserts each, in the strongest sandbox that works here
heartbeat  the longest stall of a thread and of an event loop of this process while answers that hang are graded
memory     growth of this process over 1000 mixed verdicts
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from postrl.rewards.code import code_reward
from postrl.rewards.math import math_reward

CASES = Path(__file__).parent.parent / "tests" / "cases"
ADD = "```python\ndef add(a, b):\n    return a + b  # {}\n```"
ASSERTS = [f"assert add({a}, {b}) == {a + b}" for a, b in ((1, 2), (-1, 1), (0, 0), (10**9, 1))]


def main() -> None:
    parts = {"math": math, "code": code, "heartbeat": heartbeat, "memory": memory}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(parts)}; default: all")
    chosen = parser.parse_args().parts or list(parts)
    if unknown := [name for name in chosen if name not in parts]:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(parts)}")
    for name in chosen:
        for line in parts[name]():
            print(f"{name:10s} {line}")
            sys.stdout.flush()


def math() -> Iterator[str]:
    plain = [(f"{n}.50", f"So the answer is \\boxed{{{n}\\frac{{1}}{{2}}}}.") for n in range(3000)]
    yield f"{rate(plain):7.0f} plain verdicts/s"
    symbolic = [(f"(x+{n})^2", f"\\boxed{{x^2+{2 * n}x+{n * n}}}") for n in range(1, 401)]
    math_reward([symbolic[0][1]], [symbolic[0][0]])  # loads the arithmetic
    yield f"{rate(symbolic):7.0f} verdicts/s on expressions"


def rate(pairs: list[tuple[str, str]]) -> float:
    """Right verdicts a second, in groups of eight as in training."""
    start = time.monotonic()
    for i in range(0, len(pairs), 8):
        golds, completions = zip(*pairs[i : i + 8])
        scores = math_reward(list(completions), list(golds))
        assert all(score.status == "correct" for score in scores), scores
    return len(pairs) / (time.monotonic() - start)


def code() -> Iterator[str]:
    code_reward([ADD.format("warm")], [ASSERTS])
    start, count = time.monotonic(), 96
    for i in range(0, count, 8):
        scores = code_reward([ADD.format(i + j) for j in range(8)], [ASSERTS] * 8)
        assert all(score.status == "correct" for score in scores), scores
    yield f"{count / (time.monotonic() - start):7.1f} assert samples/s, {code_reward.version()}"


def heartbeat() -> Iterator[str]:
    rows = [json.loads(line) for line in (CASES / "math.jsonl").read_text(encoding="utf-8").splitlines()]
    hangs = [row for row in rows if row["kind"].startswith("hang/")]
    golds, completions = [row["gold"] for row in hangs] * 2, [row["completion"] for row in hangs] * 2
    beats: list[float] = []

    async def loop() -> None:
        grading = asyncio.gather(
            *(asyncio.to_thread(math_reward, [c], [g]) for g, c in zip(golds, completions, strict=True))
        )
        while not grading.done():
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)
        await grading

    with beating() as thread_beats:
        start = time.monotonic()
        asyncio.run(loop())
    for name, times in (("event loop", beats), ("thread", thread_beats)):
        yield f"{max(b - a for a, b in itertools.pairwise(times)):7.3f} s longest stall of the {name}"
    yield f"{time.monotonic() - start:7.1f} s for {len(golds)} hanging answers at once"


@contextmanager
def beating() -> Iterator[list[float]]:
    beats, done = [time.monotonic()], threading.Event()

    def beat() -> None:
        while not done.wait(0.01):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield beats
    finally:
        done.set()
        thread.join()


def memory() -> Iterator[str]:
    rows = [json.loads(line) for line in (CASES / "math.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if not row["kind"].startswith("hang/")]
    math_reward([rows[0]["completion"]], [rows[0]["gold"]])
    before = psutil.Process(os.getpid()).memory_info().rss
    for i in range(980):
        row = rows[i % len(rows)]
        math_reward([row["completion"] + " " * (i // len(rows))], [row["gold"]])
    for i in range(20):
        code_reward([ADD.format(f"memory {i}")], [ASSERTS])
    yield f"{(psutil.Process(os.getpid()).memory_info().rss - before) / 2**20:7.1f} MiB more after 1000 verdicts"


if __name__ == "__main__":
    main()
