from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
import tempfile
import time

import pytest

from postrl.errors import UsageError
from postrl.rewards.code import code_reward, verify
from postrl.rewards.score import Score
from rewards.code.grading import fenced

INC = fenced("def f(x):\n    return x + 1")
DEC = fenced("def f(x):\n    return x - 1")
UP, DOWN = ["assert f(1) == 2"], ["assert f(1) == 0"]


def test_each_completion_meets_the_columns_of_its_own_row():
    scores = code_reward(
        [
            INC,
            DEC,
            INC,
            "f(x) = x + 1",
            [{"role": "assistant", "content": "    return x + 1"}],
            fenced("print(3)"),
            INC,
        ],
        [UP, UP, DOWN, UP, UP, [{"input": "", "output": "3"}], UP],
        test_type=["asserts", None, "asserts", None, None, "stdio", None],
        entry_point=["f", None, None, None, "f", None, "f"],
        starter=[None, None, None, None, "def f(x):\n", None, None],
        hidden_tests=[None, None, None, None, UP, None, ["assert f(2) == 4"]],
    )
    assert [score.status for score in scores] == [
        "correct",
        "wrong",
        "wrong",
        "no_answer",
        "correct",
        "correct",
        "wrong",
    ]
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0]


def test_columns_of_another_length_are_refused():
    with pytest.raises(ValueError):
        code_reward([INC, DEC], [UP])
    with pytest.raises(ValueError):
        code_reward([INC], [UP], entry_point=["f", "g"])
    assert code_reward([], []) == []


def test_data_comes_in_columns_and_settings_by_name():
    kinds = {name: p.kind for name, p in inspect.signature(code_reward).parameters.items()}
    columns = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert columns == ["completions", "tests", "test_type", "entry_point", "starter", "hidden_tests"]
    assert set(kinds.values()) == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


def test_the_version_names_the_level():
    assert code_reward.version(sandbox="basic") == "code 2, sandbox basic"
    assert code_reward.version() == f"code 2, sandbox {code_reward.version().split()[-1]}"


def test_a_level_that_there_is_not_is_refused_before_anything_runs():
    with pytest.raises(UsageError):
        code_reward([], [], sandbox="docker")


def test_a_sandbox_that_cannot_start_says_nothing_about_the_program(monkeypatch):
    assert verify(INC, UP).value == 1.0
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    assert verify(INC, UP) == Score(None, "infra_error")
    assert verify(fenced("print(1)"), [{"input": "", "output": "1"}]) == Score(None, "infra_error")


def test_a_timeout_on_a_busy_machine_is_looked_at_again(monkeypatch):
    def slow_until(moment: float) -> str:
        return fenced(f"import time\ndef f(x):\n    time.sleep(max(0.0, {moment} - time.time()))\n    return x + 1")

    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert verify(slow_until(time.time() + 600), UP, test_timeout=1.0).status == "timeout"
    assert verify(slow_until(time.time() + 3.8), UP, test_timeout=2.0).status == "timeout"
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0, 100.0, 100.0))
    assert verify(slow_until(time.time() + 600), UP, test_timeout=1.0).status == "timeout"
    assert verify(slow_until(time.time() + 3.8), UP, test_timeout=2.0).status == "correct"


def test_it_can_be_called_from_threads_of_an_event_loop():
    async def main() -> list[Score]:
        calls = [asyncio.to_thread(verify, INC if i % 2 else DEC, UP) for i in range(6)]
        return list(await asyncio.gather(*calls))

    assert [score.value for score in asyncio.run(main())] == [0.0, 1.0] * 3


def test_nothing_stays_open():
    verify(INC, UP)
    gc.collect()
    before = set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()
    for completion in (INC, fenced("import os\nos._exit(0)"), fenced("def f(x"), "prose"):
        verify(completion, UP)
    verify(fenced("print(1)"), [{"input": "", "output": "1"}])
    assert (set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()) <= before
