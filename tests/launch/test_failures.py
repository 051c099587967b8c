"""What the launcher says about children that died."""

from __future__ import annotations

from pathlib import Path

import pytest

from postrl.errors import ChildError, PostrlError, RewardError, error_to_wire
from postrl.launch.failures import check_children
from postrl.launch.process import Supervisor
from postrl.run_folder import RunFolder

from .support import PATIENCE, python

TORCH_SAYS = """
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : localhost
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 8761)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 8761
============================================================
"""


def died(tmp_path: Path, code: str) -> pytest.ExceptionInfo[PostrlError]:
    folder = RunFolder(tmp_path)
    with Supervisor() as children:
        children.start("trainer", python(code), log_path=folder.logs / "trainer.log", may_finish=True).wait(PATIENCE)
        with pytest.raises(PostrlError) as caught:
            check_children(children, folder)
    return caught


def test_a_rank_that_was_killed_is_named_with_its_signal_and_what_it_most_often_means(tmp_path: Path) -> None:
    error = died(tmp_path, f"print({TORCH_SAYS!r}); raise SystemExit(1)").value
    assert error.message == "trainer: rank 3 was ended by SIGKILL"
    assert "ran out of memory" in error.hint
    assert str(tmp_path / "logs" / "trainer.log") in error.hint


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
