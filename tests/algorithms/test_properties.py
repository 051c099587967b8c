"""What holds whatever the numbers are, for every preset: the fifteen properties of the algorithms, by number.

 1 masked positions  2 any split  3 padded is packed  4 the gradient at ratio 1  5 GSPO is GSPO-token  6 RLOO and the mean
 7 order of rows  8 equal rewards  9 what gets no gradient  10 far-away policies  11 dual clip  12 KL estimators
13 weights of 1  14 impossible combinations (test_presets)  15 golden cases (test_golden)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from postrl.algorithms import advantages, kl, losses
from postrl.algorithms.aggregate import Denoms, aggregate, count
from postrl.algorithms.algorithm import Algorithm
from postrl.algorithms.corrections import CORRECTIONS, importance_weights
from postrl.algorithms.objective import PolicyObjective, ValueObjective, denominators, with_advantages
from postrl.algorithms.presets import PRESETS
from postrl.algorithms.reduce import accumulate, finish
from postrl.algorithms.resolve import resolve
from postrl.types import Batch

from .cases import random_batch, rewards, rollout

POISON = (float("nan"), float("inf"), float("-inf"), 1000.0, -1000.0)
TENSORS = ("prox_BT", "behav_BT", "ref_BT", "values_BT")


def algorithm_of(name: str, **settings: Any) -> Algorithm:
    if "length_adaptive_alpha" in PRESETS[name].settings:  # its own is for completions of thousands of tokens
        settings = {"length_adaptive_alpha": 0.5, **settings}
    return resolve(name, max_completion_length=8, **settings)


def several_updates(name: str) -> dict[str, int]:
    return {} if PRESETS[name].one_update else {"minibatches": 2}


EVERY = [pytest.param(algorithm_of(name), id=name) for name in PRESETS]
EVERY += [
    pytest.param(algorithm_of(name, **several_updates(name), entropy_coef=0.01), id=f"{name}-2-updates-entropy")
    for name, row in PRESETS.items()
    if not row.one_update
]
EVERY += [
    pytest.param(algorithm_of("grpo", beta=0.1, mask_truncated_completions=True, overlong_buffer=0.5), id="grpo-kl"),
    pytest.param(algorithm_of("grpo", multi_objective_aggregation="normalize_then_sum"), id="normalize_then_sum"),
    pytest.param(algorithm_of("ppo", bootstrap_truncated=True, beta=0.1, gamma=0.9, gae_lambda=0.8), id="ppo-kl"),
    pytest.param(algorithm_of("grpo", proximal="sampler", is_correction="none"), id="grpo-sampler"),
]
every_preset = pytest.mark.parametrize("algorithm", EVERY)


def scored_batch(seed: int = 0) -> tuple[Tensor, Batch]:
    """(live log-probs, batch) with what any algorithm may need: eight ragged rows with gaps in three groups, one row
    unscored, one wholly masked, one cut at the token limit."""
    logp, batch = random_batch(seed, n=8, width=6)
    g = torch.Generator().manual_seed(seed + 100)
    lengths = [6, 3, 6, 2, 5, 6, 4, 1]
    mask_BT = batch.mask_BT & (torch.arange(6) < torch.tensor(lengths)[:, None])
    mask_BT[:, 0] |= torch.tensor([True, False, *[True] * 6])
    parts = torch.randint(0, 3, (8, 2), generator=g).double() / 2
    parts[6, 0] = torch.nan
    scores = parts.nansum(-1)
    scores[3] = torch.nan
    return logp, replace(
        batch,
        rollouts=[rollout(n, finish_reason="length" if i == 5 else "stop") for i, n in enumerate(lengths)],
        mask_BT=mask_BT,
        advantages=None,
        group_B=torch.tensor([4, 4, 4, 7, 7, 7, 2, 2]),
        rewards_B=scores,
        parts_BF=parts,
        greedy_B=rewards([0.5, 0.5, 0.5, 1.0, 1.0, 1.0, None, None]),
        values_BT=torch.rand(8, 6, generator=g, dtype=torch.float64),
        end_B=torch.tensor([0.0] * 5 + [0.7, 0.0, 0.0]),
        correct_B=torch.tensor([True, True, False, True, False, True, False, False]),
    )


def step(logp: Tensor, batch: Batch, algorithm: Algorithm, entropy: Tensor | None = None) -> tuple[Any, ...]:
    """(loss, gradient, critic's gradient, metrics) of a batch with advantages, in one piece."""
    return split_step(logp, batch, algorithm, [[list(range(len(batch)))]], entropy)


def split_step(
    logp: Tensor, batch: Batch, algorithm: Algorithm, ranks: list[list[list[int]]], entropy: Tensor | None = None
) -> tuple[Any, ...]:
    """The same where `ranks[r]` lists the rows of each micro-batch of rank r: added up over a rank, averaged over ranks."""
    denoms = denominators(batch, len(ranks))
    entropy = logp.abs() if entropy is None else entropy
    total, grads, pairs = torch.zeros(()), [torch.zeros_like(logp), torch.zeros_like(logp)], {}
    for rank in ranks:
        policy, critic = logp.clone().requires_grad_(), batch.values_BT.clone().requires_grad_()
        for rows in rank:
            piece = batch.rows(rows)
            width = piece.mask_BT.shape[1]
            loss, metrics = PolicyObjective(algorithm).loss(policy[rows, :width], entropy[rows, :width], piece, denoms)
            loss.backward()
            total = total + loss.detach() / len(ranks)
            pairs = accumulate(pairs, metrics)
            if "values" in algorithm.needs:
                loss, metrics = ValueObjective(algorithm).loss(critic[rows, :width], piece, denoms)
                loss.backward()
                pairs = accumulate(pairs, metrics)
        for grad, leaf in zip(grads, (policy, critic), strict=True):
            grad += 0 if leaf.grad is None else leaf.grad / len(ranks)
    return total, *grads, finish(pairs)


@every_preset
@pytest.mark.parametrize("poison", POISON, ids=str)
def test_property_1_poison_at_masked_positions_changes_nothing(algorithm: Algorithm, poison: float):
    """From rewards to gradients: log-probs, values, entropies, and the advantages and returns made of them."""
    logp, raw = scored_batch()
    batch = with_advantages(raw, algorithm)
    clean, off = step(logp, batch, algorithm), ~batch.mask_BT
    truncated = off & raw.mask_BT & ~raw.rewards_B.isnan()[:, None]  # counts in the statistics, and then is masked
    early = off & ~truncated
    dirty = replace(raw, **{name: getattr(raw, name).masked_fill(early, poison) for name in TENSORS})
    dirty = with_advantages(dirty, algorithm)
    assert torch.equal(dirty.advantages, batch.advantages) and dirty.metrics == batch.metrics
    late = {name: getattr(dirty, name).masked_fill(off, poison) for name in TENSORS}
    if dirty.advantages.dim() == 2:
        late["advantages"] = dirty.advantages.masked_fill(off, poison)
    if dirty.returns_BT is not None:
        late["returns_BT"] = dirty.returns_BT.masked_fill(off, poison)
    found = step(logp.masked_fill(off, poison), replace(dirty, **late), algorithm, logp.abs().masked_fill(off, poison))
    assert all(torch.equal(a, b) for a, b in zip(found[:3], clean[:3], strict=True)) and found[3] == clean[3]
    assert not found[1][off].any() and not found[2][off].any()


@every_preset
@given(data=st.data())
@settings(deadline=None, max_examples=10)
def test_property_2_any_split_into_micro_batches_and_ranks_gives_the_same_gradient(algorithm: Algorithm, data: Any):
    logp, raw = scored_batch(seed=data.draw(st.integers(0, 5)))
    batch = with_advantages(raw, algorithm)
    n_ranks, n_micro = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    ranks: list[list[list[int]]] = [[[] for _ in range(n_micro)] for _ in range(n_ranks)]
    for row in data.draw(st.permutations(range(len(batch)))):
        ranks[data.draw(st.integers(0, n_ranks - 1))][data.draw(st.integers(0, n_micro - 1))].append(row)
    same(split_step(logp, batch, algorithm, ranks), step(logp, batch, algorithm))


@every_preset
def test_property_2_empty_micro_batches_and_ranks_stay_in_step(algorithm: Algorithm):
    """A rank without rows, and a micro-batch without trainable tokens (row 1), have a gradient of 0."""
    logp, raw = scored_batch()
    batch = with_advantages(raw, algorithm)
    same(
        split_step(logp, batch, algorithm, [[[0, 2, 3, 4], []], [[], []], [[1], [5, 6, 7]]]),
        step(logp, batch, algorithm),
    )


@every_preset
def test_property_3_rows_alone_and_unpadded_give_what_the_padded_batch_gives(algorithm: Algorithm):
    logp, raw = scored_batch()
    batch = with_advantages(raw, algorithm)
    assert {batch.rows([row]).mask_BT.shape[1] for row in range(len(batch))} == {1, 2, 3, 4, 5, 6}
    same(split_step(logp, batch, algorithm, [[[row] for row in range(len(batch))]]), step(logp, batch, algorithm))


def same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    for a, b in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-6, atol=1e-10)
    assert found[3] == pytest.approx(expected[3], rel=1e-6, abs=1e-10)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("known", [True, False], ids=["prox", "no-prox"])
