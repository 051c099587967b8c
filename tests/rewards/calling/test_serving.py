from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
import torch

from postrl.rewards.calling import frames
from postrl.rewards.calling.serving import describe, to_score
from postrl.rewards.score import Score


@pytest.mark.parametrize(
    "item", [1, 1.0, True, Decimal(1), np.float32(1), np.int64(1), np.array(1.0), torch.tensor(1.0), torch.tensor([1])]
)
def test_whatever_is_one_number_is_a_score(item):
    score = to_score(item)
    assert score == Score(1.0, "scored")
    assert type(score.value) is float


def test_none_is_no_score():
    assert to_score(None) == Score(None, "none")


def test_a_score_keeps_its_status():
    assert to_score(Score(0.0, "wrong")) == Score(0.0, "wrong")
    assert to_score(Score(None, "gold_unscorable")) == Score(None, "gold_unscorable")


@pytest.mark.parametrize("item", [float("nan"), float("inf"), "1", b"1", [1], {}, object(), 1j, Score(1.0, "great")])
def test_anything_else_is_described(item):
    assert isinstance(to_score(item), str)


def test_a_signature_says_what_is_sent():
    def some(prompts, answer, *, level=1): ...
    def everything(completions, **columns): ...

    asks = {"names": ["prompts", "answer", "level"], "required": ["prompts", "answer"], "any": False, "constant": []}
    assert describe(some) == asks
    assert describe(some, ["answer"]) == {
        **asks,
        "names": ["prompts", "level"],
        "required": ["prompts"],
        "constant": ["answer"],
    }
    assert describe(everything)["any"]


def test_positional_only_arguments_are_refused():
    def f(completions, /): ...

    with pytest.raises(TypeError, match="'completions' is positional-only"):
        describe(f)


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, "x", True]}, {"a": (1, 2)}, {1: 2}, {"a": Decimal(1)}, [b"x"]])
def test_a_request_arrives_as_it_was_sent(value):
    arrived = frames.decode(frames.encode(value))
    assert arrived == value
    assert repr(arrived) == repr(value)


def test_only_values_that_json_cannot_hold_are_pickled():
    assert frames.encode({"a": [1, "x"]})[:1] == b"J"
    assert frames.encode({"a": (1, "x")})[:1] == b"P"


def test_a_reward_process_needs_no_torch():
    code = "import sys, postrl.rewards.calling.serving, postrl.rewards.math, postrl.rewards.runner; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
