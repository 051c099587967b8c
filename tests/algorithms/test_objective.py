from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from postrl.algorithms.aggregate import MODES, Denoms, count
from postrl.algorithms.corrections import CORRECTIONS, importance_weights
from postrl.algorithms.objective import PolicyObjective, with_advantages
from postrl.algorithms.reduce import accumulate, finish
from postrl.algorithms.resolve import resolve
from postrl.types import Batch

from .cases import CASES, close, make_batch, random_batch, rewards, rollout

POISON = (float("nan"), float("inf"), float("-inf"), 1000.0, -1000.0, -50.0)


def step(logp: torch.Tensor, batch: Batch, algorithm, entropy_BT=None):
    """(loss, gradient, metrics) of a whole batch in one piece."""
    leaf = logp.detach().clone().requires_grad_()
    loss, metrics = PolicyObjective(algorithm).loss(leaf, entropy_BT, batch, Denoms(*count(batch.mask_BT)))
    loss.backward()
    return loss.detach(), leaf.grad, finish(metrics)


# -- composition -------------------------------------------------------------------------------------------------------


def test_one_update_per_batch_follows_the_advantage_times_the_mismatch_weight():
    """prox = live: the gradient of a token is -A * min(pi / behav, 2) / tokens, here with rho = 1.5 and 4."""
    logp = torch.log(torch.tensor([[0.6, 0.8]]))
    batch = make_batch([[1, 1]], advantages=torch.tensor([3.0]), behav_BT=torch.log(torch.tensor([[0.4, 0.2]])))
    _, grad, _ = step(logp, batch, resolve("grpo"))
    torch.testing.assert_close(grad, torch.tensor([[-3 * 1.5 / 2, -3 * 2.0 / 2]]))


@pytest.mark.parametrize("name", CORRECTIONS)
def test_weights_multiply_the_clipped_loss_and_change_no_denominator(name: str):
    """Token by token, the gradient is that of the uncorrected loss times the weight, rejected tokens included."""
    logp, batch = random_batch()
    settings = {"dual_clip": 1.5, "minibatches": 2}
    plain = step(logp, batch, resolve("grpo", is_correction="none", **settings))[1]
    grad = step(logp, batch, resolve("grpo", is_correction=name, **settings))[1]
    weights, _ = importance_weights(
        name, logp, batch.prox_BT, batch.behav_BT, batch.advantages, batch.mask_BT, bounds={}
    )
    torch.testing.assert_close(grad, weights * plain, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_kl_is_not_weighted_by_the_correction(name: str):
    logp, batch = random_batch()
    batch.advantages = torch.zeros_like(batch.advantages)
    grads = [step(logp, batch, resolve("grpo", beta=0.1, is_correction=c))[1] for c in (name, "none")]
    assert grads[0].abs().max() > 0 and torch.equal(*grads)


def test_without_correction_the_mismatch_is_still_measured():
    logp, batch = random_batch()
    values = step(logp, batch, resolve("grpo", is_correction="none"))[2]
    assert values["mismatch/kl"] != 0
    assert not {"mismatch/truncated_frac", "mismatch/rejected_frac"} & values.keys()


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        ({"beta": 0.1}, "ref_BT", "no ref"),
        ({"minibatches": 2}, "prox_BT", "no prox"),
        ({}, "advantages", "no adv"),
    ],
)
def test_a_batch_that_lacks_what_the_algorithm_needs_is_refused(settings, field, message):
    logp, batch = random_batch()
    with pytest.raises(ValueError, match=message):
        step(logp, replace(batch, **{field: None}), resolve("grpo", **settings))


def test_half_precision_log_probs_are_refused():
    logp, batch = random_batch()
    with pytest.raises(ValueError, match=r"log-probs are torch.bfloat16, expected float32"):
        step(logp.bfloat16(), batch, resolve("grpo"))


