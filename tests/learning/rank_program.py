"""What each of two ranks runs for test_ranks.py: python -m learning.rank_program FOLDER, under accelerate launch.

Every scenario leaves FOLDER/<scenario>.safetensors (weights, from rank 0) or FOLDER/<scenario>-<rank>.json.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from helpers import tiny_model, tiny_tokenizer
from learning.batches import (
    critic_weights,
    make_groups,
    make_learner,
    make_pair,
    settings,
    update,
    update_critic,
    weights,
)
from postrl.config import GRPOConfig
from postrl.learning.batch import make_batch
from postrl.learning.checkpoint import load_checkpoint, save_checkpoint
from postrl.learning.learner import Learner
from postrl.learning.loading import with_lora
from postrl.learning.sharding import Ranks, this_rank
from postrl.types import Group

STEPS: dict[str, dict[str, Any]] = {
    "token_mean": {},
    "seq_mean": {"loss_aggregation": "seq_mean_token_mean", "max_tokens_per_microbatch": 30},
    "updates": {"minibatches": 2, "num_iterations": 2, "learning_rate": 0.05},
    "kl": {"beta": 0.1, "minibatches": 2, "learning_rate": 0.05},
    "clipped": {"max_grad_norm": 2.0},
}
"""Settings of the scenarios that are one phase of updates on `groups()`."""
ADAM = {"optim": "adamw", "learning_rate": 1e-3}
PAIRS = [([5, 6, 7, 8, 9], 2), ([1, 2, 3], 1)]


def model() -> Any:
    return tiny_model(tie=False)


def groups() -> list[Group]:
    """The rewards of one group are equal: its rows are not passed through."""
    made = make_groups()
    for rollout in made[1].rollouts:
        rollout.reward = 1.0
    return made


def lonely_groups() -> list[Group]:
    """Two rows, of which the rank that gets the shorter has nothing to train on."""
    made = make_groups(1, 2, longest=6)
    short = min(made[0].rollouts, key=lambda rollout: len(rollout.completion_ids))
    short.loss_mask = [0] * len(short.completion_ids)
    return made


def learner(ranks: Ranks, *, dtype: str = "float32", adapter: bool = False, **options: Any) -> Learner:
    reference = model() if options.get("beta") else None
    torch.manual_seed(0)  # LoRA's first factor is random
    trained = with_lora(model(), GRPOConfig(lora_rank=4)) if adapter else model()
    return make_learner(trained, settings(**options), ranks=ranks, dtype=dtype, reference=reference)


def keep_weights(folder: Path, name: str, of: Learner) -> None:
    tensors = weights(of)
    if of.ranks.is_main:
        save_file(tensors, folder / f"{name}.safetensors")


def keep(folder: Path, name: str, ranks: Ranks, value: Any) -> None:
    (folder / f"{name}-{ranks.rank}.json").write_text(json.dumps(value))


def steps(folder: Path, ranks: Ranks) -> None:
    for name, options in STEPS.items():
        trained = learner(ranks, **options)
        report = update(trained, groups())
        keep(folder, name, ranks, report.grad_norms)
        keep_weights(folder, name, trained)
    lonely = learner(ranks)
    update(lonely, lonely_groups())
    keep_weights(folder, "lonely", lonely)


def one_rank_breaks(folder: Path, ranks: Ranks) -> None:
    trained = learner(ranks)
    bad = math.nan if ranks.rank == 1 else 0.0
    report = update(
        trained, groups(), spoil=lambda loss, metrics: (loss, {**metrics, "policy/loss": (torch.tensor(bad), 1)})
    )
    keep(folder, "one_rank_breaks", ranks, [report.skipped, report.optimizer_steps, trained.nonfinite_in_a_row])
    keep_weights(folder, "one_rank_breaks", trained)


def checkpoints(folder: Path, ranks: Ranks) -> None:
    trained = learner(ranks, **ADAM)
    update(trained, groups())
    trained.score(PAIRS)  # as after a push: the root of the sharded model was gathered for it
    save_checkpoint(folder / "of_two", 1, trained, {"version": 1}, keep=None)
    update(trained, groups())
    keep_weights(folder, "after_of_two", trained)
    resumed = learner(ranks, **ADAM)
    load_checkpoint(folder / "of_one" / "step_000001", resumed)
    update(resumed, groups())
    keep_weights(folder, "after_of_one", resumed)
    resumed.save_model(str(folder / "model"), tiny_tokenizer())


def pair(ranks: Ranks, *, dtype: str = "float32", **options: Any) -> Learner:
    """Policy and critic. The first phase of the critic moves the head alone: it is zero, and nothing behind it counts."""
    chosen = {"algorithm": "ppo", "minibatches": 2, "max_tokens_per_microbatch": 40, "critic_learning_rate": 0.05}
    return make_pair(model(), settings(**{**chosen, **options}), ranks=ranks, dtype=dtype)


def keep_critic(folder: Path, name: str, of: Learner) -> None:
    tensors = critic_weights(of)
    if of.ranks.is_main:
        save_file(tensors, folder / f"{name}.safetensors")


def critics(folder: Path, ranks: Ranks) -> None:
    trained = pair(ranks)
    reports = [update_critic(trained, groups()) for _ in range(2)]
    keep(folder, "critic", ranks, [norm for report in reports for norm in report.grad_norms])
    keep_critic(folder, "critic", trained)
    assert trained.critic is not None
    values = trained.critic.values(make_batch(groups(), 0, ranks.device))
    keep(folder, "critic_values", ranks, values.tolist())
    trained.critic.save(folder / "critic", tiny_tokenizer())
    save_checkpoint(folder / "pair_of_two", 1, trained, {"version": 1}, keep=None)
    update_critic(trained, groups())
    keep_critic(folder, "after_pair_of_two", trained)
    resumed = pair(ranks)
    load_checkpoint(folder / "pair_of_one" / "step_000001", resumed)
    update_critic(resumed, groups())
    keep_critic(folder, "after_pair_of_one", resumed)
    mixed = pair(ranks, dtype="bfloat16", **ADAM)
    update_critic(mixed, groups())
    assert mixed.critic is not None
    keep(folder, "critic_bfloat16", ranks, mixed.critic.values(make_batch(groups(), 0, ranks.device)).tolist())


def bfloat16(folder: Path, ranks: Ranks) -> None:
    trained = learner(ranks, dtype="bfloat16", **ADAM)
    trained.score(PAIRS)
    keep_weights(folder, "bfloat16_scored", trained)
    update(trained, groups())
    keep_weights(folder, "bfloat16_updated", trained)
    adapted = learner(ranks, dtype="bfloat16", adapter=True, learning_rate=0.1)
    update(adapted, groups())
    keep_weights(folder, "bfloat16_adapter", adapted)
    adapted.save_model(str(folder / "adapter"), tiny_tokenizer())


def messages(folder: Path, ranks: Ranks) -> None:
    sent = [ranks.broadcast(message if ranks.is_main else None) for message in (b"", b"\0tokens\xff", bytes(70_000))]
    keep(folder, "messages", ranks, [len(sent[0]), sent[1].hex(), len(sent[2])])
    keep(folder, "sums", ranks, [ranks.sum([1.0, 2.0**53]), ranks.max([float(ranks.rank), -1.0]), ranks.sum([])])


if __name__ == "__main__":
    me = this_rank()
    for scenario in (steps, one_rank_breaks, checkpoints, critics, bfloat16, messages):
        scenario(Path(sys.argv[1]), me)
    torch.distributed.destroy_process_group()