def test_property_4_at_ratio_1_every_loss_has_the_gradient_minus_the_advantage(name: str, known: bool):
    logp, batch = random_batch()
    a_BT = torch.randn(logp.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for more in ({}, several_updates(name), {"dual_clip": 3.0} if "dual_clip" in PRESETS[name].reads else {}):
        leaf, algorithm = logp.clone().requires_grad_(), algorithm_of(name, **more)
        l_BT, _ = algorithm.loss(leaf, logp if known else None, a_BT, batch.mask_BT, algorithm)
        l_BT.sum().backward()
        torch.testing.assert_close(leaf.grad, torch.where(batch.mask_BT, -a_BT, 0.0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("epsilon", [3e-4, 0.2])
def test_property_5_gspo_is_gspo_token_where_a_completion_has_one_advantage(epsilon: float):
    """Against the sequence's own formula: max(-A s, -A clip(s)), mean over sequences, s through its mean."""
    logp, batch = random_batch()
    mask, n = batch.mask_BT, batch.mask_BT.sum(-1)
    denoms, bounds = Denoms(*count(mask)), {"epsilon_low": epsilon, "epsilon_high": 4 / 3 * epsilon}
    token, sequence = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    l_BT, _ = losses.gspo(token, batch.prox_BT, batch.advantages, mask, **bounds)
    loss = aggregate(l_BT, mask, "seq_mean_token_mean", denoms)
    s_B = (torch.where(mask, sequence - batch.prox_BT, 0.0).sum(-1) / n.clamp(min=1)).exp()
    l_B = torch.maximum(-batch.advantages * s_B, -batch.advantages * s_B.clamp(1 - epsilon, 1 + 4 / 3 * epsilon))
    expected = l_B[n > 0].mean()
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    assert token.grad.any()
    torch.testing.assert_close(token.grad, sequence.grad, rtol=1e-12, atol=1e-15)


scored = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, 0.0, 0.1, 0.5, 1.0])), min_size=1, max_size=12)


