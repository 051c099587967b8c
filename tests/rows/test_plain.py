"""The door: what rows hold becomes what JSON knows."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from postrl.errors import DataError
from postrl.rows.plain import plain_row


@dataclasses.dataclass
class Row:
    prompt: str
    tags: tuple[str, ...]


class Level(enum.Enum):
    EASY = "easy"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(5), 5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([{"role": "user"}, None], dtype=object), [{"role": "user"}, None]),
        (np.array(7), 7),
        (np.datetime64("2026-01-02"), "2026-01-02"),
        (np.datetime64("NaT"), None),
        (torch.tensor([1.5, 2.0]), [1.5, 2.0]),
        (pd.NA, None),
        (pd.NaT, None),
        (float("nan"), None),
        (np.float64("nan"), None),
        (pd.Timestamp("2026-01-02 03:04"), "2026-01-02T03:04:00"),
        (pd.Series([1, 2]), [1, 2]),
        (pa.scalar(3), 3),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC), "2026-01-02T03:00:00+00:00"),
        (datetime.timedelta(seconds=90), "0:01:30"),
        (Fraction(1, 3), "1/3"),
        (Decimal("1.10"), 1.1),
        (Decimal("12"), 12),
        (Decimal("0.1234567890123456789012"), "0.1234567890123456789012"),
        (Decimal("NaN"), None),
        ((1, (2, 3)), [1, [2, 3]]),
        ({3, 1}, [1, 3]),
        (range(3), [0, 1, 2]),
        (Level.EASY, "easy"),
        (Path("a/b"), "a/b"),
        ({1: {"a": (np.int8(2),)}}, {"1": {"a": [2]}}),
        (Row("a", ("x",)), {"prompt": "a", "tags": ["x"]}),
        (namedtuple("Point", "x y")(1, 2), {"x": 1, "y": 2}),
        (10**400, 10**400),
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_what_has_a_plain_form_gets_it(value, plain):
    found = plain_row({"cell": value}, "train:0")["cell"]
    assert found == plain and type(found) is type(plain)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))  # fmt: skip
def test_what_is_plain_stays_as_it_is(value):
    found = plain_row({"cell": value}, "train:0")["cell"]
    assert found == value and json.loads(json.dumps(found, allow_nan=False)) == value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"abc", "column cell holds 3 bytes"),
        ({"bytes": b"abc", "path": None}, "column cell.bytes holds 3 bytes"),
        ([1, {"x": [b""]}], "column cell[1].x[0] holds 0 bytes"),
        (np.array([b"abc"]), "column cell[0] holds 3 bytes"),
        (float("inf"), "holds infinity"),
        ("half \ud83d", "half a character"),
        ({"\udc00": 1}, "half a character"),
        (print, "builtin_function_or_method"),
        pytest.param(object(), "a object", id="an object"),
        (int, "a type"),
    ],
    ids=lambda value: f"{value!r:.40}" if not isinstance(value, str) else ascii(value)[:40],
)
def test_what_has_none_is_refused_by_row_and_column(value, says):
    with pytest.raises(DataError) as caught:
        plain_row({"fine": 1, "cell": value}, "train:7")
    assert str(caught.value).startswith("train:7: ") and says in str(caught.value)
    assert ("clean the text" if "half" in says else "leave the column cell out") in (caught.value.hint or "")


def test_an_image_is_refused_as_one():
    image = pytest.importorskip("PIL.Image").new("RGB", (2, 2))
    with pytest.raises(DataError, match=r"train:0: column look\[1\] holds an image"):
        plain_row({"look": [None, image]}, "train:0")


def test_a_loop_of_containers_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(DataError, match="levels of nesting"):
        plain_row({"cell": loop}, "train:0")


def test_a_row_is_anything_with_named_values():
    assert plain_row(Row("a", ("x", "y")), "train:0") == {"prompt": "a", "tags": ["x", "y"]}
    assert plain_row({0: "a"}, "train:0") == {"0": "a"}
    with pytest.raises(DataError, match="train:0 is a str, expected columns"):
        plain_row("just text", "train:0")
