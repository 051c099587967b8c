"""Where rows come from: local files, the hub.

    read_files("train.jsonl")               rows of a local JSONL, JSON, Parquet or CSV file, or of a folder of them
    read_hub("openai/gsm8k", "main", "train")   rows from the hub or its cache; offline it fails at once

A source gives plain rows (column -> value); `postrl.data.prompts` makes prompts of them.
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO, cast

from postrl.errors import DataError, first_line
from postrl.host.hub import hub_answers
from postrl.rows.recipes import RECIPES, file_format

Row = Mapping[str, Any]
Rows = Sequence[Row]


# -- local files -----------------------------------------------------------------------------------------------------


def read_files(path: str | Path, split: str | None = None) -> list[dict[str, Any]]:
    """The rows of a file, or of all files of a folder in the order of their names.

    Args:
        split: in a folder, only the files that carry this name, such as train.jsonl or test-00000.parquet, if any do; in
            a JSON file with several lists of rows, the one of this name.

    Raises:
        DataError: no such file, an unknown kind, or a line that is not a row.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if file_format(f) in READERS)
        files = [f for f in files if split and _names_split(f, split)] or files
    else:
        files = [path] if path.exists() else []
    if not files:
        found = "holds no data file" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {found}", hint=f"give a {KINDS} file, or a folder of them")
    return [row for file in files for row in _read_file(file, split)]


def files_of_split(path: str | Path, trained: str, split: str) -> list[Path]:
    """The files with another split of a data set that is trained on from `path`: those that carry its name in the same
    folder. It is `path` itself of the split `trained`, and where it carries or holds the other one.

    Raises:
        DataError: there are none, or files of several kinds.
    """
    path = Path(path).expanduser()
    if split == trained or not path.exists() or (path.is_file() and (_names_split(path, split) or _holds(path, split))):
        return [path]
    folder = path if path.is_dir() else path.parent
    files = [f for f in sorted(folder.iterdir()) if file_format(f) in READERS and _names_split(f, split) and f != path]
    kind = _without_split(path, trained)
    files = [f for f in files if path.is_dir() or _without_split(f, split) == kind] or files
    kinds = {_without_split(f, split) for f in files}
    if len(kinds) == 1 or (files and path.is_dir()):
        return files
    found = (
        f"several beside it have it: {', '.join(f.name for f in files[:5])}" if files else "no file beside it has it"
    )
    suffix = path.name[path.name.index(file_format(path)) :] if path.is_file() and file_format(path) else ".jsonl"
    raise DataError(
        f"the rows to train on come from {path}, and the evaluation needs the split {split}: {found}",
        hint=f"put {split}{suffix} there, or give a file with --eval-dataset FILE",
    )


def _holds(file: Path, split: str) -> bool:
    """Whether a JSON file has a list of rows of this name."""
    if file_format(file) != ".json":
        return False
    try:
        with _open_text(file) as text:
            value = json.load(text)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):  # reading it will say
        return False
    rows = value.get(split) if isinstance(value, dict) else None
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def _without_split(file: Path, split: str) -> str:
    """A file's name with a star in place of its split and of numbers: the same for all files of one data set."""
    named = re.sub(rf"(^|[-_.]){re.escape(split)}([-_.]|$)", r"\1*\2", file.name, count=1)
    return re.sub("[0-9]+", "#", named)


def _names_split(file: Path, split: str) -> bool:
    return re.search(rf"(^|[-_.]){re.escape(split)}([-_.]|$)", file.stem) is not None


