from __future__ import annotations

import math

import pytest
import torch

from postrl.algorithms.corrections import CORRECTIONS, none, tis
from postrl.algorithms.reduce import accumulate, finish

from .cases import CASES, both_precisions, close, matrix


@both_precisions
def test_golden_tis(dtype: torch.dtype):
    case = CASES["tis_token"]
    inputs, expected = case["inputs"], case["expected"]
    mask = torch.tensor(inputs["mask"], dtype=torch.bool)
    prox, behav = matrix(inputs["prox_logp"], dtype), matrix(inputs["behav_logp"], dtype)
    weights, metrics = tis(prox, behav, mask, **case["config"])
    close(weights, expected["weights"], dtype)
    assert finish(metrics)["mismatch/truncated_frac"] == pytest.approx(expected["clip_fraction"])


@pytest.mark.parametrize("name", CORRECTIONS)
def test_weights_are_one_when_sampler_and_learner_agree(name: str):
    logp = torch.tensor([[-0.5, -3.0], [-9.0, -0.01]])
    weights, metrics = CORRECTIONS[name](logp, logp.clone(), torch.ones(2, 2, dtype=torch.bool))
    assert torch.equal(weights, torch.ones(2, 2))
    values = finish(metrics)
    assert values["mismatch/ess"] == 1 and values["mismatch/kl"] == values["mismatch/max_abs"] == 0


@pytest.mark.parametrize("absent", [math.nan, -9999.0, -math.inf])
@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_missing_sampler_logp_weighs_one_and_is_counted(name: str, absent: float):
    prox, behav = torch.tensor([[-1.0, -1.0, -1.0, -1.0]]), torch.tensor([[-1.5, absent, -1.5, absent]])
    weights, metrics = CORRECTIONS[name](prox, behav, torch.tensor([[1, 1, 1, 0]], dtype=torch.bool))
    assert weights[0, 1] == 1 and weights[0, 3] == 0
    values = finish(metrics)
    assert values["mismatch/missing_logps"] == pytest.approx(1 / 3)
    assert values["mismatch/kl"] == values["mismatch/max_abs"] * -1 == -0.5


def test_metrics_by_hand_on_the_raw_ratio():
    """rho = 1.25, 0.25, 3; truncation at 2 does not change what is reported."""
    behav = torch.log(torch.tensor([[0.4, 0.8, 0.02]]))
    prox = torch.log(torch.tensor([[0.5, 0.2, 0.06]]))
    rho = [1.25, 0.25, 3.0]
    for correction in (tis, none):
        values = finish(correction(prox, behav, torch.ones(1, 3, dtype=torch.bool))[1])
        assert values["mismatch/kl"] == pytest.approx(-sum(math.log(r) for r in rho) / 3, rel=1e-5)
        assert values["mismatch/k3"] == pytest.approx(sum(r - 1 - math.log(r) for r in rho) / 3, rel=1e-5)
        assert values["mismatch/max_abs"] == pytest.approx(math.log(4), rel=1e-5)
        assert values["mismatch/ess"] == pytest.approx((sum(rho) / 3) ** 2 / (sum(r * r for r in rho) / 3), rel=1e-5)
        assert values["mismatch/missing_logps"] == 0


def test_metrics_of_the_parts_reduce_to_those_of_the_whole():
    g = torch.Generator().manual_seed(1)
    prox, behav = -torch.rand(5, 4, generator=g), -torch.rand(5, 4, generator=g)
    mask = torch.rand(5, 4, generator=g) < 0.7
    totals: dict = {}
    for rows in ([0, 1], [2], [], [3, 4]):
        totals = accumulate(totals, tis(prox[rows], behav[rows], mask[rows])[1])
    assert finish(totals) == pytest.approx(finish(tis(prox, behav, mask)[1]), rel=1e-5)


@pytest.mark.parametrize(("behav", "weight"), [(-5000.0, 2.0), (5000.0, 0.0)])
def test_far_away_policies_stay_finite_and_inside_the_bounds(behav: float, weight: float):
    weights, metrics = tis(torch.tensor([[-1.0]]), torch.tensor([[behav]]), torch.ones(1, 1, dtype=torch.bool))
    assert weights.item() == pytest.approx(weight, abs=1e-8)
    assert all(math.isfinite(value) for value in finish(metrics).values())