@given(batch=scored)
@settings(deadline=None, max_examples=100)
def test_property_6_rloo_is_the_reward_less_the_mean_times_n_over_n_minus_1(batch: list[Any]):
    group, values = torch.tensor([g for g, _ in batch]), rewards([r for _, r in batch])
    found, pairs = advantages.rloo(values, group)
    centred, _ = advantages.grpo(values, group, scale="none")
    sizes = torch.tensor([sum(g == own and r is not None for g, r in batch) for own, _ in batch])
    torch.testing.assert_close(found, centred * sizes / (sizes - 1).clamp(min=1), rtol=1e-12, atol=1e-14)
    assert pairs == advantages.grpo(values, group)[1]


@every_preset
@given(data=st.data())
@settings(deadline=None, max_examples=10)
def test_property_7_the_order_of_the_rows_does_not_matter(algorithm: Algorithm, data: Any):
    _, raw = scored_batch()
    order = data.draw(st.permutations(range(len(raw))))
    plain, shuffled = with_advantages(raw, algorithm), with_advantages(raw.rows(list(order)), algorithm)
    torch.testing.assert_close(shuffled.advantages, plain.advantages[list(order)], rtol=1e-6, atol=1e-7)
    assert finish(shuffled.metrics) == pytest.approx(finish(plain.metrics), rel=1e-9)


@every_preset
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1e6, -2.0])
def test_property_8_identical_rewards_give_exactly_zero_advantage(algorithm: Algorithm, reward: float):
    """Where the critic knows them, the greedy completions earn them too, and nothing has left the reference."""
    logp, raw = scored_batch()
    algorithm = replace(algorithm, overlong_buffer=0.0)  # which makes them differ, by length
    same_B = torch.full_like(raw.rewards_B, reward)
    batch = replace(
        raw, rewards_B=same_B, greedy_B=same_B, values_BT=torch.full_like(logp, reward), ref_BT=raw.prox_BT,
        parts_BF=torch.stack([same_B - 1.0, torch.ones_like(same_B)], -1),
    )  # fmt: skip
    if algorithm.gamma < 1:  # a critic that discounts, then
        algorithm = replace(algorithm, gamma=1.0)
    batch = with_advantages(batch, replace(algorithm, bootstrap_truncated=False))
    assert torch.equal(batch.advantages, torch.zeros_like(batch.advantages))
    if not (algorithm.entropy_coef or algorithm.nll_coef or (algorithm.kl_placement == "loss" and algorithm.beta)):
        assert not step(logp, batch, algorithm)[1].any()