def _read_file(file: Path, split: str | None) -> list[dict[str, Any]]:
    reader = READERS.get(file_format(file))
    if reader is None:
        raise DataError(f"{file} is not a {KINDS} file", hint="convert it, or rename it to what it is")
    try:
        rows = reader(file, split)
    except DataError:
        raise
    except (OSError, EOFError, zlib.error) as error:  # a .gz that was cut, or damaged
        raise DataError(
            f"cannot read {file}: {getattr(error, 'strerror', None) or error}",
            hint="check the path and its permissions",
        ) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, not Parquet (pyarrow's ArrowInvalid)
        hint = "save it as UTF-8" if isinstance(error, UnicodeError) else "check the file"
        raise DataError(f"{file} is not a valid {file_format(file)[1:]} file: {error}", hint=hint) from error
    bad = next((i for i, row in enumerate(rows) if not isinstance(row, dict)), None)
    if bad is not None:
        raise DataError(
            f"{file}: row {bad} is a {type(rows[bad]).__name__}, expected an object with columns",
            hint="one JSON object a row",
        )
    return rows


def _jsonl(file: Path, split: str | None = None) -> list[Any]:
    rows = []
    with _open_text(file) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise DataError(
                        f"{file}, line {number} is not JSON: {error}", hint="one JSON object a line"
                    ) from error
    return rows


def _json(file: Path, split: str | None) -> list[Any]:
    """A list of objects, an object with such lists by split or under "data", or columns of equal length; else lines."""
    try:
        with _open_text(file) as text:
            value = json.load(text)
    except json.JSONDecodeError as error:
        try:
            return _jsonl(file)
        except DataError:
            raise error from None  # it was meant as one value: say where that breaks
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        value = value["data"]
    if isinstance(value, dict) and value and all(isinstance(cells, list) for cells in value.values()):
        cells = [cell for cells in value.values() for cell in cells]
        by_split = cells and all(isinstance(cell, dict) and "role" not in cell for cell in cells)
        return _of_split(file, value, split) if by_split else _rows_of_columns(file, value)
    return value if isinstance(value, list) else [value]


def _of_split(file: Path, lists: dict[str, list[Any]], split: str | None) -> list[Any]:
    """The rows of a file that has them by split."""
    if split in lists:
        return lists[split]
    if len(lists) == 1:
        return next(iter(lists.values()))
    raise DataError(
        f"{file} holds rows of {', '.join(lists)}, and none called {split}", hint="choose one with --dataset-split"
    )


def _rows_of_columns(file: Path, columns: dict[str, list[Any]]) -> list[Any]:
    lengths = {name: len(cells) for name, cells in columns.items()}
    if len({*lengths.values()}) > 1:
        found = ", ".join(f"{name} ({length})" for name, length in lengths.items())
        raise DataError(f"{file} has columns of several lengths: {found}", hint="each row has a cell of every column")
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _parquet(file: Path, split: str | None) -> list[Any]:
    import pyarrow.parquet as pq

    rows: list[Any] = pq.read_table(file).to_pylist()
    return rows


def _csv(file: Path, split: str | None) -> list[Any]:
    """Cells that a row has not are None; blank lines are not rows."""
    csv.field_size_limit(2**31 - 1)  # a long prompt is one field
    rows = []
    with _open_text(file) as lines:
        reader = csv.reader(lines, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            if twice := next((name for name in header if header.count(name) > 1), None):
                raise DataError(f"{file} has two columns {twice!r}", hint="give each column a name of its own")
            for cells in reader:
                if len(cells) > len(header):
                    raise csv.Error(f"a row of {len(cells)} cells, and the header names {len(header)}")
                if cells:
                    rows.append(dict(zip_longest(header, cells)))
        except csv.Error as error:
            raise DataError(
                f"{file}, line {reader.line_num}: {error}",
                hint='a cell with a comma or a line end stands in quotes, a quote in it is doubled: "He said ""1,000""."',
            ) from error
    return rows


def _open_text(file: Path) -> TextIO:
    """Line ends stay as they are, which CSV needs and JSON does not mind."""
    if file.suffix.lower() != ".gz":
        return file.open(encoding="utf-8-sig", newline="")
    import gzip

    return cast(TextIO, gzip.open(file, "rt", encoding="utf-8-sig", newline=""))


READERS: dict[str, Callable[[Path, str | None], list[Any]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _csv,
}
KINDS = "JSONL, JSON, Parquet or CSV"
"""For people. JSONL, JSON and CSV may be compressed (.gz)."""


# -- the hub ---------------------------------------------------------------------------------------------------------


def read_hub(name: str, config: str | None, split: str) -> Rows:
    """The rows of a hub data set, from the hub or from its cache on this machine.

    Without network this does not wait for the hub's retries: it looks whether the hub answers (5 s at most).

    Raises:
        DataError: offline and not cached, no such data set, split or configuration, no access.
    """
    import datasets

    online = not datasets.config.HF_HUB_OFFLINE and hub_answers()
    try:
        with _offline(datasets.config, not online):
            rows: Rows = datasets.load_dataset(name, config, split=split)
            return rows
    except (ConnectionError, datasets.exceptions.DatasetsError, ValueError, OSError, RuntimeError) as error:
        raise _hub_error(name, split, online, error) from error


def _hub_error(name: str, split: str, online: bool, error: Exception) -> DataError:
    """What a failed load means, from datasets' exception."""
    if not online:
        return DataError(
            f"{name} is not cached on this machine, and the hub cannot be reached (offline)",
            hint="give the rows as local files with --dataset-path FILE, or run once with network access",
        )
    reason = first_line(error)
    if "Config name is missing" in str(error) or "BuilderConfig" in str(error):
        return DataError(f"{name}: {' '.join(str(error).split())}", hint="choose one with --dataset-config")
    if "split" in reason.lower():
        return DataError(f"{name} has no split {split!r}: {reason}", hint="choose one with --dataset-split")
    if "gated" in reason.lower() or "authenticated" in reason.lower():
        return DataError(f"{name}: {reason}", hint="`hf auth login`, and ask for access on the data set's page")
    return DataError(
        f"cannot load the data set {name}: {reason}", hint=f"{known_names(name)}; any hub id or local file works too"
    )


def known_names(name: str) -> str:
    """ "did you mean gsm8k?" where a recipe's name is near, else the list of recipes."""
    from difflib import get_close_matches

    near = get_close_matches(name, RECIPES, n=1)
    return f"did you mean {near[0]}" if near else f"built in are {', '.join(RECIPES)}"


@contextmanager
def _offline(config: Any, offline: bool) -> Iterator[None]:
    """datasets' own offline switch, for one load: it then uses its cache or says at once that it has none."""
    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
