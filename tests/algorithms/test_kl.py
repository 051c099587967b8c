from __future__ import annotations

import pytest
import torch

from postrl.algorithms.kl import ESTIMATORS, k1, k2, k3, k3_unbiased, loss_estimator

from .cases import CASES, both_precisions, close

ON = torch.ones(1, 1, dtype=torch.bool)


def value_and_grad(estimator, dtype: torch.dtype, *, with_prox: bool) -> tuple[float, float]:
    inputs = CASES["kl_estimators"]["inputs"]
    logp, ref, old = (torch.tensor([[inputs[name]]], dtype=dtype) for name in ("logp", "ref_logp", "old_logp"))
    logp.requires_grad_()
    value = estimator(logp, ref, ON, old if with_prox else None)
    value.sum().backward()
    return value.item(), logp.grad.item()


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
@both_precisions
def test_golden_values_and_gradients(name: str, dtype: torch.dtype):
    expected = CASES["kl_estimators"]["expected"]
    value, grad = value_and_grad(ESTIMATORS[name], dtype, with_prox=False)
    close(value, expected[name], dtype)
    close(grad, expected[f"grad_{name}"], dtype)


@both_precisions
def test_golden_k3_times_ratio(dtype: torch.dtype):
    expected = CASES["kl_estimators"]["expected"]
    value, grad = value_and_grad(k3_unbiased, dtype, with_prox=True)
    close(value, expected["k3_is_value"], dtype)
    close(grad, expected["k3_is_grad"], dtype)


def test_on_policy_k3_unbiased_is_k3_with_the_gradient_of_k2():
    value, grad = value_and_grad(k3_unbiased, torch.float64, with_prox=False)
    assert value == pytest.approx(value_and_grad(k3, torch.float64, with_prox=False)[0])
    assert grad == pytest.approx(value_and_grad(k2, torch.float64, with_prox=False)[1])


def expected_gradient(estimator, *, sampled_from_old: bool) -> torch.Tensor:
    """Sum over all three tokens of probability times gradient: what an infinite sample would give."""
    inputs = CASES["kl_gradient_enumeration"]["inputs"]
    logits = torch.tensor(inputs["logits"], dtype=torch.float64, requires_grad=True)
    ref, old = (torch.tensor(inputs[name], dtype=torch.float64) for name in ("ref_probs", "old_probs"))
    logp = logits.log_softmax(-1)
    weights = old if sampled_from_old else logp.detach().exp()
    kl_BT = estimator(logp[None], ref.log()[None], ON.expand(1, 3), old.log()[None] if sampled_from_old else None)
    (weights * kl_BT[0]).sum().backward()
    return logits.grad


@pytest.mark.parametrize(
    ("estimator", "sampled_from_old", "key"),
    [
        (k1, False, "E_on_grad_k1"),
        (k2, False, "E_on_grad_k2"),
        (k2, False, "grad_reverse_kl"),
        (k3, False, "E_on_grad_k3"),
        (k3, False, "grad_forward_kl"),
        (k3_unbiased, False, "grad_reverse_kl"),
        (k2, True, "E_old_grad_k2"),
        (k3_unbiased, True, "E_old_grad_r_k3"),
        (k3_unbiased, True, "grad_reverse_kl"),
    ],
)
def test_golden_enumeration(estimator, sampled_from_old: bool, key: str):
    expected = CASES["kl_gradient_enumeration"]["expected"][key]
    close(expected_gradient(estimator, sampled_from_old=sampled_from_old), expected, torch.float64)


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
