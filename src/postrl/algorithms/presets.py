"""Algorithms as rows of a table: the parts an algorithm is made of, the settings it has otherwise than GRPO, and the
words of its page in the documentation.

A new algorithm made of known parts is a row here; a new part is one pure function, its entry in `parts`, and its
hand-computed test. Nothing in this module imports torch: the command line and the launcher read the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from postrl.algorithms.lookup import lookup


@dataclass(frozen=True)
class Preset:
    """An algorithm by name. Its settings are under the names of the configuration."""

    name: str
    """Also the command: `postrl NAME`."""
    advantage: str | Callable[..., Any]
    """A key of `parts.ADVANTAGES`, or a function with their signature."""
    loss: str | Callable[..., Any]
    """A key of `parts.LOSSES`, or a function with their signature."""
    title: str = ""
    summary: str = ""
    """One line, for the list of commands."""
    formula: str = ""
    """What is computed, in words."""
    when: str = ""
    """When to use it."""
    note: str = ""
    """What to mind when it is used."""
    paper: str = ""
    needs: frozenset[str] = frozenset()
    """Forward passes and rollouts beyond the batch itself: of "prox", "ref", "values" (a critic), "greedy" (one greedy
    completion for each prompt)."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that differ from GRPO's."""
    reads: tuple[str, ...] | None = None
    """Settings of its own: they mean nothing to an algorithm that does not list them. None: it may read any."""
    one_update: bool = False
    """Whether it is right only with one optimizer step per batch: it takes the batch as drawn from the policy it trains."""

    @property
    def compares_groups(self) -> bool:
        """Whether its advantage is what a completion has over the others of its prompt, of which there must be one then.
        What a function of the user's compares is not known."""
        return isinstance(self.advantage, str) and self.advantage in BY_GROUP


BY_GROUP = ("group", "rloo", "opo", "reinforce_pp_baseline")
CLIP = ("epsilon", "epsilon_high", "dual_clip")
GROUP = ("scale_rewards", "multi_objective_aggregation")
CRITIC = (
    "critic_model", "critic_learning_rate", "critic_warmup_steps", "value_clip", "gamma", "gae_lambda",
    "gae_lambda_critic", "length_adaptive_alpha", "bootstrap_truncated", "whiten_advantages", "nll_coef",
)  # fmt: skip

SUMMED = (
    "Gradients are as many times larger as completions are long, so that nearly every step is scaled down to "
    "--max-grad-norm. AdamW does not mind; with --optim sgd choose the learning rate anew."
)

GSPO = Preset(
    "gspo", "group", "gspo", "GSPO",
    summary="The trust region is around the likelihood of whole completions.",
    formula=(
        "A as in GRPO; the ratio is the geometric mean of the token ratios of a completion, clipped to "
        "1 - 0.0003 .. 1 + 0.0004; every completion weighs the same."
    ),
    when="Mixture-of-experts models and long completions, with several optimizer steps per batch.",
    paper="arXiv:2507.18071",
    settings={"epsilon": 3e-4, "epsilon_high": 4e-4, "loss_aggregation": "seq_mean_token_mean"},
    reads=(*GROUP, "epsilon", "epsilon_high", "allow_wide_clip"),
)  # fmt: skip