@every_preset
def test_property_9_no_gradient_reaches_advantages_prox_behav_ref_or_weights(algorithm: Algorithm):
    logp, raw = scored_batch()
    batch = with_advantages(raw, algorithm)
    names = [*TENSORS, "advantages", *(["returns_BT"] if batch.returns_BT is not None else [])]
    leaves = {name: getattr(batch, name).clone().requires_grad_() for name in names}
    live, values = logp.clone().requires_grad_(), batch.values_BT.clone().requires_grad_()
    batch, denoms = replace(batch, **leaves), denominators(batch, 1)
    PolicyObjective(algorithm).loss(live, logp.abs(), batch, denoms)[0].backward()
    assert live.grad.any()
    if "values" in algorithm.needs:
        ValueObjective(algorithm).loss(values, batch, denoms)[0].backward()
        assert values.grad.any()
    assert {name for name, leaf in leaves.items() if leaf.grad is not None} == set()


@every_preset
@pytest.mark.parametrize("field", ["prox_BT", "behav_BT", "ref_BT"])
@pytest.mark.parametrize("distance", [1e2, -1e2, 1e4, -1e4])
def test_property_10_policies_far_apart_stay_finite(algorithm: Algorithm, field: str, distance: float):
    logp, raw = scored_batch()
    batch = with_advantages(replace(raw, **{field: (logp + distance).float()}), algorithm)
    loss, grad, critic, values = step(logp.float(), batch, algorithm)
    assert all(
        torch.isfinite(x).all() for x in (batch.advantages, loss, grad, critic, *map(torch.tensor, values.values()))
    )


@given(x=st.floats(-5, 5), advantage=st.floats(0, 3))
@settings(deadline=None, max_examples=50)
def test_property_11_dual_clip_does_nothing_for_advantages_of_0_or_more(x: float, advantage: float):
    logp, on = torch.tensor([[x]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    arguments = (logp, torch.zeros_like(logp), torch.tensor([advantage]), on)
    plain, _ = losses.ppo_clip(*arguments, epsilon_low=0.2, epsilon_high=0.2)
    dual, _ = losses.ppo_clip(*arguments, epsilon_low=0.2, epsilon_high=0.2, dual_clip=1.5)
    assert torch.equal(plain, dual)


@given(seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=20)
def test_property_12_the_expected_gradients_of_the_kl_estimators(seed: int):
    """Summed over all tokens of a softmax: 0 for k1, that of KL(policy || ref) for k2, of KL(ref || policy) for k3, and for
    k3 times the ratio that of KL(policy || ref) again, the tokens being drawn from another policy."""
    g = torch.Generator().manual_seed(seed)
    logits, ref, old = (torch.randn(5, generator=g, dtype=torch.float64) for _ in range(3))
    ref, old, on = ref.log_softmax(-1), old.log_softmax(-1), torch.ones(1, 5, dtype=torch.bool)

    def gradient(of: Any) -> Tensor:
        leaf = logits.clone().requires_grad_()
        of(leaf.log_softmax(-1)).backward()
        return leaf.grad

    def expected(estimator: Any, prox: Tensor | None = None) -> Tensor:
        return gradient(
            lambda logp: (
                ((logp.detach() if prox is None else prox).exp())
                * estimator(logp[None], ref[None], on, None if prox is None else prox[None])[0]
            ).sum()
        )

    reverse = gradient(lambda logp: (logp.exp() * (logp - ref)).sum())
    forward = gradient(lambda logp: (ref.exp() * (ref - logp)).sum())
    for found, true in (
        (expected(kl.k1), torch.zeros(5, dtype=torch.float64)),
        (expected(kl.k2), reverse),
        (expected(kl.k3), forward),
        (expected(kl.k3_unbiased), reverse),
        (expected(kl.k3_unbiased, old), reverse),
    ):
        torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_property_13_weights_are_1_where_sampler_and_learner_agree(name: str):
    logp, batch = random_batch()
    weights, _ = importance_weights(name, logp, logp, logp, batch.advantages, batch.mask_BT)
    assert torch.equal(weights, batch.mask_BT.double())
