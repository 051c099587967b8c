from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from postrl.rewards import math as math_package
from postrl.rewards.math import grader as grader_module
from postrl.rewards.math import math_reward, verify
from postrl.rewards.math.grader import Grader, GraderFailure, GraderTimeout
from postrl.rewards.score import Score
from rewards.groups import lives, wait_until
from rewards.math.verdicts import boxed

HANGS = [
    ("9^{9^{9}}", r"\boxed{9^{9^{9}}}", "correct"),
    ("5", "The final answer is 9**9**9", "wrong"),
    ("7", r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}", "wrong"),
    ("3", r"\boxed{(10^{8})!}", "wrong"),
    ("x", r"\boxed{(10^{8})!}", "wrong"),
    ("x+1", r"\boxed{x^{9^{9^{9}}}}", "wrong"),
    (r"\sqrt{2}", r"\boxed{2^{2^{2^{2^{2^{2}}}}}}", "wrong"),
    ("x", r"\boxed{((x!)!)!}", "wrong"),
    ("x", r"\boxed{\binom{10^9}{10^8}}", "wrong"),
    ("x", r"\boxed{1e999999}", "wrong"),
    ("x", r"\boxed{(x+1)^{99999}}", "wrong"),
    (r"\pi", r"\boxed{" + "9" * 900 + r"^{9999}}", "wrong"),
    ("7", r"\boxed{" + "7" * 5000 + "}", "wrong"),
    ("1", r"\boxed{" + "(" * 400 + "1" + ")" * 400 + "}", "correct"),
    ("1", r"\boxed{" + r"\sqrt{" * 120 + "1" + "}" * 120 + "}", "wrong"),
    ("1", r"\boxed{" + r"\frac{1}{1+" * 80 + "1" + "}" * 80 + "}", "wrong"),
    ("x", r"\boxed{" + "x+" * 450 + "x}", "wrong"),
    ("1", "$a " * 2000 + "answer  " * 500, "no_answer"),
    ("7", r"\boxed{\sum_{n=1}^{10^{10}} n}", "wrong"),
    ("x", r"\boxed{\int_0^{x} \int_0^{y} e^{z^3} dz dy}", "wrong"),
    ("5", r"\boxed{2^{-9^{9^9}}}", "wrong"),
    ("5", r"\boxed{10^{10^{10}} \mod 7}", "wrong"),
]


@pytest.fixture(scope="module")
def grader():
    grader = Grader(seconds=1.0)
    yield grader
    grader.child.end()


def question(gold, answer):
    return {"ask": "equal", "gold": gold, "answer": answer}


STEP = (r"\lfloor x \rfloor + 1", r"\lfloor x+1 \rfloor")
"""A pair that only computer algebra proves equal."""
X, Y, TWO = ["sym", "x"], ["sym", "y"], ["num", "2"]
EQUAL = question(["+", None, X, X], ["*", None, TWO, X])
ENDLESS = question(["!", None, ["num", str(10**8)]], X)
"""No guard stands between this question and computer algebra."""


def child_of(grader):
    """The process that waits for the next question."""
    zygote = psutil.Process(grader.child.pid)
    wait_until(lambda: len(zygote.children()) == 1, "the next child")
    (child,) = zygote.children()
    return child


@pytest.mark.parametrize(("gold", "completion", "status"), HANGS)
def test_what_would_hang_is_decided(gold, completion, status):
    assert verify(gold, completion).status == status


def test_a_question_is_answered(grader):
    assert grader.ask(EQUAL) is True
    assert grader.ask(question(X, Y)) is False


def test_an_endless_question_is_given_up_and_the_next_one_answered(grader):
    started = []
    for _ in range(2):
        with pytest.raises(GraderTimeout, match="1 s"):
            grader.ask(ENDLESS)
        assert grader.ask(EQUAL) is True
        started.append(grader.child.pid)
    assert started[0] == started[1], "the warm process must survive the one that is killed"


def test_a_question_that_takes_all_memory_fails_alone(grader):
    with pytest.raises((GraderFailure, GraderTimeout)):
        grader.ask(question(["^", None, ["num", "3"], ["num", str(2 * 10**10)]], TWO))
    assert grader.ask(EQUAL) is True