PRESETS: dict[str, Preset] = {
    row.name: row
    for row in (
        Preset(
            "grpo", "group", "clip", "GRPO",
            summary="Compare the completions of a prompt with each other; clipped trust region.",
            formula="A = (reward - group mean) / group standard deviation; clipped ratio, averaged over tokens.",
            when="The default: verifiable rewards, several completions a prompt, no critic to train.",
            paper="arXiv:2402.03300",
            reads=(*CLIP, *GROUP),
        ),
        Preset(
            "dr_grpo", "group", "clip", "Dr. GRPO",
            summary="GRPO without the two divisions that favour lengths and easy or hard prompts.",
            formula="A = reward - group mean; clipped ratio, summed over tokens and divided by max_completion_length.",
            when="Completions grow longer without getting better, or groups differ much in difficulty.",
            paper="arXiv:2503.20783",
            settings={"scale_rewards": "none", "loss_aggregation": "seq_mean_token_sum_norm"},
            reads=(*CLIP, *GROUP),
        ),
        Preset(
            "dapo", "group", "clip", "DAPO",
            summary="GRPO with a wider upper clip, only prompts of mixed success, and a soft length limit.",
            formula=(
                "GRPO; the ratio may rise to 1.28; groups that are all right or all wrong are replaced by other prompts; "
                "the reward falls over the last fifth of max_completion_length, by up to 1."
            ),
            when="Long reasoning with a verifier, where entropy collapses or most groups are all right or all wrong.",
            paper="arXiv:2503.14476",
            settings={
                "epsilon_high": 0.28, "num_generations": 16, "prompts_per_step": 16, "dynamic_sampling": True,
                "overlong_buffer": 0.2,
            },
            reads=(*CLIP, *GROUP),
        ),
        GSPO,
        replace(
            GSPO, name="gspo_token", title="GSPO-token",
            summary="GSPO for advantages that differ from token to token.",
            formula="As GSPO, whose loss is written by token already: the two are one where a completion has one advantage.",
            when="An advantage of your own that differs within a completion.",
            paper="arXiv:2507.18071, section 4.3",
        ),
        Preset(
            "cispo", "group", "cispo", "CISPO",
            summary="Caps the weight of a token instead of cutting its gradient.",
            formula="A as in GRPO; loss = -A * log-prob * min(ratio, 5), the ratio without gradient, averaged over tokens.",
            when="Several optimizer steps per batch, where rare but decisive tokens must keep their gradient.",
            paper="arXiv:2506.13585; cap of arXiv:2510.13786",
            reads=(*GROUP, "is_cap_low", "is_cap_high"),
        ),
        Preset(
            "sapo", "group", "sapo", "SAPO",
            summary="A soft gate in place of the clip.",
            formula=(
                "A as in GRPO; loss = -A * (4 / tau) * sigmoid(tau * (ratio - 1)), tau 1 for good completions and 1.05 for "
                "bad ones; every completion weighs the same."
            ),
            when="The hard clip makes training unsteady.",
            paper="arXiv:2511.20347",
            settings={"loss_aggregation": "seq_mean_token_mean"},
            reads=(*GROUP, "sapo_temperature_pos", "sapo_temperature_neg"),
        ),
        Preset(
            "rloo", "rloo", "reinforce", "RLOO",
            summary="Plain REINFORCE; the baseline is the mean of the other completions.",
            formula=(
                "A = reward - mean of the others, the reward less 0.05 * KL to the initial policy; -A * log-prob of the "
                "whole completion (the clipped ratio with several optimizer steps per batch)."
            ),
            when="Short completions and rewards that are noisy or not verifiable, kept near the initial policy.",
            paper="arXiv:2402.14740",
            note=SUMMED,
            settings={"loss_aggregation": "seq_mean_token_sum", "beta": 0.05, "kl_placement": "reward"},
            reads=CLIP,
        ),
        Preset(
            "reinforce_pp", "reinforce_pp", "clip", "REINFORCE++",
            summary="No groups: returns are whitened over the whole batch.",
            formula=(
                "A = (return - mean) / standard deviation over all tokens of the batch, the return being the reward less "
                "0.01 * KL of this and the later tokens; clipped ratio, averaged over tokens."
            ),
            when="One completion a prompt, many prompts, without a critic.",
            paper="arXiv:2501.03262",
            settings={
                "num_generations": 1, "prompts_per_step": 256, "beta": 0.01, "kl_placement": "reward",
            },
            reads=(*CLIP, "gamma"),
        ),
        Preset(
            "reinforce_pp_baseline", "reinforce_pp_baseline", "clip", "REINFORCE++-baseline",
            summary="REINFORCE++ on rewards less the mean of their group.",
            formula=(
                "A = reward - group mean, whitened over all tokens of the batch; clipped ratio, averaged over tokens; "
                "0.01 * KL (k2) in the loss."
            ),
            when="As GRPO, where the deviation of single groups is too noisy to divide by.",
            paper="arXiv:2501.03262",
            settings={"beta": 0.01, "kl_estimator": "k2"},
            reads=CLIP,
        ),
        Preset(
            "remax", "remax", "reinforce", "ReMax",
            summary="The baseline is the reward of the prompt's greedy completion.",
            formula="A = reward - reward of the greedy completion; -A * log-prob of the whole completion.",
            when="Few completions a prompt; costs one greedy completion more for each.",
            paper="arXiv:2310.10505",
            note=SUMMED,
            needs=frozenset({"greedy"}),
            settings={"loss_aggregation": "seq_mean_token_sum", "num_generations": 1, "prompts_per_step": 128},
            reads=CLIP,
        ),
        Preset(
            "opo", "opo", "reinforce", "OPO",
            summary="Exactly on-policy, with the baseline of least variance.",
            formula="A = reward - length-weighted mean reward of the group; -A * log-prob of the whole completion.",
            when="Strictly on-policy training without KL or clip: one optimizer step per batch.",
            paper="arXiv:2505.23585",
            note=SUMMED,
            settings={"loss_aggregation": "seq_mean_token_sum"},
            reads=(),
            one_update=True,
        ),
        Preset(
            "flash_reinforce", "batch_mean", "reinforce", "FlashREINFORCE",
            summary="One completion a prompt, the batch's mean as baseline, a gate on drift.",
            formula=(
                "A = reward - mean of the batch; -A * log-prob, weighted by trainer / sampler probability; a completion "
                "whose mean binary KL between the two is above 0.005 weighs nothing."
            ),
            when="Throughput first: many prompts, one completion each, asynchronous.",
            paper="OpenRLHF 0.11",
            settings={
                "num_generations": 1, "prompts_per_step": 128, "loss_aggregation": "seq_mean_token_mean",
                "is_correction": "binary_kl",
            },
            reads=(),
            one_update=True,
        ),
        Preset(
            "ppo", "gae", "clip", "PPO",
            summary="A critic predicts the reward; advantages by token.",
            formula=(
                "A = generalised advantage estimate (gamma 1, lambda 1) from a critic's values, whitened over the batch; "
                "clipped ratio, averaged over tokens; the critic learns the returns, clipped to 0.5 around its old values."
            ),
            when="Rewards that need credit within a completion, or one completion a prompt; room for a second model.",
            paper="arXiv:1707.06347; arXiv:1506.02438",
            needs=frozenset({"values"}),
            settings={
                "num_generations": 1, "prompts_per_step": 256, "minibatches": 4, "kl_placement": "reward",
            },
            reads=(*CLIP, *CRITIC),
        ),
        Preset(
            "vapo", "gae", "clip", "VAPO",
            summary="PPO for long reasoning: pretrained critic, length-adaptive lambda, imitation of right answers.",
            formula=(
                "PPO; the critic learns Monte-Carlo returns (lambda 1) and trains alone for 50 steps first; the policy's "
                "lambda is 1 - 1 / (0.05 * length); the ratio may rise to 1.28; plus 0.1 * the negative log-likelihood of "
                "completions that are right."
            ),
            when="Long chains of thought with a verifier, and room for a second model.",
            paper="arXiv:2504.05118",
            note="Lambda is 0, and nothing but the last token learns, up to 1 / --length-adaptive-alpha tokens (20): for short "
            "completions set alpha to about 20 / length.",
            needs=frozenset({"values"}),
            settings={
                "num_generations": 16, "prompts_per_step": 16, "minibatches": 4, "epsilon_high": 0.28,
                "critic_warmup_steps": 50, "length_adaptive_alpha": 0.05, "nll_coef": 0.1, "critic_learning_rate": 2e-6,
            },
            reads=(*CLIP, *CRITIC),
        ),
    )
}  # fmt: skip


