from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
import torch

from postrl.algorithms.advantages import grpo
from postrl.algorithms.algorithm import Algorithm
from postrl.algorithms.objective import with_advantages
from postrl.algorithms.parts import ADVANTAGES, LOSSES
from postrl.algorithms.presets import PRESETS, Preset
from postrl.algorithms.resolve import SETTINGS, resolve
from postrl.config import GRPOConfig
from postrl.config.python_hints import in_python
from postrl.config.settings import Settings
from postrl.errors import UsageError

from .cases import make_batch, random_batch, rewards


def test_grpo_is_the_row_that_the_documentation_promises():
    a = resolve("grpo")
    assert (a.loss_aggregation, a.epsilon, a.epsilon_upper, a.beta) == ("token_mean", 0.2, 0.2, 0.0)
    assert (a.is_correction, a.scale_rewards, a.dual_clip, a.kl) == ("tis", "group", None, "k3_unbiased")
    assert a.needs == frozenset()


def test_settings_of_the_user_replace_those_of_the_row():
    a = resolve(
        "grpo", beta=0.04, epsilon=0.1, loss_aggregation="seq_mean_token_mean", is_correction="none", kl_estimator="k2"
    )
    assert (a.beta, a.epsilon, a.epsilon_upper) == (0.04, 0.1, 0.1)
    assert (a.loss_aggregation, a.is_correction, a.kl) == ("seq_mean_token_mean", "none", "k2")
    assert resolve("grpo", epsilon=0.2, epsilon_high=0.28).epsilon_upper == 0.28
    assert resolve("dapo").epsilon_upper == 0.28 and resolve("dapo", epsilon_high=0.3).epsilon_upper == 0.3


