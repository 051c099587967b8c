from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest
import torch

from postrl.rewards.calling.log import Log

LOOP: list = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (1, 1), (True, True), (None, None), ("é\udcff", "é\udcff"), ([1, {"a": (2,)}], [1, {"a": [2]}]),
        (float("nan"), None), ([float("-inf"), 1.5], [None, 1.5]), (np.float32(0.5), 0.5), (np.int64(3), 3),
        (torch.tensor(2.0), 2.0), (np.float64("nan"), None), (Decimal("1.10"), "1.10"), ({1: 2}, {"1": 2}),
        ({(1, 2): 3}, "{(1, 2): 3}"), (LOOP, "[[...]]"), (b"x", "b'x'"),
    ],
)  # fmt: skip
def test_a_column_holds_json_values_and_the_text_of_anything_else(value, stored):
    log = Log(1)
    log.log_extra("column", [value])
    assert log.columns == {"column": [stored]} and log.notes == []
    json.dumps(log.columns, allow_nan=False)


def test_values_that_are_not_finite_do_not_count():
    log = Log(1)
    for value in (1, np.float32(2.0), torch.tensor(3.0), True, float("nan"), float("inf"), 1e308, 1.7e308):
        log.log_metric("m", value)
    assert log.metrics == {"m": (1e308, 5.0)}, "the last one would overflow the sum"


def test_functions_get_what_their_signature_names():
    def neither(completions): ...
    def one(completions, *, log_metric=None): ...
    def both(completions, **columns): ...

    asked = [set(Log(1).asked_for(function)) for function in (neither, one, both)]
    assert asked == [set(), {"log_metric"}, {"log_extra", "log_metric"}]
