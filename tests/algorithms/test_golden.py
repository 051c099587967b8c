"""Every golden case, in both precisions: `CHECKS` says what each is held against, and a case without a check fails.

The cases were computed with plain Python floats. What stands at their masked positions overflows on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from postrl.algorithms import advantages, filters, kl, returns, value
from postrl.algorithms.aggregate import Denoms, aggregate, count, totals
from postrl.algorithms.algorithm import Algorithm
from postrl.algorithms.corrections import importance_weights
from postrl.algorithms.kl import ESTIMATORS
from postrl.algorithms.objective import PolicyObjective, denominators, with_advantages
from postrl.algorithms.reduce import finish
from postrl.algorithms.resolve import resolve
from postrl.types import Batch, Group, Prompt, VersionSpan

from .cases import CASES, both_precisions, close, make_batch, matrix, rewards, rollout

Case = dict[str, Any]
Check = Callable[[Case, torch.dtype], None]


@pytest.mark.parametrize("case_id", CASES)
@both_precisions
def test_golden_case(case_id: str, dtype: torch.dtype):
    assert case_id in CHECKS, f"nothing claims the golden case {case_id}"
    CHECKS[case_id](CASES[case_id], dtype)


def test_there_are_55_golden_cases():
    assert len(CASES) == 55 and CHECKS.keys() == CASES.keys()


def mask_of(case: Case, like: Any = None) -> Tensor:
    rows = case["inputs"].get("mask")
    return torch.ones(torch.tensor(like).shape, dtype=torch.bool) if rows is None else torch.tensor(rows).bool()


def masked_by(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


# -- advantages --------------------------------------------------------------------------------------------------------


def group_advantages(scale: str) -> Check:
    def check(case: Case, dtype: torch.dtype) -> None:
        inputs, config, expected = case["inputs"], case["config"], case["expected"]
        settings = {name: config[name] for name in ("eps", "ddof") if name in config}
        group = torch.tensor(inputs["group"])
        found, pairs = advantages.grpo(rewards(inputs["rewards"]).to(dtype), group, scale=scale, **settings)
        close(found, expected["advantages"], dtype)
        if "valid_group" in expected:
            valid = [bool((found[group == g] != 0).any()) for g in group.unique()]
            assert valid == expected["valid_group"]
            assert pairs == {"group/zero_std_frac": (1.0, 2.0), "group/too_small": (1.0, 3.0)}

    return check


def rloo_advantages(case: Case, dtype: torch.dtype) -> None:
    inputs = case["inputs"]
    found, _ = advantages.rloo(rewards(inputs["rewards"]).to(dtype), torch.tensor(inputs["group"]))
    close(found, case["expected"]["advantages"], dtype)


def rloo_with_kl(case: Case, dtype: torch.dtype) -> None:
    """The penalty of each completion, here on two tokens, is taken off before the baseline."""
    inputs = case["inputs"]
    half = case["config"]["beta"] * torch.tensor(inputs["kl_sum"], dtype=dtype)[:, None].expand(-1, 2) / 2
    batch = make_batch([[1, 1]] * 3, rewards_B=rewards(inputs["rewards"]), kl_BT=half)
    algorithm = resolve("rloo")
    close(algorithm.advantage(batch, algorithm)[0], case["expected"]["advantages"], dtype)


def opo_advantages(case: Case, dtype: torch.dtype) -> None:
    inputs, expected = case["inputs"], case["expected"]
    scores = rewards(inputs["rewards"]).to(dtype)
    found, _ = advantages.opo(scores, torch.tensor(inputs["group"]), torch.tensor(inputs["lengths"]))
    close(found, expected["advantages"], dtype)
    close(scores - found, [expected["baseline"]] * 3, dtype)


def remax_advantages(case: Case, dtype: torch.dtype) -> None:
    inputs = case["inputs"]
    greedy = torch.tensor(inputs["greedy_reward"], dtype=dtype)
    token_rewards = matrix(inputs["token_rewards"], dtype)
    found, _ = returns.remax(token_rewards, greedy, torch.tensor([0, 1]), mask_of(case))
    close(found, case["expected"]["advantages"], dtype)


def flash_advantages(case: Case, dtype: torch.dtype) -> None:
    close(advantages.batch_mean(rewards(case["inputs"]["rewards"]).to(dtype))[0], case["expected"]["advantages"], dtype)


def reinforce_pp_advantages(case: Case, dtype: torch.dtype) -> None:
    inputs, config, expected, mask = case["inputs"], case["config"], case["expected"], mask_of(case)
    penalty = config["beta"] * matrix(inputs["kl_k1"], dtype)
    r_BT = returns.token_rewards(rewards(inputs["rewards"]).to(dtype), mask, penalty)
    close(r_BT, expected["token_rewards"], dtype)
    close(returns.rewards_to_go(r_BT, mask, config["gamma"]), expected["returns"], dtype)
    close(returns.reinforce_pp(r_BT, mask, gamma=config["gamma"]), expected["advantages_population"], dtype)


def reinforce_pp_baseline_advantages(case: Case, dtype: torch.dtype) -> None:
    inputs, mask = case["inputs"], masked_by(case["inputs"]["lengths"])
    scores = rewards(inputs["rewards"]).to(dtype)
    found, _ = returns.reinforce_pp_baseline(scores, torch.tensor(inputs["group"]), mask)
    close(found[:, 0], case["expected"]["advantage_per_seq_population"], dtype)
    assert torch.equal(found[:, 1], torch.where(mask[:, 1], found[:, 0], 0.0))


def gae_advantages(case: Case, dtype: torch.dtype) -> None:
    inputs, config, expected, mask = case["inputs"], case["config"], case["expected"], mask_of(case)
    r_BT, values = matrix(inputs["rewards"], dtype), matrix(inputs["values"], dtype)
    end = torch.tensor(inputs["bootstrap"], dtype=dtype) if "bootstrap" in inputs else None
    lam = config.get("lam")
    if lam is None:
        lam = returns.length_adaptive_lambda(mask.sum(-1), config["alpha"])
        close(lam, expected["lam_policy"], dtype)

    def estimate(lam: float | Tensor) -> Tensor:
        return returns.gae(r_BT, values, mask, gamma=config["gamma"], lam=lam, end_B=end)

    close(estimate(lam), expected["advantages"], dtype)
    critic = estimate(config.get("lam_critic", lam))
    close(torch.where(mask, critic + values, 0.0), expected["returns"], dtype)


def adaptive_lambdas(case: Case, dtype: torch.dtype) -> None:
    lengths = torch.tensor(case["inputs"]["lengths"], dtype=dtype)
    close(returns.length_adaptive_lambda(lengths, case["config"]["alpha"]), case["expected"]["lam_policy"], dtype)


def whitening(case: Case, dtype: torch.dtype) -> None:
    close(returns.whiten(matrix(case["inputs"]["values"], dtype), mask_of(case)), case["expected"]["whitened"], dtype)


def kl_in_reward(case: Case, dtype: torch.dtype) -> None:
    inputs, expected, mask = case["inputs"], case["expected"], mask_of(case)
    distance = kl.k1(matrix(inputs["old_logp"], dtype), matrix(inputs["ref_logp"], dtype), mask)
    r_BT = returns.token_rewards(rewards(inputs["rewards"]), mask, case["config"]["beta"] * distance)
    close(r_BT, expected["token_rewards"], dtype)
    close(returns.rewards_to_go(r_BT, mask), expected["returns_gamma1"], dtype)


# -- policy losses -----------------------------------------------------------------------------------------------------


def batch_of(case: Case, algorithm: Algorithm, dtype: torch.dtype) -> Batch:
    """The case's inputs, with the advantages that the algorithm makes of its rewards where it gives none."""
    inputs = case["inputs"]
    tensors = {
        field: matrix(inputs[name], dtype)
        for name, field in {
            "old_logp": "prox_BT",
            "prox_logp": "prox_BT",
            "ref_logp": "ref_BT",
            "behav_logp": "behav_BT",
            "rollout_logp": "behav_BT",
        }.items()
        if name in inputs
    }
    if "correct" in inputs:
        tensors["correct_B"] = torch.tensor(inputs["correct"])
    if "greedy_reward" in inputs:
        tensors["greedy_B"] = torch.tensor(inputs["greedy_reward"], dtype=torch.float64)
    if "rewards" in inputs:
        tensors["rewards_B"] = rewards(inputs["rewards"])
    mask = mask_of(case, inputs["logp"])
    groups = torch.arange(len(mask)) if algorithm.name == "remax" else torch.zeros(len(mask), dtype=torch.int64)
    batch = make_batch(mask.int().tolist(), group_B=groups, **tensors)
    if "advantages" in inputs:
        batch.advantages = torch.tensor(inputs["advantages"], dtype=dtype)
        return batch
    made = algorithm.advantage(batch, algorithm)[0]
    kept = with_advantages(batch, algorithm).advantages  # the same in float32
    for found, precision in ((made, dtype), (kept, torch.float32)):
        close(found if found.dim() == 1 else found[:, 0], case["expected"]["advantages"], precision)
    batch.advantages = made.to(dtype)
    return batch


