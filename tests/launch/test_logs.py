from __future__ import annotations

from pathlib import Path

import pytest

from postrl.launch.logs import Tail, cause, tail

TRACEBACK = "Traceback (most recent call last):\n  File 'x.py', line 1, in <module>\n"
# Shortened from real logs of vLLM 0.32.
WORKER = "(Worker pid=8375) ERROR 11-29 16:50:56 [multiproc_executor.py:953] "
ENGINE = "(EngineCore pid=8282) ERROR 11-29 16:51:01 [core.py:1510] "


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_the_cause_of_a_plain_traceback_is_its_last_line(log: Path) -> None:
    log.write_text(f"starting\n{TRACEBACK}OSError: [Errno 98] Address already in use\nbye\n")
    assert cause(log) == "OSError: [Errno 98] Address already in use"


def test_a_failed_worker_is_the_cause_not_the_processes_that_report_it(log: Path) -> None:
    log.write_text(
        f"{WORKER}Traceback (most recent call last):\n"
        f"{WORKER}     raise ValueError(\n"
        f"{WORKER}ValueError: Invalid weight transfer backend: nonsense.\n"
        f"{ENGINE}Exception: WorkerProc initialization failed due to an exception in a background process. "
        "See stack trace for root cause.\n"
        f"{TRACEBACK}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}\n"
    )
    assert cause(log) == "ValueError: Invalid weight transfer backend: nonsense."


def test_a_failed_rank_is_the_cause_not_the_launcher_above_it(log: Path) -> None:
    log.write_text(
        f"[rank1]: {TRACEBACK}[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n"
        f"{TRACEBACK}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    )
    assert cause(log) == "torch.OutOfMemoryError: CUDA out of memory."


def test_what_pydantic_found_wrong_stands_below_its_error(log: Path) -> None:
    log.write_text(
        f"{TRACEBACK}pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, User-specified max_model_len (99999) is too great. [type=value_error, input_value=ArgsKwargs()]\n"
        "    For further information visit https://errors.pydantic.dev\n"
    )
    assert cause(log) == "User-specified max_model_len (99999) is too great."


def test_a_usage_error_is_a_cause(log: Path) -> None:
    log.write_text("usage: api_server.py [--model]\napi_server.py: error: unrecognized arguments: --nonsense\n")
    assert cause(log) == "unrecognized arguments: --nonsense"


def test_the_last_of_several_exceptions_counts(log: Path) -> None:
    log.write_text(
        f"{TRACEBACK}KeyError: 'a'\n\nDuring handling, another exception occurred:\n\n{TRACEBACK}OSError: no such model\n"
    )
    assert cause(log) == "OSError: no such model"


def test_an_exception_that_only_reports_another_is_better_than_none(log: Path) -> None:
    log.write_text("RuntimeError: Engine core initialization failed. See root cause above.\n")
    assert cause(log) == "RuntimeError: Engine core initialization failed. See root cause above."


def test_warnings_that_mention_an_error_are_no_cause(log: Path) -> None:
    log.write_text(
        "(APIServer pid=1) WARNING 11-29 16:50:09 [a.py:1] fd limit errors like `OSError: [Errno 24]`.\nthe error: none\n"
    )
    assert cause(log) is None


def test_an_earlier_run_in_the_same_log_is_not_looked_at(log: Path) -> None:
    log.write_text("ValueError: of yesterday\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("a line of today\n")
    assert cause(log, start=start) is None
    assert tail(log, start=start) == ["a line of today"]


def test_terminal_codes_in_a_log_never_reach_our_terminal(log: Path) -> None:
    log.write_bytes(b"\x1b[31mred\x1b[0m \x1b]0;title\x07 bell\x07 \x9b1m\xff\n")
    assert tail(log) == ["red  bell \ufffd1m\ufffd"]


def test_a_progress_bar_shows_its_last_state(log: Path) -> None:
    log.write_text("loading 0%\rloading 50%\rloading 100%\ndone\n")
    assert tail(log) == ["loading 100%", "done"]


def test_of_a_huge_log_only_the_end_is_read(log: Path) -> None:
    log.write_text("x" * 80 + "\n" + "".join(f"line {i}\n" for i in range(100_000)))
    assert tail(log, 2) == ["line 99998", "line 99999"]


def test_a_log_that_is_not_there_has_no_lines(log: Path) -> None:
    assert tail(log) == []
    assert cause(log) is None


def test_a_line_is_seen_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes.log"
    new = Tail(path)
    assert new.new_lines() == []
    path.write_text("one\ntw")
    assert new.new_lines() == ["one"]
    path.write_text("one\ntwo\n")
    assert new.new_lines() == ["two"]
    assert new.new_lines() == []