def test_unscored_rollouts_leave_the_mask_and_truncated_ones_after_the_statistics():
    case = CASES["truncated_mask"]
    inputs, expected = case["inputs"], case["expected"]
    reasons = ["length" if cut else "stop" for cut in inputs["truncated"]]
    batch = make_batch(
        [*inputs["mask"], [1, 1]],
        rewards_B=rewards([*inputs["rewards"], None]),
        rollouts=[rollout(2, finish_reason=reason) for reason in [*reasons, "stop"]],
    )
    filtered = with_advantages(batch, resolve("grpo", mask_truncated_completions=True))
    close(filtered.advantages, [*expected["advantages"], 0.0], torch.float32)
    assert filtered.mask_BT.int().tolist() == [*expected["mask_after"], [0, 0]]
    assert count(filtered.mask_BT) == (expected["token_denominator"], expected["seq_denominator"])
    assert filtered.metrics["group/too_small"] == (0.0, 1.0)
    kept = with_advantages(batch, resolve("grpo"))
    assert kept.mask_BT.int().tolist() == [*inputs["mask"], [0, 0]]


# -- properties --------------------------------------------------------------------------------------------------------

BOUNDS = {
    "seq_mask_tis": {"is_low": 0.8, "is_high": 1.3}, "mis_seq": {"is_low": 0.3}, "binary_kl": {"is_delta": 0.1},
}  # fmt: skip
"""Bounds that keep some completions of `random_batch` and reject others."""
ALGORITHMS = [
    pytest.param(resolve("grpo"), id="grpo"),
    *[
        pytest.param(
            resolve("grpo", beta=0.1, kl_estimator=kl, dual_clip=3.0, loss_aggregation=mode, max_completion_length=7),
            id=f"{mode}-{kl}",
        )
        for mode, kl in zip(MODES, ("k3_unbiased", "k3_biased", "k2", "k3_unbiased"), strict=True)
    ],
    *[
        pytest.param(resolve("grpo", is_correction=name, **BOUNDS.get(name, {})), id=name)
        for name in CORRECTIONS
        if name != "tis"
    ],
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("poison", POISON, ids=str)
def test_what_stands_at_masked_positions_changes_nothing(algorithm, poison: float):
    logp, batch = random_batch()
    entropy = logp.abs()
    clean = step(logp, batch, algorithm, entropy_BT=entropy)
    off = ~batch.mask_BT
    for name in ("logp", "prox_BT", "behav_BT", "ref_BT", "entropy", "all"):
        dirty = {
            n: getattr(batch, n).masked_fill(off, poison)
            for n in ("prox_BT", "behav_BT", "ref_BT")
            if name in (n, "all")
        }
        loss, grad, values = step(
            logp.masked_fill(off, poison) if name in ("logp", "all") else logp,
            replace(batch, **dirty),
            algorithm,
            entropy_BT=entropy.masked_fill(off, poison) if name in ("entropy", "all") else entropy,
        )
        assert torch.equal(loss, clean[0]) and torch.equal(grad, clean[1]) and values == clean[2], name
    assert torch.equal(clean[1][off], torch.zeros_like(clean[1][off]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_wholly_masked_row_may_have_any_advantage(algorithm):
    logp, batch = random_batch()
    clean = step(logp, batch, algorithm)
    batch.advantages = batch.advantages.clone()
    batch.advantages[1] = torch.nan
    dirty = step(logp, batch, algorithm)
    assert torch.equal(dirty[0], clean[0]) and torch.equal(dirty[1], clean[1]) and dirty[2] == clean[2]


def split_step(logp: torch.Tensor, batch: Batch, algorithm, ranks: list[list[list[int]]]):
    """(gradient, metrics) when `ranks[r]` lists the row indices of each micro-batch of rank r."""
    denoms = Denoms(*count(batch.mask_BT), dp_size=len(ranks))
    grad, totals = torch.zeros_like(logp), {}
    for micro_batches in ranks:
        leaf = logp.clone().requires_grad_()
        for rows in micro_batches:
            piece = batch.rows(rows)
            loss, metrics = PolicyObjective(algorithm).loss(leaf[rows, : piece.mask_BT.shape[1]], None, piece, denoms)
            loss.backward()
            totals = accumulate(totals, metrics)
        grad += leaf.grad / len(ranks)
    return grad, finish(totals)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_any_split_into_micro_batches_and_ranks_gives_the_same_gradient_and_metrics(algorithm, data):
    logp, batch = random_batch(seed=data.draw(st.integers(0, 5)))
    n_ranks, n_micro = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    ranks: list[list[list[int]]] = [[[] for _ in range(n_micro)] for _ in range(n_ranks)]
    for row in data.draw(st.permutations(range(len(batch)))):
        ranks[data.draw(st.integers(0, n_ranks - 1))][data.draw(st.integers(0, n_micro - 1))].append(row)
    _, whole_grad, whole_values = step(logp, batch, algorithm)
    grad, values = split_step(logp, batch, algorithm, ranks)
    torch.testing.assert_close(grad, whole_grad, rtol=1e-6, atol=1e-12)
    assert values == pytest.approx(whole_values, rel=1e-6)


def test_micro_batches_without_rows_or_without_trainable_tokens_stay_in_step():
    logp, batch = random_batch()
    algorithm = resolve("grpo", beta=0.1)
    _, whole_grad, whole_values = step(logp, batch, algorithm)
    grad, values = split_step(logp, batch, algorithm, [[[0, 2, 3, 4, 5], []], [[1], []]])
    torch.testing.assert_close(grad, whole_grad, rtol=1e-6, atol=1e-12)
    assert values == pytest.approx(whole_values, rel=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_loss_metric_is_the_loss_of_the_step(algorithm):
    logp, batch = random_batch()
    loss, _, values = step(logp, batch, algorithm)
    assert values["policy/loss"] == pytest.approx(float(loss), rel=1e-9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_gradient_reaches_anything_but_the_live_policy(algorithm):
    logp, batch = random_batch()
    fields = ("advantages", "prox_BT", "behav_BT", "ref_BT")
    leaves = {name: getattr(batch, name).clone().requires_grad_() for name in fields}
    entropy = logp.abs().requires_grad_()
    _, grad, _ = step(logp, replace(batch, **leaves), algorithm, entropy_BT=entropy)
    assert grad.abs().max() > 0
    assert entropy.grad is None and all(leaf.grad is None for leaf in leaves.values())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("field", ["prox_BT", "behav_BT", "ref_BT"])
@pytest.mark.parametrize("distance", [1e2, -1e2, 1e4, -1e4])
def test_policies_far_apart_stay_finite(algorithm, field: str, distance: float):
    logp, batch = random_batch()
    loss, grad, values = step(logp.float(), replace(batch, **{field: (logp + distance).float()}), algorithm)
    assert torch.isfinite(loss) and torch.isfinite(grad).all()
    assert all(torch.isfinite(torch.tensor(value)) for value in values.values())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_padding_on_the_right_changes_nothing(algorithm):
    logp, batch = random_batch()
    wide = torch.nn.functional.pad

    def pad(x: torch.Tensor) -> torch.Tensor:
        return wide(x, (0, 3), value=torch.nan)

    padded = replace(
        batch,
        mask_BT=wide(batch.mask_BT, (0, 3)),
        behav_BT=pad(batch.behav_BT),
        prox_BT=pad(batch.prox_BT),
        ref_BT=pad(batch.ref_BT),
    )
    _, grad, values = step(logp, batch, algorithm)
    _, padded_grad, padded_values = step(pad(logp), padded, algorithm)
    torch.testing.assert_close(padded_grad[:, :-3], grad, rtol=1e-12, atol=0)
    assert padded_values == pytest.approx(values, rel=1e-12)


def test_a_group_of_equal_rewards_moves_nothing():
    logp, batch = random_batch()
    batch.rewards_B = torch.full((len(batch),), 0.1, dtype=torch.float64)
    _, grad, values = step(logp, with_advantages(batch, resolve("grpo")), resolve("grpo"))
    assert torch.equal(grad, torch.zeros_like(grad)) and values["policy/loss"] == 0