def policy_loss(preset: str, **settings: Any) -> Check:
    def check(case: Case, dtype: torch.dtype) -> None:
        expected, algorithm = case["expected"], resolve(preset, **settings)
        batch, logp = batch_of(case, algorithm, dtype), matrix(case["inputs"]["logp"], dtype, grad=True)
        loss, pairs = PolicyObjective(algorithm).loss(logp, None, batch, denominators(batch, 1))
        loss.backward()
        close(logp.grad, expected["grad_logp"], dtype)
        assert logp.grad.dtype == dtype
        metrics = finish(pairs)
        if algorithm.preset.loss == "reinforce" and preset != "flash_reinforce":
            minus_a_logp = -batch.advantages.reshape(len(logp), -1) * logp  # same gradient, another value
            mode, denoms = algorithm.loss_aggregation, Denoms(*count(batch.mask_BT))
            close(aggregate(minus_a_logp, batch.mask_BT, mode, denoms).detach(), expected["loss"], dtype)
        else:
            close(loss.detach(), expected["loss"], dtype)
        l_BT, _ = algorithm.loss(logp, batch.prox_BT, batch.advantages, batch.mask_BT, algorithm)
        if "per_token_loss" in expected:
            close(l_BT.detach(), expected["per_token_loss"], dtype)
        if "clip_fraction" in expected:
            assert metrics["policy/clip_frac"] == pytest.approx(expected["clip_fraction"])
        if "kl_mean" in expected:
            assert metrics["policy/kl_ref"] == pytest.approx(expected["kl_mean"], rel=1e-5)
        if "nll" in expected:
            assert metrics["policy/nll"] == pytest.approx(expected["nll"], rel=1e-5)
        if "weights" in expected:
            close(weights_of(batch, logp, algorithm, l_BT.detach()), expected["weights"], dtype)

    return check


