"""The loss of TRL 1.16 on the same batch: equal to 1e-5, or by exactly how much it differs, and what that means.

It is TRL's own trainer that computes: `GRPOTrainer._compute_loss`, with the log-probs of the live policy handed to it in
place of those of its model, and `_generate_and_score_completions`, with stored completions in place of generated ones.

    setting of TRL                        here                                     difference
    loss_type grpo                        seq_mean_token_mean                      none, while no completion is masked
    loss_type dr_grpo                     seq_mean_token_sum_norm                  none, while no completion is masked
    loss_type dapo (its default)          token_mean                               none with one optimizer step a batch
    loss_type cispo, epsilon_high         cispo, is_cap_high                       none; left alone, TRL's cap is 0.2, ours 5
    loss_type sapo                        sapo                                     none, while no completion is masked
    importance_sampling_level sequence    gspo                                     none
    delta                                 dual_clip                                none
    use_bias_correction_kl                kl_estimator k3_unbiased, else k3_biased none
    masked completions                    not counted                              TRL's loss is smaller: N with tokens / N
    several optimizer steps a batch       each divides by its own tokens           TRL: by the mean of the steps' tokens
    standard deviation                    + 1e-6                                   + 1e-4: TRL's advantages are smaller
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import tiny_model_dir, tiny_tokenizer
from postrl.algorithms.algorithm import Algorithm
from postrl.algorithms.objective import PolicyObjective, denominators, with_advantages
from postrl.algorithms.resolve import resolve
from postrl.types import Batch

from .cases import make_batch, rollout

trl = pytest.importorskip("trl", reason="the comparison wants TRL: pip install trl==1.16.0")
if not trl.__version__.startswith("1.16."):
    pytest.skip(f"the comparison is with TRL 1.16, and {trl.__version__} is installed", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:TRL currently supports vLLM")

B, T, LIMIT = 8, 7, 9
"""Two groups of four completions of up to seven tokens; nine were allowed."""
REWARDS = [1.0, 0.0, 0.0, 1.0, 0.3, 0.5, 0.9, 0.1]
LENGTHS = [7, 3, 5, 1, 6, 7, 2, 4]
STORED: dict[str, Any] = {"is_correction": "none", "minibatches": 2, "max_completion_length": LIMIT}
"""Both are given the old policy's log-probs, and no sampler's."""


def stored_batch(algorithm: Algorithm, **tensors: Tensor) -> tuple[Tensor, Batch]:
    """(live log-probs, batch with postrl's advantages): ratios of 1 give or take a third."""
    g = torch.Generator().manual_seed(16)
    logp = -3 * torch.rand(B, T, generator=g)
    old, ref = (logp + scale * torch.randn(B, T, generator=g) for scale in (0.3, 0.5))
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    batch = make_batch(
        mask.int().tolist(), rewards_B=torch.tensor(REWARDS, dtype=torch.float64), prox_BT=old, ref_BT=ref,
        group_B=torch.tensor([0] * 4 + [1] * 4), rollouts=[rollout(n) for n in LENGTHS],
    )  # fmt: skip
    return logp, with_advantages(replace(batch, **tensors), algorithm)


def ours(logp: Tensor, batch: Batch, algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """(loss, gradient)."""
    leaf = logp.clone().requires_grad_()
    loss, _ = PolicyObjective(algorithm).loss(leaf, None, batch, denominators(batch, 1))
    loss.backward()
    return loss.detach(), leaf.grad


def _stored(values: list[float], completions: list[str], **_: Any) -> list[float]:
    return values


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("trl") / "tiny")


@pytest.fixture
def trainer(folder: Path, tmp_path: Path) -> Any:
    """make(scores of each reward function, **settings of trl.GRPOConfig) -> trl.GRPOTrainer of a tiny random model on the CPU, in training mode."""
    from datasets import Dataset

    def make(scores: tuple[list[float], ...] = (REWARDS,), **settings: Any) -> Any:
        args = trl.GRPOConfig(
            output_dir=str(tmp_path), per_device_train_batch_size=B, num_generations=4, max_completion_length=LIMIT,
            use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, gradient_checkpointing=False, **settings,
        )  # fmt: skip
        made = trl.GRPOTrainer(
            model=str(folder), reward_funcs=[partial(_stored, values) for values in scores], args=args,
            train_dataset=Dataset.from_dict({"prompt": ["1+1="] * B}), processing_class=tiny_tokenizer(),
        )  # fmt: skip
        made.model.train()
        made.current_gradient_accumulation_steps = args.gradient_accumulation_steps  # as its training loop sets it
        return made

    return make


def theirs(made: Any, logp: Tensor, batch: Batch, n_tokens: int | None = None) -> tuple[Tensor, Tensor]:
    """(loss, gradient) of TRL; `n_tokens`: of the whole generation batch, when `batch` is a part of it."""
    leaf, shape = logp.clone().requires_grad_(), logp.shape
    made._get_per_token_logps_and_entropies = lambda *_, **__: (leaf, torch.zeros(shape), None)
    ones = torch.ones(shape, dtype=torch.int64)
    loss = made._compute_loss(
        made.model,
        {
            "prompt_ids": ones[:, :1],
            "prompt_mask": ones[:, :1],
            "completion_ids": ones,
            "completion_mask": batch.mask_BT.int(),
            "advantages": batch.advantages,
            "old_per_token_logps": batch.prox_BT,
            "ref_per_token_logps": batch.ref_BT,
            "num_items_in_batch": torch.tensor(n_tokens or int(batch.mask_BT.sum())),
        },
    )
    loss.backward()
    return loss.detach(), leaf.grad


def equal(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], factor: float = 1.0) -> None:
    assert expected[1].any()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, factor * b, rtol=1e-5, atol=1e-7)


