from __future__ import annotations

import pytest
import torch

from postrl.algorithms.kl import ESTIMATORS, k2, k3, k3_unbiased, loss_estimator

from .cases import CASES

ON = torch.ones(1, 1, dtype=torch.bool)


def value_and_grad(estimator, dtype: torch.dtype, *, with_prox: bool) -> tuple[float, float]:
    inputs = CASES["kl_estimators"]["inputs"]
    logp, ref, old = (torch.tensor([[inputs[name]]], dtype=dtype) for name in ("logp", "ref_logp", "old_logp"))
    logp.requires_grad_()
    value = estimator(logp, ref, ON, old if with_prox else None)
    value.sum().backward()
    return value.item(), logp.grad.item()


def test_on_policy_k3_unbiased_is_k3_with_the_gradient_of_k2():
    value, grad = value_and_grad(k3_unbiased, torch.float64, with_prox=False)
    assert value == pytest.approx(value_and_grad(k3, torch.float64, with_prox=False)[0])
    assert grad == pytest.approx(value_and_grad(k2, torch.float64, with_prox=False)[1])


def test_k1_is_refused_as_a_loss_and_told_why():
    with pytest.raises(ValueError, match=r"k1 cannot be the KL term.*averages to 0.*use k3_unbiased"):
        loss_estimator("k1")


def test_an_unknown_estimator_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"kl_estimator is 'k4', expected one of k1, k2, k3_biased, k3_unbiased"):
        loss_estimator("k4")


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("distance", [1e4, -1e4])
def test_far_away_policies_stay_finite(name: str, distance: float):
    logp = torch.tensor([[-1.0]], requires_grad=True)
    value = ESTIMATORS[name](logp, logp.detach() + distance, ON, logp.detach() - distance)
    value.sum().backward()
    assert torch.isfinite(value).all() and torch.isfinite(logp.grad).all()