def weights_of(batch: Batch, logp: Tensor, algorithm: Algorithm, l_BT: Tensor) -> Tensor:
    """Those of the correction; of CISPO, the weight inside its loss, -w A logp."""
    if algorithm.name == "cispo":
        return -l_BT / (batch.advantages * logp.detach())
    prox = logp.detach() if batch.prox_BT is None else batch.prox_BT
    arguments = (algorithm.is_correction, logp, prox, batch.behav_BT, batch.advantages, batch.mask_BT)
    return importance_weights(*arguments, bounds=algorithm.bounds)[0]


ALONE: dict[str, Any] = {"is_correction": "none", "minibatches": 2}
"""No sampler in the case, and a proximal policy that is not the live one."""
KL = {**ALONE, "beta": 0.04, "loss_aggregation": "seq_mean_token_mean"}


# -- critic, KL, weights, filters, aggregation, entropy ----------------------------------------------------------------


def value_loss(case: Case, dtype: torch.dtype) -> None:
    inputs, expected, mask = case["inputs"], case["expected"], mask_of(case)
    values, goal = matrix(inputs["values"], dtype, grad=True), matrix(inputs["returns"], dtype)
    old = matrix(inputs.get("old_values", inputs["values"]), dtype)
    l_BT, pairs = value.value_loss(values, old, goal, mask, clip=case["config"]["value_clip"])
    loss = aggregate(l_BT, mask, case["config"]["agg"], Denoms(*count(mask)))
    loss.backward()
    close(loss.detach(), expected["loss"], dtype)
    close(values.grad, expected["grad_values"], dtype)
    if "clip_fraction" in expected:
        assert finish(pairs)["critic/clip_frac"] == pytest.approx(expected["clip_fraction"])