DRIFT_KL = {"beta": 0.04}
PAIRS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("grpo", {}, "grpo", {"loss_aggregation": "seq_mean_token_mean"}),
    ("dr_grpo", {}, "dr_grpo", {}),
    ("dapo", {}, "grpo", {}),
    ("dapo", {"epsilon_high": 0.28}, "dapo", {"overlong_buffer": 0.0}),
    ("cispo", {"epsilon_high": 5.0}, "cispo", {}),
    ("cispo", {"epsilon_high": 1.1}, "cispo", {"is_cap_high": 1.1}),
    ("sapo", {}, "sapo", {}),
    ("sapo", {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0}, "sapo",
     {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0}),
    ("grpo", {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}, "gspo", {}),
    ("grpo", {"importance_sampling_level": "sequence", "epsilon": 0.1}, "gspo",
     {"epsilon": 0.1, "epsilon_high": None, "allow_wide_clip": True}),
    ("dapo", {"delta": 1.3}, "grpo", {"dual_clip": 1.3}),
    *[(loss, DRIFT_KL, name, DRIFT_KL | own) for loss, name, own in (
        ("grpo", "grpo", {"loss_aggregation": "seq_mean_token_mean"}), ("dr_grpo", "dr_grpo", {}), ("dapo", "grpo", {}),
        ("sapo", "sapo", {}),
    )],
    ("cispo", DRIFT_KL | {"epsilon_high": 5.0}, "cispo", DRIFT_KL),
    ("dapo", DRIFT_KL | {"use_bias_correction_kl": False}, "grpo", DRIFT_KL | {"kl_estimator": "k3_biased"}),
]  # fmt: skip
"""(loss_type, settings of TRL, algorithm, settings of postrl)."""


@pytest.mark.parametrize(("loss_type", "settings", "name", "own"), PAIRS, ids=str)
def test_loss_and_gradient_are_those_of_trl(trainer, loss_type, settings, name, own):
    algorithm = resolve(name, **STORED, **own)
    logp, batch = stored_batch(algorithm)
    equal(ours(logp, batch, algorithm), theirs(trainer(loss_type=loss_type, **settings), logp, batch))


def test_the_cap_of_cispo_is_5_here_and_0_2_in_trl_unless_it_is_set(trainer):
    """TRL's epsilon_high is the cap itself, and takes its default from epsilon = 0.2: all weights near 1 become 0.2. Where
    the policies agree its gradient is a fifth of ours: with plain SGD the learning rate would be a fifth."""
    algorithm = resolve("cispo", **STORED)
    logp, batch = stored_batch(algorithm)
    batch.prox_BT = logp
    equal(theirs(trainer(loss_type="cispo"), logp, batch), ours(logp, batch, algorithm), factor=0.2)


