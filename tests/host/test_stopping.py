"""Which signals ask for a graceful stop, and when one stops at once. Each test is a process that really gets them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PROGRAM = """
import signal, sys, time
from postrl.host.stopping import GracefulStop
{before}
asked = []
stop = GracefulStop(asked.append, print_now := lambda text: print(text, flush=True),
    training={training}, on_hangup={on_hangup!r})
try:
    with stop:
        print_now("ready")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.05)
except KeyboardInterrupt as error:
    print_now(f"at once: {{error}}")
"""


@pytest.fixture
def process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started = []

    def start(before: str = "", training: bool = True, on_hangup: str = "save") -> subprocess.Popen[str]:
        code = PROGRAM.format(before=before, training=training, on_hangup=on_hangup)
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert line(child) == "ready"
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def line(child: Any) -> str:
    return child.stdout.readline().rstrip()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP"])
def test_every_signal_that_a_job_gets_asks_for_the_stop(process: Any, name: str) -> None:
    child = process()
    child.send_signal(signal.Signals[name])
    said = line(child)
    assert "finishing the step, then saving" in said
    assert name == "SIGINT" or said.startswith(f"{name}: ")
    assert child.poll() is None


def test_a_burst_is_one_signal_and_a_later_one_stops_at_once(process: Any) -> None:
    child = process()
    child.send_signal(signal.SIGTERM)
    assert "finishing the step" in line(child)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        child.send_signal(number)
    time.sleep(1.1)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert line(child) == "at once: SIGINT"


def test_a_schedulers_warning_and_the_order_that_follows_it_are_no_hurry(process: Any) -> None:
    child = process()
    child.send_signal(signal.SIGUSR1)
    assert line(child) == "SIGUSR1: finishing the step, then saving"
    time.sleep(1.1)
    child.send_signal(signal.SIGTERM)  # the first order
    time.sleep(0.3)
    assert child.poll() is None
    time.sleep(1.1)
    child.send_signal(signal.SIGTERM)
    assert line(child) == "at once: SIGTERM"


def test_before_there_are_steps_to_finish_it_stops_at_once(process: Any) -> None:
    child = process(training=False)
    child.send_signal(signal.SIGTERM)
    assert line(child) == "at once: SIGTERM"


def test_a_hangup_can_be_told_to_go_on(process: Any) -> None:
    child = process(on_hangup="continue")
    child.send_signal(signal.SIGHUP)
    assert "the run goes on" in line(child)
    child.send_signal(signal.SIGTERM)
    assert "finishing the step" in line(child)


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: print_now('mine')"], ids=["ignored", "of the user"])
def test_what_was_ignored_or_handled_before_stays_so(process: Any, handler: str) -> None:
    child = process(before=f"signal.signal(signal.SIGHUP, {handler})")
    child.send_signal(signal.SIGHUP)
    if handler != "signal.SIG_IGN":
        assert line(child) == "mine"
    child.send_signal(signal.SIGTERM)
    assert line(child).startswith("SIGTERM: ")


def test_the_handlers_of_before_come_back() -> None:
    from postrl.host.stopping import STOP_SIGNALS, GracefulStop

    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with GracefulStop(print, print):
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


@pytest.mark.parametrize("around", ["bystander()", "stop.__enter__()"], ids=["of a bystander", "of a run"])
def test_a_forked_process_is_ended_by_who_forked_it_and_asks_for_nothing(around: str) -> None:
    code = f"""
import multiprocessing, threading, time
from postrl.host.stopping import GracefulStop, bystander
asked = []
stop = GracefulStop(asked.append, asked.append, training=True)
{around}
def terminate():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[60])
    child.start()
    child.terminate()
    child.join(20)
    print(child.exitcode, asked, flush=True)
    child.kill()
terminate()
thread = threading.Thread(target=terminate)
thread.start()
thread.join()
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    assert said.splitlines() == ["-15 []", "-15 []"]
