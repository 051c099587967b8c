"""What a run is made of, from its settings."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from helpers import TURN_END, base_model_dir, tiny_model_dir, tiny_tokenizer
from learning.batches import make_groups
from postrl import GRPOConfig, GRPOTrainer
from postrl.errors import DataError, PostrlError, UsageError
from postrl.learning.checkpoint import PENDING
from postrl.rollout.store import read_rollouts, write_rollouts
from postrl.run.metrics import read_metrics
from postrl.session import _pending, resolve_algorithm
from verdicts import token_sums


def test_correction_bounds_and_dual_clip_reach_the_algorithm():
    a = resolve_algorithm(GRPOConfig(is_correction="icepop", is_low=0.4, is_high=4, dual_clip=3))
    assert (a.is_correction, a.bounds, a.dual_clip) == ("icepop", {"low": 0.4, "high": 4.0}, 3.0)
    assert resolve_algorithm(GRPOConfig(is_correction="seed", is_eps=0.3)).bounds == {"eps": 0.3}
    assert resolve_algorithm(GRPOConfig(is_correction="opsm", is_delta=0.5)).bounds == {"delta": 0.5}
    assert resolve_algorithm(GRPOConfig()).bounds == {}


def replayed(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Metrics of two steps on stored rollouts with a tiny model."""
    tiny_model_dir(folder / "tiny")
    for step in (1, 2):
        write_rollouts(folder / "stored" / "rollouts", step, "train", make_groups(seed=step))
    config = GRPOConfig(
        output_dir=str(folder / "run"), replay=str(folder / "stored"), max_completion_length=16, prompts_per_step=4,
        num_generations=4, learning_rate=1e-3, beta=0.1, **settings,
    )  # fmt: skip
    with closing(GRPOTrainer(model=str(folder / "tiny"), args=config)) as trainer:
        trainer.train()
    return read_metrics(folder / "run" / "metrics.jsonl")


def test_a_reference_that_follows_is_the_policy_again_after_its_step(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    stays = replayed(tmp_path / "a")
    follows = replayed(tmp_path / "b", sync_ref_model=True, ref_model_sync_steps=1, ref_model_mixup_alpha=1.0)
    assert stays[0]["policy/kl_ref"] == follows[0]["policy/kl_ref"] == pytest.approx(0.0, abs=1e-6)
    assert stays[1]["policy/kl_ref"] > 1e-4 > abs(follows[1]["policy/kl_ref"])


def test_a_reference_under_a_scripts_adapter_cannot_follow(tmp_path):
    from peft import LoraConfig

    tiny_model_dir(tmp_path / "tiny")
    config = GRPOConfig(
        output_dir=str(tmp_path / "run"), dataset=["arithmetic"], engine="transformers", beta=0.1, sync_ref_model=True
    )
    adapter = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    with pytest.raises(UsageError, match="sync_ref_model is on, and the reference of a model with an adapter"):
        GRPOTrainer(model=str(tmp_path / "tiny"), args=config, peft_config=adapter).train()


@pytest.fixture(scope="module")
def turns(tmp_path_factory) -> Path:
    """A run of a base model with a chat template, on conversations and plain text."""
    folder = tmp_path_factory.mktemp("turns")
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {i} + 2?"}] if i % 2 else f"{i} + 2 is"} for i in range(8)
    ]
    config = GRPOConfig(
        output_dir=str(folder / "run"), engine="transformers", max_steps=2, prompts_per_step=8, num_generations=4,
        max_completion_length=24, learning_rate=1e-3, shuffle=False, seed=1,
    )  # fmt: skip
    with closing(
        GRPOTrainer(
            model=str(base_model_dir(folder / "base")), reward_funcs=token_sums, args=config, train_dataset=rows,
            eval_dataset=rows,
        )
    ) as trainer:  # fmt: skip
        trainer.train()
    return folder / "run"


def ends_of(run: Path, name: str, *, conversations: bool) -> list[tuple[int, int, str]]:
    """(place of the first end of a turn or -1, tokens, finish reason) of each stored completion."""
    end = tiny_tokenizer().convert_tokens_to_ids(TURN_END)
    groups = [group for file in sorted((run / "rollouts").glob(f"{name}_*.parquet")) for group in read_rollouts(file)]
    rollouts = [r for group in groups if (group.messages is not None) == conversations for r in group.rollouts]
    return [
        (r.completion_ids.index(end) if end in r.completion_ids else -1, len(r.completion_ids), r.finish_reason)
        for r in rollouts
    ]


@pytest.mark.parametrize("name", ["step", "eval"])
def test_no_completion_of_a_conversation_goes_on_after_its_turn(turns, name):
    found = ends_of(turns, name, conversations=True)
    assert all(place in (-1, length - 1) for place, length, _ in found)
    assert {reason for place, _, reason in found if place >= 0} == {"stop"}
    plain = ends_of(turns, name, conversations=False)
    assert any(-1 < place < length - 1 for place, length, _ in plain), "plain text ends by the eos settings alone"


def test_what_ends_a_turn_is_said_once_and_saved_with_the_model(turns):
    notes = (turns / "logs" / "notes.log").read_text()
    assert notes.count("completions of conversations end at <|im_end|>: the chat template") == 1
    eos, end = tiny_tokenizer().convert_tokens_to_ids(["<|endoftext|>", TURN_END])
    generation = json.loads((turns / "model" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [eos, end]


def test_a_tokenizer_with_a_token_that_the_model_has_not_ends_before_the_first_step(tmp_path):
    tokenizer = tiny_tokenizer()
    known = len(tokenizer)
    tokenizer.add_tokens(["<think>"])
    config = GRPOConfig(output_dir=str(tmp_path / "run"), engine="transformers", max_steps=1)
    trainer = GRPOTrainer(
        model=str(tiny_model_dir(tmp_path / "tiny")), reward_funcs=token_sums, args=config, processing_class=tokenizer,
        train_dataset=[{"prompt": "one"}, {"prompt": "two <think>"}],
    )  # fmt: skip
    with closing(trainer), pytest.raises(DataError, match=f"train:1 has the token {known} .*<think>.* {known} tokens"):
        trainer.train()


def test_a_script_hears_that_all_rewards_are_equal_and_that_nothing_was_learned(tmp_path, capsys):
    config = GRPOConfig(
        output_dir=str(tmp_path / "run"), engine="transformers", max_steps=3, prompts_per_step=5, num_generations=2,
        max_completion_length=8,
    )  # fmt: skip
    with closing(
        GRPOTrainer(
            model=str(tiny_model_dir(tmp_path / "tiny")),
            reward_funcs=lambda completions: [0.5] * len(completions),
            args=config,
            train_dataset=[{"prompt": "one"}, {"prompt": "two"}],
        )
    ) as trainer:
        trainer.train()
    heard = capsys.readouterr().err
    assert heard.count("100% of the groups in the last 3 steps taught nothing") == 1
    assert "nothing was learned: 100% of the groups in 3 steps taught nothing" in heard
    assert "All got 0.5: does the reward look at the completion?" in heard
    assert "prompts_per_step asks for 5 prompts, and there are 2: a step takes each 2.5 times" in heard


def test_a_checkpoint_whose_groups_are_of_another_version_is_refused_by_its_name(tmp_path):
    (tmp_path / PENDING).write_bytes(b"PRL1" + bytes(40))
    with pytest.raises(PostrlError, match=f"checkpoint {tmp_path} cannot be resumed: .* of another version") as caught:
        _pending(tmp_path)
    assert "delete it to use the one before" in caught.value.hint
