"""What the launcher says about children that died."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from postrl import errors
from postrl.errors import ChildError, PostrlError, RewardError, error_to_wire
from postrl.launch.accelerate import FAILURES
from postrl.launch.failures import check_children
from postrl.launch.process import Supervisor
from postrl.run.folder import RunFolder

from .support import PATIENCE, python


def died(tmp_path: Path, code: str) -> pytest.ExceptionInfo[PostrlError]:
    folder = RunFolder(tmp_path)
    with Supervisor() as children:
        children.start("trainer", python(code), log_path=folder.logs / "trainer.log", may_finish=True).wait(PATIENCE)
        with pytest.raises(PostrlError) as caught:
            check_children(children, folder)
    return caught


def ranks_ended(tmp_path: Path, *failed: tuple[int, int], later: int = 0) -> None:
    """What `postrl.launch.agent` leaves: (rank, exit code), each noticed `later` seconds after the one before."""
    (tmp_path / "logs").mkdir(exist_ok=True)
    ended = [{"rank": rank, "exit_code": code, "time": 100 + n * later} for n, (rank, code) in enumerate(failed)]
    (tmp_path / "logs" / FAILURES).write_text(json.dumps(ended))


def lost_the_others(tmp_path: Path, rank: int) -> None:
    error = {**error_to_wire(RuntimeError("[gloo] Connection closed by peer")), "origin": {"of": "ranks"}}
    RunFolder(tmp_path).save_error("trainer", {**error, "rank": str(rank), "ranks": "2"})


def test_a_rank_that_was_killed_is_named_with_its_signal_and_what_it_most_often_means(tmp_path: Path) -> None:
    ranks_ended(tmp_path, (3, -9))
    error = died(tmp_path, "raise SystemExit(1)").value
    assert error.message == "trainer: rank 3 was ended by SIGKILL"
    assert "ran out of memory" in error.hint
    assert str(tmp_path / "logs" / "trainer.log") in error.hint


@pytest.mark.parametrize("code, what", [(-9, "was ended by SIGKILL"), (3, "ended with exit code 3")])
def test_a_rank_that_ended_without_a_word_is_the_cause_and_not_who_lost_it(
    tmp_path: Path, code: int, what: str
) -> None:
    lost_the_others(tmp_path, rank=0)
    ranks_ended(tmp_path, (0, 1), (1, code))
    message = died(tmp_path, "raise SystemExit(1)").value.message
    assert message.startswith(f"trainer: rank 1 {what}")
    assert message.endswith("(the other ranks then lost the connection to it)")


def test_ranks_that_torchrun_killed_for_the_sake_of_another_are_no_cause(tmp_path: Path) -> None:
    lost_the_others(tmp_path, rank=0)
    ranks_ended(tmp_path, (0, 1), (1, -9), later=30)
    assert died(tmp_path, "raise SystemExit(1)").value.message.startswith("the trainer (rank 0) lost the other ranks")


def test_a_crash_in_native_code_is_told_with_the_line_that_called_it(tmp_path: Path) -> None:
    ranks_ended(tmp_path, (0, -11))
    stack = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        f'  File "{os.__file__}", line 1 in string_at\n  File "/home/me/algo.py", line 17 in loss\n'
    )
    assert died(tmp_path, f"print({stack!r}); raise SystemExit(1)").value.message == (
        "trainer: rank 0 was ended by SIGSEGV, in native code called from code of yours (/home/me/algo.py:17, in loss)"
    )


YOURS = "def loss():\n    return {}['entropy']\n"


def test_an_error_in_code_of_the_users_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "algo.py").write_text(YOURS)
    names: dict[str, Any] = {}
    exec(compile(YOURS, tmp_path / "algo.py", "exec"), names)
    folder = RunFolder(tmp_path)
    with pytest.raises(KeyError), folder.reporting_errors("trainer"):
        names["loss"]()
    error = died(tmp_path, "raise SystemExit(1)").value
    assert error.message == (
        "the trainer failed in code of yours with KeyError: 'entropy'\n"
        f"    {tmp_path}/algo.py:2, in loss: return {{}}['entropy']"
    )
    assert "bug in postrl" not in error.message + error.hint


def test_no_memory_is_told_as_that(tmp_path: Path) -> None:
    with pytest.raises(MemoryError), RunFolder(tmp_path).reporting_errors("trainer"):
        raise MemoryError("40 GiB")
    assert died(tmp_path, "raise SystemExit(1)").value.message.startswith("the trainer ran out of memory")


def test_a_child_that_left_no_error_shows_the_end_of_its_log(tmp_path: Path) -> None:
    error = died(tmp_path, "print('a line'); raise SystemExit(2)").value
    assert isinstance(error, ChildError)
    assert error.message == "trainer ended with exit code 2; the last lines of its log:\n    a line"


def test_the_error_that_a_child_left_is_raised_as_what_it_was(tmp_path: Path) -> None:
    RunFolder(tmp_path).save_error("trainer", {**error_to_wire(RewardError("score is broken")), "traceback": "..."})
    error = died(tmp_path, "raise SystemExit(1)").value
    assert isinstance(error, RewardError)
    assert (error.message, error.hint) == ("score is broken", f"see {tmp_path / 'logs' / 'trainer.log'}")


def test_an_error_that_is_not_ours_is_called_a_bug(tmp_path: Path) -> None:
    RunFolder(tmp_path).save_error("trainer", {**error_to_wire(KeyError("x")), "traceback": "..."})
    assert died(tmp_path, "raise SystemExit(1)").value.message == (
        "this is a bug in postrl: the trainer failed with KeyError: 'x'"
    )


@pytest.mark.parametrize(
    ("path", "whose"),
    [
        ("/home/me/project/algorithm.py", "yours"),
        ("/home/me/venv/lib/python3.12/site-packages/torch/nn/functional.py", "library"),
        ("/usr/lib/python3/dist-packages/torch/nn/functional.py", "library"),  # of Debian
        (errors.__file__, "postrl"),
    ],
)
def test_whose_code_a_line_is(path: str, whose: str) -> None:
    assert errors.whose_file(path) == whose
