"""The door of the data: whatever a row holds becomes values that JSON knows, or is refused by its row and column.

    plain_row({"answer": np.int64(5), "day": date(2026, 1, 2)}, "train:0")      {"answer": 5, "day": "2026-01-02"}

Past it, rewards, messages, stored rollouts and the protocol see the same values: text, numbers, booleans, None, lists, dicts.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

from postrl.errors import DataError

HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")
"""A surrogate without its other half: in Python text, in no encoding of it."""
CLEAN = "clean the text, such as text.encode(errors='replace').decode(), or leave the row out"
DEEPEST = 100
"""Levels of nesting in a cell."""
MISSING = {"NAType", "NaTType"}
"""pandas' values that are not there."""


class Refused(ValueError):
    """What a value is, where in its cell, and what to do about it."""

    def __init__(self, found: str, where: str = "", hint: str = "") -> None:
        super().__init__(found)
        self.found, self.where, self.hint = found, where, hint


def plain_row(row: Any, row_id: str) -> dict[str, Any]:
    """A row (a mapping, a dataclass, a named tuple, a pydantic model) as column -> plain value.

    numpy and pandas scalars and arrays become numbers and lists; NaN, NA and NaT None; dates and times ISO text; Decimals
    numbers, or text where a float would lose digits; tuples lists, sets sorted lists; dataclasses dicts; enums their values.

    Raises:
        DataError: it is not a row, or holds what JSON does not know: an image, bytes, infinity, half a character.
    """
    columns = fields_of(row)
    if columns is None:
        raise DataError(
            f"{row_id} is a {type(row).__name__}, expected columns with values",
            hint="give rows such as {'prompt': ..., 'answer': ...}",
        )
    return {str(name): plain_cell(value, row_id, str(name)) for name, value in columns.items()}


def plain_cell(value: Any, row_id: str, column: str) -> Any:
    """One cell of a row as a plain value.

    Raises:
        DataError: as for `plain_row`.
    """
    try:
        return _plain(value)
    except Refused as refused:
        raise DataError(
            f"{row_id}: column {column + refused.where} holds {refused.found}",
            hint=refused.hint or f"leave the column {column} out, or turn it into text, numbers, lists or dicts",
        ) from None


def _plain(value: Any, depth: int = 0) -> Any:
    if value is None or value is True or value is False or type(value) is int:
        return value
    if isinstance(value, Enum):
        return _plain(value.value, depth)
    if isinstance(value, str):
        if broken := HALF_A_CHARACTER.search(value):
            raise Refused(f"half a character (the surrogate {broken[0]!a} at {broken.start()})", hint=CLEAN)
        return str(value)
    if isinstance(value, float):
        return _number(float(value))
    if depth > DEEPEST:
        raise Refused(f"more than {DEEPEST} levels of nesting")
    if (fields := fields_of(value)) is not None:
        return {_key(name): _inside(cell, f".{name}", depth) for name, cell in fields.items()}
    if isinstance(value, Set):
        return sorted((_plain(item, depth + 1) for item in value), key=lambda item: (type(item).__name__, str(item)))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_inside(item, f"[{i}]", depth) for i, item in enumerate(value)]
    return _other(value, depth)


def _inside(value: Any, where: str, depth: int) -> Any:
    try:
        return _plain(value, depth + 1)
    except Refused as refused:
        raise Refused(refused.found, where + refused.where, refused.hint) from None


def _key(name: Any) -> str:
    return str(_plain(name if isinstance(name, str) else str(name)))


def fields_of(value: Any) -> dict[Any, Any] | None:
    """The parts of a value that has names for them; None: it has none."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if hasattr(value, "model_dump"):  # pydantic
        return dict(value.model_dump())
    return None


def _number(value: float) -> float | None:
    if math.isinf(value):
        raise Refused("infinity")
    return None if math.isnan(value) else value


def _other(value: Any, depth: int) -> Any:
    """What is not one of Python's own containers and numbers."""
    if type(value).__name__ in MISSING:
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, datetime.date | datetime.time):  # a datetime and pandas' Timestamp are dates
        return value.isoformat()
    if isinstance(value, datetime.timedelta | UUID | PurePath | Fraction):
        return str(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and type(value).__name__ in ("datetime64", "timedelta64"):
        return None if str(value) == "NaT" else str(value)
    if module == "pyarrow" and hasattr(value, "as_py"):
        return _plain(value.as_py(), depth + 1)
    if module in ("numpy", "pandas", "torch", "jax", "jaxlib") and hasattr(value, "tolist"):
        found = value.tolist()  # an array's items, or a scalar's number
        if type(found) is not type(value):
            return _plain(found, depth + 1)
    if isinstance(value, bytes | bytearray | memoryview):
        raise Refused(f"{len(value)} bytes")
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise Refused("an image" if module == "PIL" else f"a {kind}")


def _decimal(value: Decimal) -> int | float | str | None:
    if not value.is_finite():
        return _number(float(value))
    if value == value.to_integral_value() and value.as_tuple().exponent == 0:
        return int(value)
    number = float(value)
    return number if math.isfinite(number) and Decimal(repr(number)) == value else str(value)
