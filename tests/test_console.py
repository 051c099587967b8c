"""What the terminal and a pipe get to see; tables with hostile text in them."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys

import pytest
from rich.console import Console

from postrl import console
from postrl.console import Column, one_line, seconds, table

COLUMNS = [Column("prompt", wide=True), Column("completion", wide=True), Column("score", right=True)]
ROWS = [["What is 3+4?", "word " * 100, 1.0], ["line\nbreak", "\x1b[31mred\x07", None]]


def test_a_long_message_stays_one_line_when_piped(capsys):
    console.error("no such file: " + "x" * 500, hint="try another")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: no such file: {'x' * 500}\nhint: try another\n"


def test_text_from_elsewhere_is_never_read_as_markup(capsys):
    console.note("[bold]reward[/bold] [/] [link=http://x]y[/link]")
    assert capsys.readouterr().err == "[bold]reward[/bold] [/] [link=http://x]y[/link]\n"


def test_no_color_is_respected():
    program = "from postrl.console import make_console; print(make_console().no_color)"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"NO_COLOR": "1", "PATH": ""}, check=True
    )
    assert shown.stdout == "True\n"


def test_a_table_of_results_goes_to_stdout(capsys):
    table([Column("data set"), Column("before", right=True)], [["arithmetic", 0.1], ["gsm8k", None]], title="Accuracy")
    out, err = capsys.readouterr()
    assert err == ""
    assert [line.split() for line in out.splitlines()] == [
        ["Accuracy"], ["data", "set", "before"], ["arithmetic", "0.1"], ["gsm8k", "-"],
    ]  # fmt: skip
    assert len({len(line) for line in out.splitlines()[1:]}) == 1, "the last column ends at the same place"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (0.123456, "0.1235"),
        (1.0, "1"),
        (True, "True"),
        (12, "12"),
        ("a\r\nb\tc", "a\\nb c"),
        ("\x1b[2Jx\u202ey", "\ufffd[2Jx\ufffdy"),
        ("x" * 5000, "x" * 1000),
    ],
)
def test_a_cell_is_one_line_that_cannot_move_the_cursor(value, text):
    assert one_line(value) == text


def test_a_pipe_gets_aligned_lines_of_bounded_width():
    out = io.StringIO()
    table(COLUMNS, ROWS, title="title", file=out)
    assert out.getvalue() == (
        "title\n"
        f"{'prompt':<12}  {'completion':<60}  score\n"
        f"{'What is 3+4?':<12}  {('word ' * 100)[:57]}...      1\n"
        f"{'line' + chr(92) + 'nbreak':<12}  {chr(0xFFFD) + '[31mred' + chr(0xFFFD):<60}      -\n"
    )


@pytest.mark.parametrize("width", [40, 100, 200])
def test_a_terminal_gets_a_table_that_is_no_wider(monkeypatch, width):
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=width, no_color=True, highlight=False, markup=False)
    monkeypatch.setattr(console, "make_console", lambda file: terminal)
    table(COLUMNS, ROWS, title="title", file=out)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert max(len(line) for line in lines) == width
    assert sum("wor" in line for line in lines) == 1, "a cell is cut, not folded"
    assert any("score" in line for line in lines)


def test_a_duration_is_short():
    assert [seconds(x) for x in (0.0004, 0.012, 0.5, 3.14)] == ["0.4 ms", "12 ms", "500 ms", "3.1 s"]
