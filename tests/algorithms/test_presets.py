from __future__ import annotations

from dataclasses import replace

import pytest

from postrl.algorithms.presets import PRESETS, resolve


def test_grpo_is_the_row_that_the_documentation_promises():
    a = PRESETS["grpo"]
    assert (a.aggregation, a.epsilon_low, a.epsilon_high, a.beta) == ("token_mean", 0.2, 0.2, 0.0)
    assert (a.correction, a.scale_rewards, a.dual_clip, a.kl, a.needs) == (
        "tis",
        "group",
        None,
        "k3_unbiased",
        frozenset(),
    )


def test_settings_of_the_user_replace_those_of_the_row():
    a = resolve("grpo", beta=0.04, epsilon=0.1, loss_aggregation="seq_mean_token_mean", is_correction="none", kl="k2")
    assert (a.beta, a.epsilon_low, a.epsilon_high) == (0.04, 0.1, 0.1)
    assert (a.aggregation, a.correction, a.kl) == ("seq_mean_token_mean", "none", "k2")
    assert resolve("grpo", epsilon=0.2, epsilon_high=0.28).epsilon_high == 0.28
    assert resolve("grpo") == PRESETS["grpo"]


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({}, set()),
        ({"beta": 0.04}, {"ref"}),
        ({"num_updates_per_batch": 2}, {"prox"}),
        ({"beta": 0.04, "num_updates_per_batch": 4}, {"ref", "prox"}),
    ],
)
def test_needs_follow_from_the_settings(settings, needs):
    assert resolve("grpo", **settings).needs == needs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kl": "k1", "beta": 0.1}, "k1 cannot be the KL term of a loss"),
        ({"kl": "k9"}, "kl is 'k9'"),
        ({"loss_aggregation": "mean"}, "loss_aggregation is 'mean', expected one of token_mean"),
        ({"is_correction": "icecream"}, "is_correction is 'icecream', expected one of tis, tis_seq"),
        ({"scale_rewards": "std"}, "scale_rewards is 'std'"),
        ({"beta": -1.0}, "beta is -1.0, expected 0 or more"),
        ({"beta": float("nan")}, "beta is nan"),
        ({"epsilon": -0.1}, "epsilon_low is -0.1"),
        ({"is_correction": "seed", "is_low": 0.5}, "is_low is 0.5, and is_correction seed takes is_eps"),
        ({"is_high": 0.5}, "is_high is 0.5, expected 1 or more"),
        ({"dual_clip": 1.1}, r"dual_clip is 1.1, expected more than 1 \+ epsilon_high"),
        ({"loss_aggregation": "seq_mean_token_sum_norm"}, "divides by max_completion_length, which is None"),
        ({"num_updates_per_batch": 0}, "num_updates_per_batch is 0"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        resolve("grpo", **settings)


def test_bounds_of_the_user_go_to_the_correction_and_those_of_the_row_stay_with_its_own(monkeypatch):
    assert resolve("grpo", is_low=0.5).bounds == {"low": 0.5}
    assert resolve("grpo", is_correction="seed", is_eps=0.3).bounds == {"eps": 0.3}
    row = replace(PRESETS["grpo"], name="moe", correction="icepop", bounds={"low": 0.4, "high": 4.0})
    monkeypatch.setitem(PRESETS, row.name, row)
    assert resolve("moe", is_high=3.0).bounds == {"low": 0.4, "high": 3.0}
    assert resolve("moe", is_correction="opsm").bounds == {}


def test_an_unknown_algorithm_lists_the_known_ones():
    with pytest.raises(ValueError, match="algorithm is 'grpoo', expected one of grpo"):
        resolve("grpoo")


def test_what_a_row_needs_stays_needed(monkeypatch):
    row = replace(PRESETS["grpo"], name="with_critic", needs=frozenset({"values"}))
    monkeypatch.setitem(PRESETS, row.name, row)
    assert resolve("with_critic", beta=0.1).needs == {"values", "ref"}