OWNED = frozenset(name for row in PRESETS.values() for name in row.reads or ())
"""Settings that mean nothing but to the algorithms that list them in `reads`."""


def register(preset: Preset) -> Preset:
    """Make an algorithm of your own known by its name, for scripts: `GRPOConfig(algorithm=preset.name)`.

    Raises:
        ValueError: the name is taken.
    """
    if preset.name in PRESETS and PRESETS[preset.name] != preset:
        raise ValueError(f"there is an algorithm {preset.name!r} already; give yours another name")
    PRESETS[preset.name] = preset
    return preset


def needs_of(preset: Preset, settings: Any) -> frozenset[str]:
    """What `preset` needs with these settings: "ref" when beta > 0, "prox" when the live policy is no longer that of the
    batch's start (several optimizer steps per batch) or when the KL is taken off the rewards, before the update, and "end"
    when completions that were cut end with the critic's value.

    Args:
        settings: any object that has them as attributes.
    """
    s = settings
    before = s.num_iterations * s.minibatches > 1 or (s.beta > 0 and s.kl_placement == "reward")
    needed = {
        "ref": s.beta > 0,
        "prox": s.proximal == "learner" and before,
        "end": "values" in preset.needs and s.bootstrap_truncated,
    }
    return preset.needs | {need for need, wanted in needed.items() if wanted}


def has_critic(name: str) -> bool:
    """Whether the row called `name` trains a value model beside the policy; of an algorithm in a file that is not known."""
    return name in PRESETS and "values" in PRESETS[name].needs


def is_file(name: str) -> bool:
    """Whether an algorithm is written as `file.py:NAME`."""
    return ".py:" in name


def find(name: str) -> Preset | None:
    """The row called `name`; None for one in a file, which is not read here.

    Raises:
        ValueError: an unknown name.
    """
    return None if is_file(name) else lookup(PRESETS, name, "algorithm")
