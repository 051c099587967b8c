"""The one rich console (stderr), tables of results, and bars for what takes a while.

Progress, notes and errors go to stderr, results to stdout. On a terminal there is colour and a bar with the time that
is left; piped, quiet lines without either. `NO_COLOR` is respected (by rich).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import IO, Any, cast

from rich.console import Console
from rich.text import Text

_PIPED_WIDTH = 10_000
"""A pipe has no width: lines are never wrapped there, so that grep finds whole messages."""
PIPED = 60
"""Characters of a wide cell where there is no terminal to cut it to."""
LONGEST = 1000
"""Characters of a cell that are looked at, whatever the terminal's width."""


def make_console(file: IO[str] | None = None) -> Console:
    """A console on `file` (default: stderr, looked up at each write) without markup or number highlighting.

    What cannot be written any more, to a closed terminal or a pipe whose reader has gone, is lost, and ends no run.
    """
    console = Console(file=cast(IO[str], Enduring(file)), highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


class Enduring:
    """A text stream that does not fail: that of `file`, or of whatever `sys.stderr` is at the time."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file = file

    def _stream(self) -> Any:
        stream = self._file or sys.stderr
        return getattr(stream, "rich_proxied_file", stream)  # rich puts a proxy of its own there while it draws a bar

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream().write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream().flush()

    def isatty(self) -> bool:
        with suppress(OSError, ValueError):
            return bool(self._stream().isatty())
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)


def let_go() -> None:
    """At the end of a program: what its streams still hold is written, or lost where nobody reads it any more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):  # so that Python, which flushes too, does not fail
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)


_console: Console | None = None


def console() -> Console:
    """The console of this process; it writes to whatever `sys.stderr` is at the time."""
    global _console
    if _console is None:
        _console = make_console()
    return _console


def note(message: str) -> None:
    """One quiet line: something worth knowing that needs no action."""
    console().print(Text(message))


def error(message: str, *, hint: str = "") -> None:
    """A line that starts with a red `error:`, and what to type next on a `hint:` line."""
    console().print(Text.assemble(("error: ", "bold red"), message))
    if hint:
        console().print(Text.assemble(("hint: ", "bold cyan"), hint))


def traceback() -> None:
    """The traceback of the exception that is being handled."""
    import traceback as tb

    console().print(Text(tb.format_exc().rstrip()))


# -- tables ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column: `wide` ones share what the others leave of the terminal and are cut to it."""

    name: str
    wide: bool = False
    right: bool = False


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, title: str = "", file: IO[str] | None = None
) -> None:
    """Print a table on stdout: cut to the terminal, plain when piped. Line breaks in cells become `\\n`; numbers are short, None is a dash."""
    cells = [[one_line(value) for value in row] for row in rows]
    out = make_console(file or sys.stdout)
    if out.is_terminal:
        _terminal(out, columns, cells, title)
    else:
        _plain(out.file, columns, cells, title)


def one_line(value: Any) -> str:
    """A value as the text of a cell, without anything that moves the cursor."""
    if value is None or value != value:  # NaN
        return "-"
    if isinstance(value, bool) or not isinstance(value, float):
        text = str(value)[:LONGEST].replace("\r\n", "\n").replace("\n", "\\n").replace("\t", " ")
        return "".join(character if character.isprintable() else "\ufffd" for character in text)
    return f"{value:.4g}"


def seconds(value: float) -> str:
    """A duration for people: 0.4 ms, 12 ms, 3.1 s."""
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms" if value >= 0.01 else f"{1000 * value:.1f} ms"


def _terminal(out: Any, columns: Sequence[Column], cells: Sequence[Sequence[str]], title: str) -> None:
    from rich import box
    from rich.table import Table

    grid = Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        expand=any(column.wide for column in columns),
    )
    for i, column in enumerate(columns):
        longest = max([len(column.name), *(len(row[i]) for row in cells)])
        grid.add_column(
            Text(column.name),
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if column.wide else None,
            min_width=None if column.wide else min(longest, 24),
        )
    for row in cells:
        grid.add_row(*[Text(cell) for cell in row])
    out.soft_wrap = False
    out.print(grid)


def _plain(out: IO[str], columns: Sequence[Column], cells: Sequence[Sequence[str]], title: str) -> None:
    heads = [column.name for column in columns]
    cut = [[_cut(cell) if column.wide else cell for column, cell in zip(columns, row)] for row in cells]
    widths = [max(len(row[i]) for row in [heads, *cut]) for i in range(len(columns))]
    if title:
        out.write(f"{title}\n")
    for row in [heads, *cut]:
        aligned = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths)
        ]
        out.write("  ".join(aligned).rstrip() + "\n")


def _cut(cell: str) -> str:
    return cell if len(cell) <= PIPED else cell[: PIPED - 3] + "..."


# -- bars --------------------------------------------------------------------------------------------------------------


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr while a block runs, on a terminal only; yields what moves it by one."""
    to = console()
    progress = progress_bar(to)
    task = progress.add_task(what, total=total)
    with progress if to.is_terminal else nullcontext():
        yield lambda: progress.advance(task)


def progress_bar(to: Console, *columns: Any) -> Any:
    """A rich bar, with these columns at its end; nothing of it is shown before it is started."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    description = TextColumn("{task.description}", markup=False)
    return Progress(description, BarColumn(), MofNCompleteColumn(), *columns, console=to, transient=True)