@pytest.mark.parametrize(
    ("name", "settings", "needs"),
    [
        ("grpo", {}, set()),
        ("grpo", {"beta": 0.04}, {"ref"}),
        ("grpo", {"minibatches": 2}, {"prox"}),
        ("grpo", {"num_iterations": 2}, {"prox"}),
        ("grpo", {"beta": 0.04, "minibatches": 4}, {"ref", "prox"}),
        ("grpo", {"minibatches": 4, "proximal": "sampler", "is_correction": "none"}, set()),
        ("rloo", {}, {"ref", "prox"}),  # the KL is taken off the rewards before the update
        ("rloo", {"beta": 0.0}, set()),
        ("remax", {}, {"greedy"}),
        ("ppo", {"minibatches": 1}, {"values"}),
        ("vapo", {}, {"values", "prox"}),
    ],
)
def test_needs_follow_from_the_row_and_the_settings(name, settings, needs):
    assert resolve(name, **settings).needs == needs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kl_estimator": "k9"}, "kl_estimator is 'k9'"),
        ({"kl_placement": "both"}, "kl_placement is 'both', expected one of loss, reward"),
        ({"loss_aggregation": "mean"}, "loss_aggregation is 'mean', expected one of token_mean"),
        ({"is_correction": "icecream"}, "is_correction is 'icecream', expected one of tis, tis_seq"),
        ({"scale_rewards": "std"}, "scale_rewards is 'std'"),
        ({"beta": -1.0}, "beta is -1.0, expected 0 or more"),
        ({"beta": float("nan")}, "beta is nan"),
        ({"epsilon": -0.1}, "epsilon is -0.1"),
        ({"epsilon_high": -0.1}, "epsilon_upper is -0.1"),
        ({"is_correction": "seed", "is_low": 0.5}, "is_low is 0.5, and is_correction seed takes is_eps"),
        ({"is_high": 0.5}, "is_high is 0.5, expected 1 or more"),
        ({"loss_aggregation": "seq_mean_token_sum_norm"}, "divides by max_completion_length, which is None"),
        ({"minibatches": 0}, "minibatches is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        resolve("grpo", **settings)


IMPOSSIBLE: list[tuple[str, dict[str, Any], tuple[str, ...], str]] = [
    ("grpo", {"proximal": "sampler"}, ("proximal = sampler", "is_correction = tis"), "--is-correction none"),
    ("cispo", {"proximal": "sampler"}, ("proximal = sampler", "is_correction = tis"), "--is-correction none"),
    ("grpo", {"beta": 0.1, "kl_estimator": "k1"}, ("kl_estimator = k1", "kl_placement = loss"), "--kl-placement reward"),
    ("rloo", {"kl_estimator": "k2"}, ("kl_estimator = k2", "kl_placement = reward"), "--kl-estimator k1"),
    ("gspo", {"loss_aggregation": "token_mean"}, ("algorithm = gspo", "loss_aggregation = token_mean"),
     "--loss-aggregation seq_mean_token_mean"),
    ("gspo", {"epsilon": 0.2, "epsilon_high": 0.2}, ("epsilon = 0.2", "algorithm = gspo"), "--allow-wide-clip"),
    ("flash_reinforce", {"minibatches": 2}, ("algorithm = flash_reinforce", "num_iterations x minibatches = 1 x 2"),
     "--minibatches 1"),
    ("opo", {"num_iterations": 2}, ("algorithm = opo", "num_iterations x minibatches = 2 x 1"), "--num-iterations 1"),
    ("opo", {"proximal": "sampler", "is_correction": "none"}, ("algorithm = opo", "proximal = sampler"),
     "--proximal learner"),
    ("grpo", {"dual_clip": 1.1}, ("dual_clip is 1.1", "1 + epsilon_high = 1.2"), "3 is usual"),
    ("dapo", {"dual_clip": 1.25}, ("dual_clip is 1.25", "1 + epsilon_high = 1.28"), "3 is usual"),
    ("vapo", {"gae_lambda": 0.9}, ("length_adaptive_alpha = 0.05", "gae_lambda = 0.9"), "--algorithm ppo"),
    ("vapo", {"max_completion_length": 16}, ("length_adaptive_alpha = 0.05", "max_completion_length = 16"),
     "--length-adaptive-alpha 1.2"),
    ("remax", {"overlong_buffer": 0.2}, ("overlong_buffer = 0.2", "algorithm = remax"), "--reward soft_overlong"),
    ("grpo", {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none"},
     ("multi_objective_aggregation = normalize_then_sum", "scale_rewards = none"), "--scale-rewards group"),
    ("grpo", {"nll_coef": 0.1}, ("nll_coef = 0.1", "algorithm = grpo"), "--algorithm ppo or vapo"),
    ("cispo", {"epsilon": 0.1}, ("epsilon = 0.1", "algorithm = cispo"), "remove --epsilon"),
]  # fmt: skip
"""(algorithm, settings, both sides as they are named, the way out)."""


@pytest.mark.parametrize(("name", "settings", "named", "way_out"), IMPOSSIBLE, ids=str)
def test_property_14_impossible_combinations_are_refused(name, settings, named, way_out):
    """By the algorithm, and by the configuration before a process starts; both settings and a way out are named."""
    with pytest.raises(ValueError) as refused:
        resolve(name, **settings)
    with pytest.raises(UsageError) as refused_early:
        GRPOConfig(algorithm=name, **settings)
    assert refused_early.value.hint is not None and in_python(way_out) in refused_early.value.hint
    for message in (str(refused.value), str(refused_early.value)):
        assert all(words in message for words in named)
    assert way_out in str(refused.value)


def test_a_group_of_one_is_refused_before_a_process_starts_and_may_be_replayed():
    with pytest.raises(UsageError, match="num_generations is 1: in algorithm = grpo a group of one has no baseline"):
        GRPOConfig(num_generations=1)
    assert GRPOConfig(num_generations=1, replay="runs/earlier").replay
    with pytest.raises(UsageError, match="would train on it 2 times"):
        GRPOConfig(algorithm="opo", replay="runs/earlier", num_generations=1, num_iterations=2)


def test_a_preset_of_ones_own_with_the_loss_of_gspo_is_held_to_its_rules():
    own = Preset("mine", "group", "gspo")
    with pytest.raises(ValueError, match="nothing would ever be clipped"):
        resolve(own, loss_aggregation="seq_mean_token_mean")
    with pytest.raises(ValueError, match="weigh it by length"):
        resolve(own, epsilon=3e-4, epsilon_high=4e-4)


def test_a_way_out_is_a_way_out():
    resolve("grpo", proximal="sampler", is_correction="none")
    resolve("gspo", epsilon=0.2, epsilon_high=0.2, allow_wide_clip=True)
    resolve("rloo", kl_estimator="k2", kl_placement="loss")
    resolve("flash_reinforce", minibatches=1)


def test_bounds_of_the_user_go_to_the_correction():
    assert resolve("grpo", is_low=0.5).bounds == {"low": 0.5}
    assert resolve("grpo", is_correction="seed", is_eps=0.3).bounds == {"eps": 0.3}
    assert resolve("flash_reinforce", is_delta=3e-3).bounds == {"delta": 3e-3}


def test_an_unknown_algorithm_lists_the_known_ones():
    with pytest.raises(ValueError, match="algorithm is 'grpoo', expected one of grpo, dr_grpo"):
        resolve("grpoo")


# -- every row ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_every_row_names_parts_and_settings_that_exist_and_makes_a_configuration(name: str):
    row = PRESETS[name]
    assert row.name == name and row.advantage in ADVANTAGES and row.loss in LOSSES
    known = {f.name for f in fields(Settings)}
    assert row.settings.keys() <= known and set(row.reads) <= known
    config = GRPOConfig(algorithm=name)
    assert {key: getattr(config, key) for key in row.settings} == dict(row.settings)
    settings = {key: getattr(config, key) for key in SETTINGS}
    assert resolve(name, **settings) == resolve(name, max_completion_length=config.max_completion_length, **{
        key: settings[key] for key in ("reward_weights", "num_generations")
    })  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_every_row_is_described(name: str):
    row = PRESETS[name]
    assert all((row.title, row.summary, row.formula, row.when, row.paper))


def test_every_part_is_named_by_a_row():
    assert {row.advantage for row in PRESETS.values()} == set(ADVANTAGES)
    assert {row.loss for row in PRESETS.values()} == set(LOSSES)


def test_the_defaults_of_an_algorithm_are_those_of_the_configuration():
    """Except max_completion_length, which nothing but a run can know."""

    def defaults(settings: type) -> dict[str, Any]:
        return {
            f.name: f.default if f.default_factory is MISSING else tuple(f.default_factory())
            for f in fields(settings)
            if f.name in SETTINGS and f.name != "max_completion_length"
        }

    assert defaults(Algorithm) == defaults(Settings)
    assert len(defaults(Algorithm)) == len(SETTINGS) - 1


# -- what the parts take from the batch and the settings ---------------------------------------------------------------


def test_with_one_update_rloo_is_reinforce_and_with_several_the_ratio_is_clipped():
    """A ratio of 3 with a positive advantage: the gradient is -A, or none. `prox` is there both times, for the KL."""
    logp, prox = (torch.tensor([[p]]).log() for p in (0.3, 0.1))
    for more, expected in (({}, -1.0), ({"minibatches": 2}, 0.0), ({"num_iterations": 2}, 0.0)):
        algorithm, leaf = resolve("rloo", **more), logp.clone().requires_grad_()
        assert "prox" in algorithm.needs
        algorithm.loss(leaf, prox, torch.tensor([1.0]), torch.ones(1, 1).bool(), algorithm)[0].sum().backward()
        assert leaf.grad.item() == expected


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "opo", "flash_reinforce"])
def test_a_kl_penalty_is_taken_off_before_the_baseline(name: str):
    """Advantages are those of rewards less beta times the KL of the whole completion."""
    _, batch = random_batch()
    batch = replace(batch, rewards_B=torch.arange(6).double() / 5)
    algorithm = resolve(name, beta=0.3, kl_placement="reward", max_completion_length=5)
    kl_B = torch.where(batch.mask_BT, batch.prox_BT - batch.ref_BT, 0.0).sum(-1)
    plain = replace(algorithm, beta=0.0, needs=frozenset())
    expected = with_advantages(replace(batch, rewards_B=batch.rewards_B - 0.3 * kl_B), plain)
    found = with_advantages(batch, algorithm)
    torch.testing.assert_close(found.advantages, expected.advantages, rtol=1e-5, atol=1e-6)
    assert found.metrics["reward/kl_ref"][0] == pytest.approx(float(kl_B.sum()), rel=1e-5)
    assert torch.equal(found.rewards_B, batch.rewards_B), "what is reported is the reward itself"


