from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch

from postrl.algorithms.corrections import CORRECTIONS, importance_weights
from postrl.algorithms.reduce import accumulate, finish
from postrl.config import training_settings as config
from postrl.config.checks import BOUNDS_OF

from .cases import close

BOUNDED = [name for name, row in CORRECTIONS.items() if {"low", "high"} <= row.bounds.keys()]
PER_COMPLETION = ("tis_seq", "mis_seq")
"""Corrections that give every token of a completion the same weight."""


def weigh(name: str, prox: torch.Tensor, behav: torch.Tensor, mask: Any = None, advantages: Any = None, **kwargs: Any):
    """(weights, metrics' values) with the live policy at `prox` unless `logp` says otherwise."""
    mask = torch.ones_like(prox, dtype=torch.bool) if mask is None else torch.as_tensor(mask, dtype=torch.bool)
    advantages = torch.ones(len(prox)) if advantages is None else torch.as_tensor(advantages)
    weights, metrics = importance_weights(name, kwargs.pop("logp", prox), prox, behav, advantages, mask, **kwargs)
    return weights, finish(metrics)


def probabilities(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        # rho = 1.25, 0.5, 3 (product 1.875, geometric mean 1.233); 1.1, 1.1, 1.1 (product 1.331, geometric mean 1.1)
        ("tis", [1.25, 0.5, 2.0], [1.1] * 3),
        ("tis_seq", [1.875] * 3, [1.331] * 3),
        ("icepop", [1.25, 0.5, 3.0], [1.1] * 3),
        ("mis_seq", [1.875] * 3, [1.331] * 3),
        ("seq_mask_tis", [0.0] * 3, [0.0] * 3),
        ("opsm", [1.0] * 3, [1.0] * 3),
        ("decoupled", [1.25, 0.5, 3.0], [1.1] * 3),
        ("seed", [1.2, 0.8, 1.2], [1.1] * 3),
        ("none", [1.0] * 3, [1.0] * 3),
        ("binary_kl", [0.0] * 3, [1.1] * 3),
    ],
)
def test_weights_under_the_default_bounds(name: str, first: list[float], second: list[float]):
    prox, behav = probabilities([0.5, 0.4, 0.06], [0.55, 0.33, 0.22]), probabilities([0.4, 0.8, 0.02], [0.5, 0.3, 0.2])
    close(weigh(name, prox, behav)[0], [first, second], torch.float64)


def test_icepop_rejects_on_both_sides_and_decoupled_above_only():
    """rho = 6, 0.4, 1."""
    prox, behav = probabilities([0.6, 0.2, 0.5]), probabilities([0.1, 0.5, 0.5])
    icepop, rejected = weigh("icepop", prox, behav)
    close(icepop, [[0.0, 0.0, 1.0]], torch.float64)
    decoupled, above = weigh("decoupled", prox, behav)
    close(decoupled, [[0.0, 0.4, 1.0]], torch.float64)
    assert (rejected["mismatch/rejected_frac"], above["mismatch/rejected_frac"]) == pytest.approx((2 / 3, 1 / 3))


def test_mis_seq_rejects_whole_completions_by_their_product():
    """Products 4 and 2 with a bound at 3; a masked token does not enter."""
    prox, behav = probabilities([0.8, 0.6, 0.9], [0.4, 0.3, 0.9]), probabilities([0.4, 0.3, 0.1], [0.2, 0.3, 0.1])
    weights, values = weigh("mis_seq", prox, behav, [[1, 1, 0], [1, 1, 0]])
    close(weights, [[0.0, 0.0, 0.0], [2.0, 2.0, 0.0]], torch.float64)
    assert values["mismatch/rejected_frac"] == 0.5


def test_the_geometric_mean_does_not_depend_on_the_length_and_the_product_does():
    for length in (10, 1000):
        behav = torch.full((1, length), -1.0, dtype=torch.float64)
        prox = behav + 0.002
        close(weigh("seq_mask_tis", prox, behav, bounds={"high": 1.01})[0], math.exp(0.002) + 0 * prox, torch.float64)
        product = min(math.exp(0.002 * length), 5.0)
        close(weigh("tis_seq", prox, behav)[0], product + 0 * prox, torch.float64)