def test_a_killed_grader_is_replaced_within_the_same_question(grader):
    assert grader.ask(EQUAL) is True
    first, child = grader.child.pid, child_of(grader)
    busy = child.cpu_times().user

    def kill() -> None:
        while child.cpu_times().user < busy + 0.1:
            time.sleep(0.01)
        os.killpg(first, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(GraderTimeout):  # killed in the middle, asked again, given up after its own second
        grader.ask(ENDLESS)
    assert grader.child.pid != first
    assert grader.ask(EQUAL) is True


def test_a_child_that_dies_is_replaced(grader):
    assert grader.ask(EQUAL) is True
    child_of(grader).kill()
    assert grader.ask(EQUAL) is True
    assert grader.ask(question(X, Y)) is False, "an answer that nobody waited for must not be the next one's"


def test_every_question_has_a_child_of_its_own_whose_caches_end_with_it(grader):
    children = set()
    for _ in range(3):
        assert grader.ask(EQUAL) is True
        children.add(child_of(grader).pid)
    assert len(children) == 3


def test_a_timeout_and_a_dead_grader_have_no_value(monkeypatch):
    class Broken:
        def __init__(self, error):
            self.error = error

        def ask(self, question):
            raise self.error

    monkeypatch.setattr(math_package, "_verdicts", math_package._Verdicts())
    for error, status in [(GraderFailure("died"), "infra_error"), (GraderTimeout("slow"), "timeout")]:
        monkeypatch.setattr(math_package, "pool", lambda error=error: Broken(error))
        assert boxed(*STEP) == status
        assert boxed("x^2-1", "(x-1)(x+1)") == "correct", "decided without computer algebra"
    assert math_reward([rf"\boxed{{{STEP[1]}}}"], [STEP[0]]) == [Score(None, "timeout")]


def test_verdicts_of_many_threads_are_their_own():
    rows = [(rf"\lfloor x+{n} \rfloor", rf"\boxed{{\lfloor x \rfloor + {n}}}", "correct") for n in range(2, 12)]
    rows += [(rf"\lfloor x \rfloor + {n}", rf"\boxed{{\lfloor x+{n}.0001 \rfloor}}", "wrong") for n in range(2, 12)]
    found: dict[int, list[str]] = {}

    def work(index):
        found[index] = [verify(gold, completion).status for gold, completion, _ in rows]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {index: [status for *_, status in rows] for index in range(6)}


def test_no_heartbeat_stalls_while_a_thread_and_an_event_loop_score_what_would_hang(monkeypatch):
    monkeypatch.setattr(math_package, "_verdicts", math_package._Verdicts())  # of tests before this one
    rows = HANGS * 3
    golds, completions = [gold for gold, *_ in rows], [completion for _, completion, _ in rows]
    expected = [status for *_, status in rows]
    stalls: list[float] = []

    async def heartbeat():
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.02)
            stalls.append(time.monotonic() - before - 0.02)

    async def main():
        beat = asyncio.create_task(heartbeat())
        memory = psutil.Process().memory_info().rss
        jobs = [asyncio.to_thread(math_reward, completions, golds) for _ in range(3)]
        results = await asyncio.gather(*jobs)
        beat.cancel()
        return results, psutil.Process().memory_info().rss - memory

    results, grown = asyncio.run(main())
    assert [[score.status for score in scores] for scores in results] == [expected] * 3
    assert stalls and max(stalls) < 0.5
    assert grown < 200 << 20


SCRIPT = """
import threading, time
from postrl.rewards.math import pool, verify
from postrl.rewards.math.grader import Grader
verify("|x|", r"\\boxed{{\\sqrt{{x^2}}}}")
grader = pool().graders[0]
threading.Thread(target=grader._ask, args=({endless},), daemon=True).start()
time.sleep(0.5)
print(grader.child.pid, flush=True)
{then}
"""


def run_script(then):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(endless=ENDLESS, then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    zygote = psutil.Process(int(process.stdout.readline()))
    family = [zygote, *zygote.children(recursive=True)]
    assert len(family) == 2
    return process, family


def test_nothing_survives_a_caller_that_is_killed_while_it_grades():
    process, family = run_script("time.sleep(600)")
    process.kill()
    process.wait()
    wait_until(lambda: not any(lives(member.pid) for member in family), "the grader's end")


def test_nothing_survives_a_caller_that_ends():
    process, family = run_script("input()")
    process.stdin.write("\n")
    process.stdin.close()
    assert process.wait(60) == 0
    wait_until(lambda: not any(lives(member.pid) for member in family), "the grader's end")


def test_a_grader_outlives_the_thread_that_started_it(grader):
    thread = threading.Thread(target=grader.ask, args=(EQUAL,))
    thread.start()
    thread.join(120)
    first = grader.child.pid
    assert grader.ask(EQUAL) is True
    assert grader.child.pid == first


def test_a_forked_child_starts_its_own_grader():
    assert boxed(r"\lfloor x \rfloor + 4", r"\lfloor x+4 \rfloor") == "correct"
    pid = os.fork()
    if pid == 0:
        try:
            code = 0 if boxed(r"\lfloor x \rfloor + 9", r"\lfloor x+9 \rfloor") == "correct" else 1
            grader_module.pool().close()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert boxed(r"\lfloor x \rfloor + 16", r"\lfloor x+16 \rfloor") == "correct"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\lim_{n\to\infty} \sum_{k=1}^{n} \frac{1}{k^2+n}", r"\lim_{n\to\infty} \sum_{k=1}^{n} \frac{1}{k^3+n}"),
        (r"\int \sin^{20}(x) e^{x} dx", r"\int \cos^{20}(x) e^{x} dx"),
        (r"\sum_{n=1}^{\infty} \frac{1}{n^2+1}", r"\sum_{n=1}^{\infty} \frac{1}{n^2+2}"),
    ],
)
def test_series_and_limits_that_differ_are_told_apart_by_counted_work(gold, answer):
    ask = grader_module.pool().ask  # with the time that they have in a run
    for _ in range(2):
        assert ask({"ask": "latex", "gold": gold, "answer": answer}) is False
    assert ask(EQUAL) is True


def test_a_question_of_too_much_work_is_answered_with_no_and_the_next_one_in_full():
    ask = grader_module.pool().ask
    heavy = {
        "ask": "latex",
        "gold": r"\int \frac{\sin^{9}(x)}{x^5+1} dx",
        "answer": r"\int \frac{\sin^{9}(x)}{x^5+2} dx",
    }
    assert ask(heavy) is False
    assert ask(EQUAL) is True


def test_work_is_counted_and_stops_at_the_same_place_every_time():
    from postrl.rewards.math.symbolic import TooMuchWork, counted

    def calls(most):
        made = 0

        def call():
            nonlocal made
            made += 1

        with counted(most), pytest.raises(TooMuchWork):
            while True:
                call()
        return made

    assert calls(1000) == calls(1000) < 1001
