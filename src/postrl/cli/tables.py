"""Tables with text in them: cut to the terminal, plain when piped; and a bar for what takes a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from postrl.console import console, make_console

PIPED = 60
"""Characters of a wide cell where there is no terminal to cut it to."""
LONGEST = 1000
"""Characters of a cell that are looked at, whatever the terminal's width."""


@dataclass(frozen=True)
class Column:
    """A column: `wide` ones share what the others leave of the terminal and are cut to it."""

    name: str
    wide: bool = False
    right: bool = False


def show(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, title: str = "", file: IO[str] | None = None
) -> None:
    """Print a table on stdout. Line breaks in cells become `\\n`; numbers are short, None is a dash."""
    cells = [[one_line(value) for value in row] for row in rows]
    out = make_console(file or sys.stdout)
    if out.is_terminal:
        _terminal(out, columns, cells, title)
    else:
        _plain(out.file, columns, cells, title)


def one_line(value: Any) -> str:
    """A value as the text of a cell, without anything that moves the cursor."""
    if value is None:
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
    from rich.text import Text

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


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr while a block runs, on a terminal only; yields what moves it by one."""
    to = console()
    if not to.is_terminal:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=to, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