@pytest.mark.parametrize("delta", [0.1, 0.3])
def test_opsm_looks_at_the_live_policy_and_at_the_sign_of_each_advantage(delta: float):
    """The live policy is 0.2 nats a token below the sampler; prox still agrees with the sampler."""
    behav = torch.full((2, 2), -1.0)
    advantages = torch.tensor([[-1.0, 1.0], [0.0, -0.5]])
    weights, values = weigh("opsm", behav, behav, None, advantages, logp=behav - 0.2, bounds={"delta": delta})
    rejected = (advantages < 0) & (delta < 0.2)
    assert torch.equal(weights, (~rejected).float())
    assert values["mismatch/rejected_frac"] == rejected.float().mean()


def test_metrics_by_hand_on_the_raw_ratio():
    """rho = 1.25, 0.25, 3; truncation or rejection does not change what is reported."""
    rho = [1.25, 0.25, 3.0]
    prox, behav = probabilities([0.5, 0.2, 0.06]), probabilities([0.4, 0.8, 0.02])
    for name in CORRECTIONS:
        values = weigh(name, prox, behav)[1]
        assert values["mismatch/kl"] == pytest.approx(-sum(math.log(r) for r in rho) / 3, rel=1e-5)
        assert values["mismatch/k3"] == pytest.approx(sum(r - 1 - math.log(r) for r in rho) / 3, rel=1e-5)
        assert values["mismatch/max_abs"] == pytest.approx(math.log(4), rel=1e-5)
        assert values["mismatch/ess"] == pytest.approx((sum(rho) / 3) ** 2 / (sum(r * r for r in rho) / 3), rel=1e-5)
        assert values["mismatch/missing_logps"] == 0


@pytest.mark.parametrize(
    ("name", "metric", "share"),
    [
        ("tis", "truncated", 1 / 5),  # 3 of 1.25, 0.25, 3; 1.1, 1.1
        ("seed", "truncated", 3 / 5),
        ("tis_seq", "truncated", 0.0),
        ("icepop", "rejected", 1 / 5),
        ("mis_seq", "rejected", 0.0),
        ("seq_mask_tis", "rejected", 1.0),
    ],
)
def test_the_share_of_trained_tokens_that_is_truncated_or_rejected(name: str, metric: str, share: float):
    prox, behav = probabilities([0.5, 0.2, 0.06], [0.55, 0.33, 0.9]), probabilities([0.4, 0.8, 0.02], [0.5, 0.3, 0.1])
    values = weigh(name, prox, behav, [[1, 1, 1], [1, 1, 0]])[1]
    assert values[f"mismatch/{metric}_frac"] == pytest.approx(share)
    other = {"truncated": "rejected", "rejected": "truncated"}[metric]
    assert f"mismatch/{other}_frac" not in values


# -- properties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CORRECTIONS)
def test_weights_are_one_when_sampler_and_learner_agree(name: str):
    logp = torch.tensor([[-0.5, -3.0], [-9.0, -0.01]])
    weights, values = weigh(name, logp, logp.clone(), None, [-1.0, 1.0])
    assert torch.equal(weights, torch.ones(2, 2))
    assert values["mismatch/ess"] == 1 and values["mismatch/kl"] == values["mismatch/max_abs"] == 0
    assert values.get("mismatch/truncated_frac", 0) == values.get("mismatch/rejected_frac", 0) == 0


@pytest.mark.parametrize("absent", [math.nan, -9999.0, -math.inf])
@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_missing_sampler_logp_is_a_ratio_of_one_and_is_counted(name: str, absent: float):
    prox, behav = torch.tensor([[-1.0, -1.0, -1.0, -1.0]]), torch.tensor([[-0.7, absent, -1.5, absent]])
    agreeing = torch.tensor([[-0.7, -1.0, -1.5, -1.0]])
    mask = [[1, 1, 1, 0]]
    weights, values = weigh(name, prox, behav, mask, [-1.0])
    assert torch.equal(weights, weigh(name, prox, agreeing, mask, [-1.0])[0]) and weights[0, 3] == 0
    if name not in (*PER_COMPLETION, "seq_mask_tis", "binary_kl"):
        assert weights[0, 1] == 1
    assert values["mismatch/missing_logps"] == pytest.approx(1 / 3)
    assert values["mismatch/kl"] == pytest.approx(-0.1) and values["mismatch/max_abs"] == 0.5


