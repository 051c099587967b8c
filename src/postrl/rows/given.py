"""Rows that a script gives: lists, datasets, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from postrl.errors import DataError
from postrl.rows.plain import fields_of, plain_row


def given_rows(raw: Any, split: str) -> Sequence[Any]:
    """The rows of what a script gives as `train_dataset` (split "train") or `eval_dataset`, to be read more than once; those
    of a list or a table as plain values.

    Raises:
        DataError: several splits, a stream, or no rows at all; an item of a list that is not a row, or holds what is not plain.
    """
    name = f"{split}_dataset"
    if isinstance(raw, Mapping):
        raise _several(raw, name)
    rows = _table(raw, name)
    if rows is None and (isinstance(raw, str | bytes) or not (hasattr(raw, "__len__") and hasattr(raw, "__getitem__"))):
        stream = hasattr(raw, "__iter__") and not isinstance(raw, str | bytes)
        raise DataError(
            f"{name} is a {type(raw).__name__}, expected a datasets.Dataset, a pandas DataFrame or a list of dicts",
            hint=f"{name}=list(rows) reads a stream into memory; of an endless one take a part"
            if stream
            else f"a file or hub id is named in GRPOConfig(dataset=[{raw!r:.80}])",
        )
    if rows is None and not isinstance(raw, list | tuple):
        return _unformatted(raw)
    rows = raw if rows is None else rows
    bad = next((i for i, row in enumerate(rows) if fields_of(row) is None), None)
    if bad is not None:
        raise DataError(
            f"{name} has rows that are not dicts: row {bad} is a {type(rows[bad]).__name__}",
            hint="give rows such as {'prompt': ..., 'answer': ...}",
        )
    return [plain_row(row, f"{split}:{i}") for i, row in enumerate(rows)]


def _unformatted(raw: Any) -> Sequence[Any]:
    """A datasets.Dataset that gives rows, and not tables or tensors of them; a transform of the script's own stays. What has
    no iterator, as torch's data sets have none, ends at its length."""
    if not hasattr(raw, "__iter__"):
        return [raw[i] for i in range(len(raw))]
    if type(raw).__module__.partition(".")[0] == "datasets" and raw.format["type"] not in (None, "custom"):
        raw = raw.with_format(None)
    return raw  # type: ignore[no-any-return]


def _several(raw: Mapping[Any, Any], name: str) -> DataError:
    """A DatasetDict, or columns instead of rows."""
    cells = [next(iter(value), None) if isinstance(value, list | tuple) else value for value in raw.values()]
    if cells and all(cell is None or isinstance(cell, str | int | float) for cell in cells) and any(cells):
        return DataError(
            f"{name} is a dict of columns: {', '.join(map(str, raw))}", hint=f"{name}=datasets.Dataset.from_dict(...)"
        )
    first = next(iter(raw), "train")
    return DataError(
        f"{name} has several splits: {', '.join(map(str, raw))}", hint=f"give one: {name}=dataset[{first!r}]"
    )


def _table(raw: Any, name: str) -> Sequence[Any] | None:
    """The rows of a pandas or polars DataFrame, or of an Arrow table."""
    module = type(raw).__module__.partition(".")[0]
    if module == "pandas" and hasattr(raw, "columns"):
        columns = [str(column) for column in raw.columns]
        if twice := next((column for column in columns if columns.count(column) > 1), None):
            raise DataError(f"{name} has two columns {twice!r}", hint="give each column a name of its own")
        return [dict(zip(columns, cells, strict=True)) for cells in raw.itertuples(index=False, name=None)]
    if module == "polars" and hasattr(raw, "to_dicts"):
        return list(raw.to_dicts())
    if module == "pyarrow" and hasattr(raw, "to_pylist") and hasattr(raw, "column_names"):
        return list(raw.to_pylist())
    return None
