from __future__ import annotations

import math

import pytest
import torch

from postrl.algorithms.aggregate import Denoms, aggregate, count
from postrl.algorithms.losses import ppo_clip
from postrl.algorithms.reduce import finish

from .cases import CASES, both_precisions, close, matrix

EPS = {"epsilon_low": 0.2, "epsilon_high": 0.2}


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool)


@pytest.mark.parametrize(
    "case_id", ["ppo_clip_token_mean", "ppo_clip_unclipped_side", "dual_clip", "extreme_log_ratio"]
)
@both_precisions
def test_golden(case_id: str, dtype: torch.dtype):
    case = CASES[case_id]
    inputs, config, expected = case["inputs"], case["config"], case["expected"]
    logp = matrix(inputs["logp"], dtype, grad=True)
    mask = torch.tensor(inputs["mask"], dtype=torch.bool)
    l_BT, metrics = ppo_clip(
        logp,
        matrix(inputs["old_logp"], dtype),
        matrix(inputs["advantages"], dtype),
        mask,
        epsilon_low=config["eps_low"],
        epsilon_high=config["eps_high"],
        dual_clip=config.get("dual_clip_c"),
    )
    loss = aggregate(l_BT, mask, config["agg"], Denoms(*count(mask)))
    loss.backward()
    close(l_BT.detach(), expected["per_token_loss"], dtype)
    close(loss.detach(), expected["loss"], dtype)
    close(logp.grad, expected["grad_logp"], dtype)
    if "clip_fraction" in expected:
        assert finish(metrics)["policy/clip_frac"] == pytest.approx(expected["clip_fraction"])


def test_upper_and_lower_bounds_are_separate():
    """The DAPO golden case: 1 - 0.2 below, 1 + 0.28 above."""
    case = CASES["dapo_clip_higher_token_loss"]
    mask = torch.tensor(case["inputs"]["mask"], dtype=torch.bool)
    logp = matrix(case["inputs"]["logp"], torch.float64, grad=True)
    advantages = matrix(case["inputs"]["advantages"], torch.float64)
    old = matrix(case["inputs"]["old_logp"], torch.float64)
    l_BT, _ = ppo_clip(logp, old, advantages, mask, epsilon_low=0.2, epsilon_high=0.28)
    loss = aggregate(l_BT, mask, "token_mean", Denoms(*count(mask)))
    loss.backward()
    close(loss.detach(), case["expected"]["loss"], torch.float64)
    close(logp.grad, case["expected"]["grad_logp"], torch.float64)


def test_without_prox_the_ratio_is_one_and_the_gradient_is_minus_the_advantage():
    logp = torch.tensor([[-0.5, -1.5], [-3.0, -0.1]], requires_grad=True)
    l_BT, metrics = ppo_clip(logp, None, torch.tensor([2.0, -3.0]), ones(2, 2), **EPS)
    l_BT.sum().backward()
    assert torch.equal(l_BT.detach(), torch.tensor([[-2.0, -2.0], [3.0, 3.0]]))
    assert torch.equal(logp.grad, torch.tensor([[-2.0, -2.0], [3.0, 3.0]]))
    assert finish(metrics) == {f"policy/{name}": 0.0 for name in ("clip_frac", "clip_low", "clip_high", "kl_prox")}


def test_dual_clip_does_nothing_for_good_tokens():
    logp, prox = torch.tensor([[0.0, -4.0, -0.3]]), torch.tensor([[-4.0, 0.0, -0.5]])
    plain, _ = ppo_clip(logp, prox, torch.tensor([1.0]), ones(1, 3), **EPS)
    dual, _ = ppo_clip(logp, prox, torch.tensor([1.0]), ones(1, 3), **EPS, dual_clip=3.0)
    assert torch.equal(plain, dual)


def test_tokens_at_the_ceiling_of_the_dual_clip_are_counted_as_clipped():
    """Ratios 4, 4 with advantages -, +: the first is held at 3, the second at 1.2."""
    metrics = ppo_clip(torch.tensor([[0.8, 0.8]]).log(), torch.tensor([[0.2, 0.2]]).log(), torch.tensor([[-1.0, 1.0]]),
                       ones(1, 2), **EPS, dual_clip=3.0)[1]  # fmt: skip
    values = finish(metrics)
    assert (values["policy/clip_dual"], values["policy/clip_high"], values["policy/clip_frac"]) == (0.5, 0.5, 1.0)


def test_clip_metrics_count_only_tokens_that_lost_their_gradient():
    """Ratios 1.5, 1.5, 0.5, 0.5 with advantages +, -, +, -: the first and the last are clipped."""
    prox = torch.log(torch.tensor([[0.4, 0.4, 0.8, 0.8, 0.5]]))
    logp = torch.log(torch.tensor([[0.6, 0.6, 0.4, 0.4, 0.5]])).requires_grad_()
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0]])
    mask = torch.tensor([[1, 1, 1, 1, 0]], dtype=torch.bool)
    l_BT, metrics = ppo_clip(logp, prox, advantages, mask, **EPS)
    l_BT.sum().backward()
    assert (logp.grad == 0).tolist() == [[True, False, False, True, True]]
    values = finish(metrics)
    assert (values["policy/clip_low"], values["policy/clip_high"], values["policy/clip_frac"]) == (0.25, 0.25, 0.5)
    assert values["policy/kl_prox"] == pytest.approx(-(2 * math.log(1.5) + 2 * math.log(0.5)) / 4, rel=1e-5)


@pytest.mark.parametrize("distance", [1e2, 1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_far_away_policies_stay_finite(distance: float, advantage: float):
    logp = torch.tensor([[-1.0, -1.0 - distance]], requires_grad=True)
    prox = torch.tensor([[-1.0 - distance, -1.0]])
    l_BT, _ = ppo_clip(logp, prox, torch.tensor([advantage]), ones(1, 2), **EPS)
    l_BT.sum().backward()
    assert torch.isfinite(l_BT).all() and torch.equal(logp.grad, torch.zeros(1, 2))


def test_no_gradient_reaches_the_proximal_policy_or_the_advantages():
    logp, prox, advantages = (torch.tensor([[x]], requires_grad=True) for x in (-1.0, -1.1, 2.0))
    ppo_clip(logp, prox, advantages, ones(1, 1), **EPS)[0].sum().backward()
    assert logp.grad is not None and prox.grad is None and advantages.grad is None


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_advantages_per_token_may_hold_anything_where_masked(poison: float):
    logp, prox = torch.tensor([[-1.0, -2.0]], requires_grad=True), torch.tensor([[-1.1, -2.1]])
    mask = torch.tensor([[1, 0]], dtype=torch.bool)
    l_BT, _ = ppo_clip(logp, prox, torch.tensor([[1.0, poison]]), mask, **EPS, dual_clip=3.0)
    l_BT.sum().backward()
    assert l_BT[0, 1] == 0 and logp.grad[0, 1] == 0 and torch.isfinite(logp.grad).all()