@pytest.mark.parametrize("name", ["reinforce_pp", "remax", "ppo"])
def test_by_token_a_kl_penalty_is_taken_off_what_comes_after(name: str):
    batch = make_batch(
        [[1, 1, 1]], prox_BT=torch.tensor([[-1.0, -2.0, -3.0]]), ref_BT=torch.tensor([[-1.5, -2.5, -3.0]]),
        rewards_B=rewards([2.0]), greedy_B=rewards([0.0]), values_BT=torch.zeros(1, 3),
    )  # fmt: skip
    algorithm = resolve(
        name, beta=1.0, kl_placement="reward", **({"whiten_advantages": False} if name == "ppo" else {})
    )
    found = with_advantages(batch, algorithm)
    expected = torch.tensor([[1.0, 1.5, 2.0]])
    if name == "reinforce_pp":
        expected = (expected - 1.5) / (1 / 6) ** 0.5
    torch.testing.assert_close(found.advantages, expected)


def test_a_step_whose_greedy_completions_nobody_could_score_teaches_nothing_and_one_without_any_is_an_error():
    batch = make_batch([[1, 1]], rewards_B=rewards([1.0]), greedy_B=rewards([None]))
    found = with_advantages(batch, resolve("remax"))
    assert not found.advantages.any() and found.metrics["group/too_small"] == (1.0, 1.0)
    with pytest.raises(ValueError, match="the batch holds no rewards of greedy completions"):
        with_advantages(replace(batch, greedy_B=None), resolve("remax"))


