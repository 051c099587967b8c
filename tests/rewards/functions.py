"""Reward functions that the tests send to real workers. Imported there by name: nothing of pytest here."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from postrl.rewards import Score


def length(completions):
    return [float(len(text)) for text in completions]


def process_id(completions):
    return [os.getpid()] * len(completions)


def _bad(completions):
    return "bad" in completions


def raises(completions):
    if _bad(completions):
        raise ValueError("I cannot score this")
    return [1.0] * len(completions)


def exits(completions):
    if _bad(completions):
        sys.exit("out of patience")
    return [1.0] * len(completions)


def dies(completions):
    if _bad(completions):
        os._exit(3)
    return [1.0] * len(completions)


def hangs(completions):
    while _bad(completions):
        time.sleep(0.01)
    return [1.0] * len(completions)


def holds_the_interpreter(completions):
    """One call into C that never lets another thread or a signal handler run."""
    if _bad(completions):
        base = 9
        return [base**base**base]
    return [1.0] * len(completions)


def too_few(completions):
    return [1.0] * (len(completions) - _bad(completions))


def endless(completions):
    return iter(int, 1) if _bad(completions) else [1.0] * len(completions)


def forks_and_exits_in_the_copy(completions):
    if _bad(completions) and os.fork() == 0:
        sys.exit(1)
    return [1.0] * len(completions)


def forks_and_goes_on_in_both(completions):
    os.fork()
    return [1.0] * len(completions)


def no_list(completions):
    return 1.0 if _bad(completions) else [1.0] * len(completions)


def closes_its_pipes(completions):
    if _bad(completions):
        os.closerange(3, 256)
    return [1.0] * len(completions)


def wants_more(completions, difficulty):
    return [1.0] * len(completions)


def mixed(completions):
    """One value of each kind, in this order."""
    return [True, 2, None, float("nan"), float("inf"), "3", Score(0.0, "format_error"), Score(1.0, "splendid")]


async def waits(completions):
    """Two waits at once, on the loop of the last call."""
    await asyncio.gather(asyncio.sleep(0.001), asyncio.sleep(0.001))
    loops.append(asyncio.get_running_loop())
    return [float(loop is loops[0]) for loop in [loops[-1]] * len(completions)]


loops = []


def prints(completions):
    print("seen on stdout:", *completions)
    print("seen on stderr \udcff", file=sys.stderr)
    subprocess.run(["echo", "seen from a child"], check=True)
    return [0.0 if sys.stdin.read() else 1.0] * len(completions)


def meets(completions, mine, theirs):
    """Returns only when another function is being called at the same time."""
    Path(mine[0]).touch()
    while not Path(theirs[0]).exists():
        time.sleep(0.01)
    return [1.0] * len(completions)


kept = []


def keeps_everything(completions):
    """Grows by 30 MB a call."""
    kept.append(b"x" * (30 << 20))
    return [os.getpid()] * len(completions)


def level(completions, answer, *, scale=1.0, log_metric=None):
    return [scale * x for x in answer]


def waits_for_another_call(completions, mine, other):
    """Returns only when the other group is being scored at the same time."""
    return meets(completions, mine, other)


def compares(completions, answer, tag):
    """The rank of each completion among all it is called with; -1 where the row has no `tag`."""
    ordered = sorted(completions, key=len)
    return [-1.0 if t is None else float(ordered.index(c)) for c, t in zip(completions, tag)]


def logs(completions, log_extra, log_metric):
    log_extra("length", [len(c) for c in completions])
    log_extra("seen", [{"text": c, "when": float("nan")} for c in completions])
    for c in completions:
        log_metric("length", len(c))
    log_metric("sometimes", float("inf"))
    return [1.0] * len(completions)


def logs_badly(completions, **columns):
    columns["log_extra"]("short", [1])
    columns["log_extra"]("single", 5)
    columns["log_metric"]("words", "many")
    columns["log_metric"]("mean", 1.0)
    columns["log_metric"]("fine", 2.0)
    return [1.0] * len(completions)


def leaves_a_child(completions, pids):
    """Starts a process, writes both ids down, then hangs."""
    child = subprocess.Popen(["sleep", "1000"])
    Path(pids[0]).with_suffix(".part").write_text(f"{os.getpid()} {child.pid}")
    Path(pids[0]).with_suffix(".part").rename(pids[0])
    time.sleep(1000)