def kl_estimators(case: Case, dtype: torch.dtype) -> None:
    """`straight_through` is another way to the gradient of k3_is; we have the latter."""
    expected, on = case["expected"], torch.ones(1, 1, dtype=torch.bool)
    assert expected["straight_through_grad"] == expected["k3_is_grad"]
    old = torch.tensor([[case["inputs"]["old_logp"]]], dtype=dtype)
    for name, estimator, prox in (
        *((name, ESTIMATORS["k3_biased" if name == "k3" else name], None) for name in ("k1", "k2", "k3")),
        ("k3_is", kl.k3_unbiased, old),
    ):
        logp, ref = (torch.tensor([[case["inputs"][key]]], dtype=dtype) for key in ("logp", "ref_logp"))
        logp.requires_grad_()
        found = estimator(logp, ref, on, prox)
        found.sum().backward()
        close(found.item(), expected["k3_is_value" if name == "k3_is" else name], dtype)
        close(logp.grad.item(), expected["k3_is_grad" if name == "k3_is" else f"grad_{name}"], dtype)


def kl_enumeration(case: Case, dtype: torch.dtype) -> None:
    """Sum over all three tokens of probability times gradient: what an infinite sample would give."""
    inputs, expected = case["inputs"], case["expected"]

    def gradient(estimator: Any, from_old: bool) -> Tensor:
        logits = torch.tensor(inputs["logits"], dtype=dtype, requires_grad=True)
        ref, old = (torch.tensor(inputs[name], dtype=dtype) for name in ("ref_probs", "old_probs"))
        logp = logits.log_softmax(-1)
        weights = old if from_old else logp.detach().exp()
        prox = old.log()[None] if from_old else None
        (weights * estimator(logp[None], ref.log()[None], torch.ones(1, 3, dtype=torch.bool), prox)[0]).sum().backward()
        return logits.grad

    for estimator, from_old, keys in (
        (kl.k1, False, ("E_on_grad_k1",)),
        (kl.k2, False, ("E_on_grad_k2", "grad_reverse_kl")),
        (kl.k3, False, ("E_on_grad_k3", "grad_forward_kl")),
        (kl.k3_unbiased, False, ("grad_reverse_kl",)),
        (kl.k2, True, ("E_old_grad_k2",)),
        (kl.k3_unbiased, True, ("E_old_grad_r_k3", "grad_reverse_kl")),
    ):
        for key in keys:
            close(gradient(estimator, from_old), expected[key], dtype)


def is_weights(name: str, share: str | None = None) -> Check:
    def check(case: Case, dtype: torch.dtype) -> None:
        inputs, expected, mask = case["inputs"], case["expected"], mask_of(case)
        behav = matrix(inputs["behav_logp"], dtype)
        logp = matrix(inputs.get("logp", inputs.get("prox_logp")), dtype)
        a_B = torch.tensor(inputs.get("advantages", [1.0] * len(mask)), dtype=dtype)
        prox = behav if name == "opsm" else logp  # opsm looks at the live policy alone
        weights, pairs = importance_weights(name, logp, prox, behav, a_B, mask, bounds=case["config"])
        assert weights.dtype == dtype
        if "weights" in expected:
            close(weights, expected["weights"], dtype)
        else:
            assert weights.tolist() == [[float(keep)] * mask.shape[1] for keep in expected["keep"]]
        if share:
            assert finish(pairs)[share] == pytest.approx(expected.get("clip_fraction", 1 / 3), rel=1e-6)

    return check


def dynamic_sampling(case: Case, dtype: torch.dtype) -> None:
    """Judged on verdicts; the rewards of the second group differ, by length alone."""
    from postrl.worker.informative import informative

    inputs = case["inputs"]
    groups: dict[int, list[Any]] = {}
    for group, right, shaped in zip(inputs["group"], inputs["acc"], inputs["shaped_reward"], strict=True):
        one = rollout(1)
        one.rewards, one.statuses = {"math": shaped}, {"math": "correct" if right else "wrong"}
        groups.setdefault(group, []).append(one)
    kept = [informative(Group("p:0", i, "", None, {}, rollouts)) for i, rollouts in groups.items()]
    assert kept == case["expected"]["keep_group"]


