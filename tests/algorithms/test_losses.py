from __future__ import annotations

import math

import pytest
import torch

from postrl.algorithms.aggregate import Denoms
from postrl.algorithms.losses import cispo, gspo, negative_log_likelihood, ppo_clip, reinforce, sapo
from postrl.algorithms.reduce import finish

EPS = {"epsilon_low": 0.2, "epsilon_high": 0.2}


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool)


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


# -- the other losses --------------------------------------------------------------------------------------------------


def ratios(*values: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(live, proximal) log-probs of one completion with these ratios."""
    prox = torch.full((1, len(values)), 0.1, dtype=torch.float64).log()
    return (prox + torch.tensor([values], dtype=torch.float64).log()).requires_grad_(), prox


def test_gspo_clips_completions_as_a_whole():
    """Ratios 1.5 and 1 / 1.5: the completion's is 1, and nothing is clipped, which for PPO both would be."""
    logp, prox = ratios(1.5, 1 / 1.5)
    l_BT, metrics = gspo(logp, prox, torch.tensor([1.0]), ones(1, 2), **EPS)
    l_BT.sum().backward()
    torch.testing.assert_close(logp.grad, torch.tensor([[-1.0, -1.0]]).double())
    assert finish(metrics)["policy/clip_frac"] == 0
    logp, prox = ratios(1.5, 1.0)
    l_BT, metrics = gspo(logp, prox, torch.tensor([1.0]), ones(1, 2), **EPS)
    l_BT.sum().backward()
    assert not logp.grad.any()
    values = finish(metrics)
    assert (values["policy/clip_frac"], values["policy/clip_high"], values["policy/clip_low"]) == (1.0, 1.0, 0.0)


def test_masked_tokens_do_not_enter_the_ratio_of_a_completion():
    logp, prox = ratios(1.5, 7.0)
    l_BT, _ = gspo(logp, prox, torch.tensor([-1.0]), torch.tensor([[1, 0]]).bool(), **EPS)
    torch.testing.assert_close(l_BT.detach(), torch.tensor([[1.5, 0.0]]).double())


def test_cispo_holds_weights_at_both_caps_and_lets_every_gradient_through():
    """Ratios 0.1, 1, 9 with caps 0.5 and 4: gradients -w A, whatever the sign of A."""
    for a in (1.0, -2.0):
        logp, prox = ratios(0.1, 1.0, 9.0)
        l_BT, metrics = cispo(logp, prox, torch.tensor([a]), ones(1, 3), cap_low=0.5, cap_high=4.0)
        l_BT.sum().backward()
        torch.testing.assert_close(logp.grad, -a * torch.tensor([[0.5, 1.0, 4.0]]).double())
        values = finish(metrics)
        assert [values[f"policy/clip_{side}"] for side in ("low", "high", "frac")] == pytest.approx(
            [1 / 3, 1 / 3, 2 / 3]
        )


def test_the_gate_of_sapo_closes_on_both_sides_and_sooner_for_bad_tokens():
    def gradient(r: float, a: float) -> float:
        logp, prox = ratios(r)
        sapo(logp, prox, torch.tensor([a]), ones(1, 1), temperature_pos=1.0, temperature_neg=1.05)[0].sum().backward()
        return float(logp.grad)

    for a in (1.0, -1.0):
        kept = [abs(gradient(r, a)) / r for r in (0.1, 0.5, 1.0, 2.0, 6.0)]
        assert kept[0] < kept[1] < kept[2] == pytest.approx(1) and kept[2] > kept[3] > kept[4] > 0
    assert abs(gradient(4.0, -1.0)) < abs(gradient(4.0, 1.0))


def test_reinforce_has_minus_the_advantage_as_value_and_as_gradient():
    logp = torch.tensor([[-0.5, -7.0]], requires_grad=True)
    l_BT, metrics = reinforce(logp, torch.tensor([3.0]), ones(1, 2))
    l_BT.sum().backward()
    assert l_BT.tolist() == [[-3.0, -3.0]] and logp.grad.tolist() == [[-3.0, -3.0]] and metrics == {}


def test_imitation_averages_over_the_tokens_of_right_completions_and_is_a_connected_zero_without_any():
    logp = torch.tensor([[-1.0, -2.0], [-3.0, torch.nan]], requires_grad=True)
    right = torch.tensor([[1, 1], [0, 0]]).bool()
    loss, (total, number) = negative_log_likelihood(logp, right, Denoms(3, 2, dp_size=2, n_correct_tokens=4))
    loss.backward()
    assert loss.item() == 3 * 2 / 4 and (float(total), int(number)) == (3.0, 2)
    assert logp.grad.tolist() == [[-0.5, -0.5], [0.0, 0.0]]
    none, _ = negative_log_likelihood(logp, torch.zeros(2, 2, dtype=torch.bool), Denoms(3, 2))
    none.backward()
    assert none.item() == 0
