from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from postrl.algorithms.returns import (
    gae,
    last_token,
    length_adaptive_lambda,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    rewards_to_go,
    token_rewards,
    whiten,
)

from .cases import matrix, rewards


def masks(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows).bool()


def test_the_reward_stands_on_the_last_trainable_token():
    """After which a tool may have spoken; a completion without one gets nothing."""
    mask = masks([1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1])
    assert last_token(mask).int().tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    penalty = torch.full((3, 4), 0.5)
    assert token_rewards(rewards([1.0, 2.0, 3.0]), mask, penalty).tolist() == [
        [-0.5, 0.0, 0.5, 0.0],
        [0.0] * 4,
        [-0.5, -0.5, -0.5, 2.5],
    ]


def by_recursion(r: list[float], v: list[float], mask: list[bool], gamma: float, lam: float, end: float) -> list[float]:
    """delta_t = r_t + gamma V_next - V_t, A_t = delta_t + gamma lam A_next, from the end, masked tokens passed over."""
    advantages, v_next, a_next = [0.0] * len(r), end, 0.0
    for t in reversed(range(len(r))):
        if mask[t]:
            a_next = r[t] + gamma * v_next - v[t] + gamma * lam * a_next
            advantages[t], v_next = a_next, v[t]
    return advantages


unit = st.floats(0, 1)
tokens = st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.booleans()), max_size=20)


@given(token=tokens, gamma=unit, lam=unit, end=st.floats(-1, 1))
@settings(deadline=None, max_examples=200)
def test_gae_is_the_recursion_from_the_end_over_trainable_tokens(token, gamma, lam, end):
    r, v, mask = ([t[i] for t in token] for i in range(3))
    found = gae(
        matrix([r], torch.float64), matrix([v], torch.float64), torch.tensor([mask], dtype=torch.bool), gamma=gamma,
        lam=torch.tensor([lam], dtype=torch.float64), end_B=torch.tensor([end], dtype=torch.float64),
    )  # fmt: skip
    assert found[0].tolist() == pytest.approx(by_recursion(r, v, mask, gamma, lam, end), rel=1e-9, abs=1e-12)


def test_with_lambda_and_gamma_1_the_advantage_is_the_return_less_the_value_however_long_it_is():
    g = torch.Generator().manual_seed(0)
    r, v = (torch.rand(2, 5000, generator=g) for _ in range(2))
    mask = torch.rand(2, 5000, generator=g) < 0.7
    found = gae(r, v, mask, gamma=1.0, lam=1.0)
    later = torch.where(mask, r, 0.0).double().flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(found, torch.where(mask, later - v.double(), 0.0), rtol=1e-9, atol=1e-9)


def test_each_completion_may_have_a_lambda_of_its_own():
    r, v = matrix([[0.0, 1.0]] * 2, torch.float64), matrix([[0.3, 0.4]] * 2, torch.float64)
    found = gae(r, v, masks([1, 1], [1, 1]), gamma=1.0, lam=torch.tensor([0.0, 1.0]))
    assert found[0].tolist() == pytest.approx([0.1, 0.6]) and found[1].tolist() == pytest.approx([0.7, 0.6])


def test_short_completions_have_a_lambda_of_0_and_so_have_empty_ones():
    assert length_adaptive_lambda(torch.tensor([0, 5, 20, 40]), 0.05).tolist() == [0.0, 0.0, 0.0, 0.5]


def test_rewards_to_go_are_discounted_by_trainable_token():
    found = rewards_to_go(matrix([[1.0, 9.0, 4.0]], torch.float64), masks([1, 0, 1]), 0.5)
    assert found.tolist() == [[3.0, 0.0, 4.0]]


def test_whitened_numbers_have_mean_0_and_variance_1_over_trainable_tokens():
    g = torch.Generator().manual_seed(0)
    x, mask = 3 + 2 * torch.randn(4, 9, generator=g), torch.rand(4, 9, generator=g) < 0.6
    values = whiten(x.masked_fill(~mask, torch.nan), mask)[mask]
    assert float(values.mean()) == pytest.approx(0, abs=1e-12)
    assert float(values.var(correction=0)) == pytest.approx(1)


@pytest.mark.parametrize("value", [0.1, 0.0, 1e6])
@pytest.mark.parametrize("shape", [(3, 2), (1, 1), (0, 2), (0, 0)], ids=str)
def test_equal_numbers_are_whitened_to_exactly_0(value: float, shape: tuple[int, int]):
    x = torch.full(shape, value)
    assert torch.equal(whiten(x, torch.ones(shape, dtype=torch.bool)), torch.zeros(shape).double())
    assert torch.equal(whiten(x, torch.zeros(shape, dtype=torch.bool)), torch.zeros(shape).double())


def test_what_differs_by_rounding_alone_is_whitened_to_exactly_0():
    x = 0.1 + 1e-9 * torch.arange(6, dtype=torch.float64).view(2, 3)
    assert not whiten(x, torch.ones(2, 3, dtype=torch.bool)).any()


def test_reinforce_pp_credits_no_token_with_what_came_before_it():
    """A penalty on the first token lowers that token's advantage alone."""
    mask = masks([1, 1, 1], [1, 1, 1])
    penalised = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    found = reinforce_pp(token_rewards(rewards([1.0, 1.0]), mask, penalised), mask)
    assert found[0, 0] < 0 < found[0, 1] == found[0, 2] == found[1, 0]


def test_a_group_without_a_baseline_stays_out_of_the_whitening_and_at_0():
    """Groups 1 and 2 alone give the same with and without the lone completion of group 5."""
    mask = masks([1, 1], [1, 0], [1, 1], [1, 1], [1, 1])
    values, group = rewards([1.0, 0.0, 1.0, 1.0, 9.0]), torch.tensor([1, 1, 2, 2, 5])
    found, pairs = reinforce_pp_baseline(values, group, mask)
    without, _ = reinforce_pp_baseline(values[:4], group[:4], mask[:4])
    assert torch.equal(found[:4], without) and not found[4].any()
    assert pairs == {"group/zero_std_frac": (1.0, 2.0), "group/too_small": (1.0, 3.0)}


def test_without_a_greedy_completion_there_is_no_baseline_in_remax():
    mask = masks([1, 1], [1, 1], [1, 0])
    greedy = rewards([0.25, None, 1.0])
    r_BT = token_rewards(rewards([1.0, 1.0, 1.0]), mask)
    found, pairs = remax(r_BT, greedy, torch.tensor([0, 1, 2]), mask)
    assert found.tolist() == [[0.75, 0.75], [0.0, 0.0], [0.0, 0.0]]
    assert pairs == {"group/too_small": (1.0, 3.0)}