@pytest.mark.parametrize("name", CORRECTIONS)
def test_weights_carry_no_gradient(name: str):
    logp, prox, behav = (torch.tensor([[-1.0, -2.0]], requires_grad=True) for _ in range(3))
    weights, _ = weigh(name, prox, behav, None, torch.tensor([-1.0], requires_grad=True), logp=logp)
    assert not weights.requires_grad


@pytest.mark.parametrize("name", CORRECTIONS)
def test_metrics_of_the_parts_reduce_to_those_of_the_whole(name: str):
    g = torch.Generator().manual_seed(1)
    prox, behav = -torch.rand(5, 4, generator=g), -torch.rand(5, 4, generator=g)
    advantages = torch.randn(5, generator=g)
    mask = torch.rand(5, 4, generator=g) < 0.7
    totals: dict = {}
    for rows in ([0, 1], [2], [], [3, 4]):
        part = importance_weights(name, prox[rows], prox[rows], behav[rows], advantages[rows], mask[rows])
        totals = accumulate(totals, part[1])
    assert finish(totals) == pytest.approx(weigh(name, prox, behav, mask, advantages)[1], rel=1e-5)


@pytest.mark.parametrize("distance", [1e2, 1e4, -1e2, -1e4])
@pytest.mark.parametrize("name", CORRECTIONS)
def test_far_away_policies_stay_finite_and_inside_the_bounds(name: str, distance: float):
    """-9998 and less would mean "no log-prob", so it is the learner that is far away."""
    behav = torch.full((2, 3), -1.0)
    weights, values = weigh(name, behav + distance, behav, None, [-1.0, 1.0])
    top = {"opsm": 1.0, "none": 1.0, "seed": 1.2, "binary_kl": math.exp(20)}.get(name) or CORRECTIONS[name].bounds[
        "high"
    ]
    assert (weights >= 0).all() and (weights <= top).all()
    assert all(math.isfinite(value) for value in values.values())


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOUNDED)
def test_a_bound_of_the_user_replaces_one_and_keeps_the_other(name: str):
    """Ratios of 1.5 and 0.2 at one token each."""
    prox, behav = probabilities([0.6], [0.1]), probabilities([0.4], [0.5])
    inside = [[1.5], [0.2]]
    close(weigh(name, prox, behav, bounds={"low": 0.1, "high": 1.6})[0], inside, torch.float64)
    above = weigh(name, prox, behav, bounds={"low": 0.1, "high": 1.4})[0]
    close(above, [[1.4 if name.startswith("tis") else 0.0], [0.2]], torch.float64)
    below = weigh(name, prox, behav, bounds={"low": 0.4, "high": 1.6})[0]
    close(below, [[1.5], [0.4 if name.startswith("tis") else 0.0]], torch.float64)
    one = weigh(name, prox, behav, bounds={"low": 0.4})[0]
    both = weigh(name, prox, behav, bounds={**CORRECTIONS[name].bounds, "low": 0.4})[0]
    assert torch.equal(one, both)


@pytest.mark.parametrize(
    ("name", "bounds", "message"),
    [
        ("seed", {"high": 2.0}, "is_high is 2.0, and is_correction seed takes is_eps"),
        ("tis", {"eps": 0.2}, "is_eps is 0.2, and is_correction tis takes is_low and is_high"),
        ("none", {"delta": 0.2}, "is_delta is 0.2, and is_correction none takes no bounds"),
        ("tis", {"low": 1.5}, "is_low is 1.5, expected from 0 to 1"),
        ("icepop", {"high": 0.9}, "is_high is 0.9, expected 1 or more"),
        ("icepop", {"high": math.nan}, "is_high is nan"),
        ("seed", {"eps": 0.0}, "is_eps is 0.0, expected above 0"),
        ("opsm", {"delta": -1.0}, "is_delta is -1.0, expected above 0"),
        ("icecream", {}, "is_correction is 'icecream', expected one of tis, tis_seq"),
    ],
)
def test_bounds_that_make_no_sense_are_refused_by_name(name: str, bounds: dict[str, float], message: str):
    logp = torch.zeros(1, 1)
    with pytest.raises(ValueError, match=message):
        weigh(name, logp, logp, bounds=bounds)


def test_the_settings_know_the_corrections_and_their_bounds():
    assert get_args(config.Correction) == tuple(CORRECTIONS)
    taken = {(f"is_{bound}", name) for name, row in CORRECTIONS.items() for bound in row.bounds}
    assert {(setting, name) for setting, names in BOUNDS_OF.items() for name in names} == taken