def overlong(case: Case, dtype: torch.dtype) -> None:
    config, lengths = case["config"], torch.tensor(case["inputs"]["lengths"], dtype=dtype)
    close(filters.overlong_penalty(lengths, config["max_len"], config["cache_len"]), case["expected"]["penalty"], dtype)


def truncated_mask(case: Case, dtype: torch.dtype) -> None:
    """A completion that was cut counts in the statistics of its group and then leaves the mask and the denominators."""
    inputs, expected = case["inputs"], case["expected"]
    reasons = ["length" if cut else "stop" for cut in inputs["truncated"]]
    batch = make_batch(
        inputs["mask"],
        rewards_B=rewards(inputs["rewards"]),
        rollouts=[rollout(2, finish_reason=reason) for reason in reasons],
    )
    batch = with_advantages(batch, resolve("grpo", mask_truncated_completions=True))
    close(batch.advantages, expected["advantages"], torch.float32)
    assert batch.mask_BT.int().tolist() == expected["mask_after"]
    denoms = denominators(batch, 1)
    assert (denoms.n_tokens, denoms.n_seqs) == (expected["token_denominator"], expected["seq_denominator"])


def staleness(case: Case, dtype: torch.dtype) -> None:
    """The learner's count, and what the buffer of the rollout worker lets it train on."""
    from postrl.learning.batch import make_batch as batch_of
    from postrl.worker.buffer import Buffer, Entry

    version, expected = case["inputs"]["current_version"], case["expected"]
    groups = []
    for i, versions in enumerate(case["inputs"]["token_versions"]):
        spans = [VersionSpan(v, t, t + 1) for t, v in enumerate(versions)]
        groups.append(Group("p:0", i, "", None, {}, [replace(rollout(len(versions)), version_spans=spans)]))
    batch = batch_of(groups, version, torch.device("cpu"))
    assert [r.staleness for r in batch.rollouts] == expected["staleness"]
    entries = [Entry(group, Prompt("p:0", None, "", []), group.rollouts[0].oldest_version) for group in groups]
    stale = Buffer(1, case["config"]["max_staleness"], version=version, phase=version, entries=entries).stale()
    assert [entry not in stale for entry in entries] == expected["keep"]


def aggregation(case: Case, dtype: torch.dtype) -> None:
    """Two ranks of two micro-batches, the last one empty: added up over a rank and averaged over ranks."""
    inputs, expected, config = case["inputs"], case["expected"], case["config"]
    ranks = [
        [(torch.tensor(x, dtype=dtype), torch.tensor(m).bool()) for x, m in zip(losses, masks, strict=True)]
        for losses, masks in zip(inputs["loss_mat"], inputs["mask"], strict=True)
    ]
    counts = [count(mask) for micros in ranks for _, mask in micros]
    denoms = Denoms(sum(n for n, _ in counts), sum(n for _, n in counts), dp_size=config["dp_size"])
    assert (denoms.n_tokens, denoms.n_seqs) == (expected["global_tokens"], expected["global_nonempty_seqs"])
    for mode in ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"):
        constant = config["norm_const"]
        micro = [[float(aggregate(x, m, mode, denoms, norm_const=constant)) for x, m in micros] for micros in ranks]
        close(sum(map(sum, micro)) / len(micro), expected[mode], dtype)
        if mode == "token_mean":
            close(micro, expected["micro_losses_token_mean"], dtype)
        sums = [totals(x, m, mode, norm_const=constant) for micros in ranks for x, m in micros]
        close(sum(s for s, _ in sums) / sum(n for _, n in sums), expected[mode], dtype)


def entropy_bonus(case: Case, dtype: torch.dtype) -> None:
    """From logits to their gradient; a token without advantage has no other."""
    logits = torch.tensor(case["inputs"]["logits"], dtype=dtype, requires_grad=True)
    log_p = logits.log_softmax(-1)
    entropy_BT = torch.stack([-(log_p.exp() * log_p).sum(), torch.tensor(torch.nan)])[None]
    batch = make_batch([[1, 0]], advantages=torch.zeros(1, dtype=dtype))
    algorithm = resolve("grpo", entropy_coef=case["config"]["coef"])
    loss, pairs = PolicyObjective(algorithm).loss(torch.zeros(1, 2, dtype=dtype), entropy_BT, batch, Denoms(1, 1))
    loss.backward()
    close(loss.detach(), case["expected"]["loss"], dtype)
    close(logits.grad, [-case["config"]["coef"] * g for g in case["expected"]["grad_entropy_logits"]], dtype)
    assert finish(pairs)["policy/entropy"] == pytest.approx(case["expected"]["entropy"], rel=1e-5)