@pytest.mark.parametrize(
    ("loss_type", "name", "own"),
    [("grpo", "grpo", {"loss_aggregation": "seq_mean_token_mean"}), ("dr_grpo", "dr_grpo", {}), ("sapo", "sapo", {})],
)
def test_masked_completions_are_counted_by_trl_and_not_here(trainer, loss_type, name, own):
    """With mask_truncated_completions TRL divides by all completions: its gradient is smaller by the share that is left,
    and so is its step, the more so the more completions are cut."""
    algorithm = resolve(name, **STORED, **own)
    logp, batch = stored_batch(algorithm)
    batch.mask_BT[[0, 4]] = False
    equal(theirs(trainer(loss_type=loss_type), logp, batch), ours(logp, batch, algorithm), factor=6 / 8)


def test_masked_completions_make_no_difference_to_a_token_mean(trainer):
    algorithm = resolve("grpo", **STORED)
    logp, batch = stored_batch(algorithm)
    batch.mask_BT[[0, 4]] = False
    equal(theirs(trainer(loss_type="dapo"), logp, batch), ours(logp, batch, algorithm))


def test_of_several_optimizer_steps_trl_divides_each_by_the_mean_of_their_tokens(trainer):
    """steps_per_generation 2, one micro-batch each: ours is a mean over the tokens of that step. A step with more tokens
    than the mean is larger in TRL by that ratio, the others smaller; over the batch it averages out."""
    algorithm = resolve("grpo", **STORED)
    logp, batch = stored_batch(algorithm)
    made = trainer(loss_type="dapo", steps_per_generation=2)
    n_tokens = int(batch.mask_BT.sum())
    for rows in ([0, 1, 2, 3], [4, 5, 6, 7]):
        part = batch.rows(rows)
        own = int(part.mask_BT.sum())
        assert own != n_tokens / 2
        live = logp[rows, : part.mask_BT.shape[1]]
        equal(theirs(made, live, part, n_tokens), ours(live, part, algorithm), factor=own / (n_tokens / 2))


def test_over_gradient_accumulation_trl_is_exact_for_a_token_mean(trainer):
    """Two micro-batches of one optimizer step, in both: the sums are those of the whole batch."""
    algorithm = resolve("grpo", **STORED)
    logp, batch = stored_batch(algorithm)
    made = trainer(loss_type="dapo", gradient_accumulation_steps=2)
    parts = [(rows, batch.rows(rows)) for rows in ([0, 1, 2, 3], [4, 5, 6, 7])]
    found = [theirs(made, logp[rows], part, int(batch.mask_BT.sum())) for rows, part in parts]
    total = sum(loss for loss, _ in found), torch.cat([grad for _, grad in found])
    equal(total, ours(logp, batch, algorithm))


# -- advantages --------------------------------------------------------------------------------------------------------


def advantages_of(made: Any) -> Tensor:
    """Those that TRL gives to stored completions with the rewards REWARDS."""
    ids = [[7] * n for n in LENGTHS]
    made._generate = lambda prompts: ([[5]] * B, ids, None, ["x"] * B, None, {}, None, None)
    return made._generate_and_score_completions([{"prompt": "1+1="}] * B)["advantages"]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_differ_by_what_is_added_to_the_standard_deviation(trainer, scale: str):
    """1e-4 there, 1e-6 here: with the deviations of rewards from 0 to 1, a part in ten thousand. Where rewards hardly
    differ TRL's are smaller: by half at a deviation of 1e-4."""
    algorithm = resolve("grpo", **STORED, scale_rewards=scale)
    _, batch = stored_batch(algorithm)
    values = torch.tensor(REWARDS)
    std = values.view(2, 4).std(-1).repeat_interleave(4) if scale == "group" else values.std()
    factor = 1.0 if scale == "none" else (std + 1e-6) / (std + 1e-4)
    torch.testing.assert_close(advantages_of(trainer(scale_rewards=scale)), factor * batch.advantages)


def test_several_rewards_normalised_one_by_one_differ_by_the_same(trainer):
    """Both divide by the batch's deviation of the sum, which hides most of the first division's difference."""
    second = [0.2, 0.9, 0.2, 0.4, 30.0, 10.0, 20.0, 70.0]
    parts = torch.tensor([REWARDS, second], dtype=torch.float64).T
    algorithm = resolve("grpo", **STORED, multi_objective_aggregation="normalize_then_sum", reward_weights=(1.0, 0.5))
    _, batch = stored_batch(algorithm, rewards_B=parts @ torch.tensor([1.0, 0.5]).double(), parts_BF=parts)
    made = trainer((REWARDS, second), multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 0.5])
    torch.testing.assert_close(advantages_of(made), batch.advantages, rtol=1e-3, atol=1e-4)