def test_the_critic_has_a_lambda_of_its_own_and_learns_what_it_is_told():
    """lambda 0 for the policy, 1 for the critic: temporal differences, and returns."""
    values = torch.tensor([[0.25, 0.5, 0.75]])
    batch = make_batch([[1, 1, 1]], rewards_B=rewards([1.0]), values_BT=values)
    found = with_advantages(batch, resolve("ppo", minibatches=1, whiten_advantages=False, gae_lambda=0.0))
    assert found.advantages.tolist() == [[0.25, 0.25, 0.25]] and found.returns_BT.tolist() == [[1.0, 1.0, 1.0]]
    other = with_advantages(batch, resolve("ppo", minibatches=1, whiten_advantages=False, gae_lambda_critic=0.0))
    assert other.advantages.tolist() == [[0.75, 0.5, 0.25]] and other.returns_BT.tolist() == [[0.5, 0.75, 1.0]]


def test_a_completion_cut_at_the_limit_ends_with_the_critic_s_value_where_that_is_asked_for():
    values = torch.tensor([[0.25, 0.5, 9.0]] * 2)
    batch = make_batch(
        [[1, 1, 0]] * 2, rewards_B=rewards([0.0, 0.0]), values_BT=values, end_B=torch.tensor([0.75, 0.0]),
    )  # fmt: skip
    settings = {"minibatches": 1, "whiten_advantages": False}
    found = with_advantages(batch, resolve("ppo", bootstrap_truncated=True, **settings))
    assert found.returns_BT.tolist() == [[0.75, 0.75, 0.0], [0.0, 0.0, 0.0]]
    assert found.advantages.tolist() == [[0.5, 0.25, 0.0], [-0.25, -0.5, 0.0]]
    assert with_advantages(batch, resolve("ppo", **settings)).returns_BT.tolist() == [[0.0] * 3] * 2


def test_advantages_of_a_critic_are_whitened_unless_told_otherwise():
    batch = make_batch([[1, 1], [1, 1]], rewards_B=rewards([1.0, 0.0]), values_BT=torch.zeros(2, 2))
    assert with_advantages(batch, resolve("ppo", minibatches=1)).advantages.tolist() == [[1.0, 1.0], [-1.0, -1.0]]
    plain = with_advantages(batch, resolve("ppo", minibatches=1, whiten_advantages=False))
    assert plain.advantages.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_several_rewards_are_normalised_one_by_one_where_that_is_asked_for():
    parts = torch.tensor([[1.0, 0.0], [0.0, 0.02], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    batch = make_batch([[1]] * 4, rewards_B=parts.sum(-1), parts_BF=parts)
    found = with_advantages(batch, resolve("grpo", multi_objective_aggregation="normalize_then_sum")).advantages
    assert found[0] == pytest.approx(float(found[1]), rel=1e-3) and found[2] == found[3] < 0
    with pytest.raises(ValueError, match="no scores of the single reward functions"):
        with_advantages(
            replace(batch, parts_BF=None), resolve("grpo", multi_objective_aggregation="normalize_then_sum")
        )


# -- algorithms of the user --------------------------------------------------------------------------------------------


def test_an_algorithm_may_be_made_of_functions():
    def best_only(batch, a):
        return torch.where(batch.rewards_B == batch.rewards_B.max(), 1.0, 0.0), {"mine/x": (1.0, 1.0)}

    def log_prob(logp_BT, prox_BT, advantages, mask_BT, a):
        return -advantages.unsqueeze(-1) * torch.where(mask_BT, logp_BT, 0.0), {}

    algorithm = resolve(Preset("mine", best_only, log_prob, needs=frozenset({"values"})), beta=0.1)
    assert algorithm.needs == {"values", "ref"}
    batch = make_batch([[1], [1]], rewards_B=rewards([0.0, 1.0]), ref_BT=torch.zeros(2, 1), values_BT=torch.zeros(2, 1))
    found = with_advantages(batch, algorithm)
    assert found.advantages.tolist() == [0.0, 1.0] and found.metrics["mine/x"] == (1.0, 1.0)


def test_advantages_are_kept_in_32_bits_whatever_an_estimator_computes_in():
    batch = make_batch([[1], [1]], rewards_B=rewards([0.0, 1.0]))
    assert grpo(batch.rewards_B, batch.group_B)[0].dtype == torch.float64
    assert with_advantages(batch, resolve("grpo")).advantages.dtype == torch.float32