CHECKS: dict[str, Check] = {
    "gae_basic": gae_advantages,
    "gae_observation_gap_and_pad": gae_advantages,
    "gae_truncated_bootstrap": gae_advantages,
    "vapo_decoupled_length_adaptive_gae": gae_advantages,
    "vapo_length_adaptive_lambda_values": adaptive_lambdas,
    "grpo_advantage_unbiased_std": group_advantages("group"),
    "grpo_advantage_biased_std": group_advantages("group"),
    "grpo_advantage_edge_groups": group_advantages("group"),
    "grpo_batch_std_advantage": group_advantages("batch"),
    "dr_grpo_advantage": group_advantages("none"),
    "rloo_advantage": rloo_advantages,
    "rloo_advantage_kl_in_reward": rloo_with_kl,
    "opo_advantage": opo_advantages,
    "remax_advantage": remax_advantages,
    "flash_reinforce_advantage": flash_advantages,
    "reinforce_pp_advantage": reinforce_pp_advantages,
    "reinforce_pp_baseline_advantage": reinforce_pp_baseline_advantages,
    "advantage_whiten_population": whitening,
    "kl_in_reward": kl_in_reward,
    "ppo_clip_token_mean": policy_loss("grpo", **ALONE),
    "ppo_clip_unclipped_side": policy_loss("grpo", **ALONE),
    "dual_clip": policy_loss("grpo", **ALONE, dual_clip=3.0),
    "extreme_log_ratio": policy_loss("grpo", **ALONE, dual_clip=3.0),
    "grpo_loss_k3_classic": policy_loss("grpo", **KL, kl_estimator="k3_biased"),
    "grpo_loss_k3_unbiased_is": policy_loss("grpo", **KL, kl_estimator="k3_unbiased"),
    "dr_grpo_loss": policy_loss("dr_grpo", **ALONE, max_completion_length=4),
    "dapo_clip_higher_token_loss": policy_loss("dapo", **ALONE),
    "gspo_sequence": policy_loss("gspo", **ALONE),
    "gspo_token": policy_loss("gspo_token", **ALONE),
    "cispo": policy_loss("cispo", **ALONE),
    "sapo": policy_loss("sapo", **ALONE),
    "rloo_reinforce_loss": policy_loss("rloo", is_correction="none", beta=0.0),
    "opo_reinforce_loss": policy_loss("opo", is_correction="none"),
    "remax_reinforce_loss": policy_loss("remax", is_correction="none"),
    "reinforce_pp_loss": policy_loss("reinforce_pp", **ALONE, beta=0.0),
    "flash_reinforce_loss": policy_loss("flash_reinforce"),
    "vapo_total_policy_loss": policy_loss("vapo", is_correction="none"),
    "tis_weighted_ppo": policy_loss("grpo", minibatches=2),
    "decoupled_ppo": policy_loss("grpo", minibatches=2, is_correction="decoupled"),
    "seed_two_sided_truncation": policy_loss("grpo", is_correction="seed", is_eps=0.2),
    "value_loss_clipped": value_loss,
    "value_loss_unclipped": value_loss,
    "kl_estimators": kl_estimators,
    "kl_gradient_enumeration": kl_enumeration,
    "tis_token": is_weights("tis", "mismatch/truncated_frac"),
    "tis_sequence": is_weights("tis_seq"),
    "icepop_token_mask": is_weights("icepop", "mismatch/rejected_frac"),
    "seq_mask_tis": is_weights("seq_mask_tis"),
    "opsm": is_weights("opsm", "mismatch/rejected_frac"),
    "dynamic_sampling": dynamic_sampling,
    "overlong_soft_punishment": overlong,
    "truncated_mask": truncated_mask,
    "staleness_filter": staleness,
    "aggregation_invariance": aggregation,
    "entropy_bonus": entropy_bonus,
}
