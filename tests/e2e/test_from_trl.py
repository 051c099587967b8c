"""A script's settings as TRL has them: TRL's trainer and ours make the same steps of them, on as many completions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_model_dir
from postrl import GRPOConfig, GRPOTrainer
from postrl.errors import PostrlError
from postrl.rollout.store import read_rollouts, stored_steps
from postrl.run.metrics import read_metrics
from verdicts import even

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.slow

ROWS = [{"prompt": f"Say {number}."} for number in range(16)]
SEVERAL = {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2, "warmup_steps": 0.25,
           "num_train_epochs": 2, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_model_dir(tmp_path_factory.mktemp("from_trl") / "tiny"))


def by_trl(model: str, args: Any) -> tuple[list[float], int]:
    """The learning rate of each optimizer step of TRL's trainer, and how many completions it scored in training."""
    import datasets
    from transformers import TrainerCallback

    rates: list[float] = []
    scored = 0

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            rates.append(optimizer.param_groups[0]["lr"])

    def reward(completions: list[str], **_: Any) -> list[float]:
        nonlocal scored
        scored += len(completions)
        return [float(len(completion)) for completion in completions]

    rows = datasets.Dataset.from_list(ROWS)
    trl.GRPOTrainer(model=model, reward_funcs=reward, args=args, train_dataset=rows, callbacks=[Watch()]).train()
    return rates, scored


def by_us(model: str, config: GRPOConfig) -> tuple[list[float], int, int]:
    """The learning rate of the last optimizer step of each batch, how many there are, and how many completions."""
    with closing(GRPOTrainer(model=model, reward_funcs=even, args=config, train_dataset=ROWS)) as trainer:
        trainer.train()
    folder = Path(config.output_dir)
    groups = [group for file in stored_steps(folder) for group in read_rollouts(file)]
    rates = [row["policy/lr"] for row in read_metrics(folder / "metrics.jsonl")]
    return rates, len(rates) * config.minibatches * config.num_iterations, sum(len(group.rollouts) for group in groups)


@pytest.mark.parametrize("settings", [{}, SEVERAL], ids=["nothing set", "several optimizer steps a batch"])
def test_the_same_settings_make_as_many_steps_on_as_many_completions_with_the_same_learning_rates(
    model, tmp_path, settings
):
    args = trl.GRPOConfig(
        output_dir=str(tmp_path / "trl"),
        use_cpu=True,
        bf16=False,
        max_completion_length=4,
        report_to="none",
        **settings,
    )
    theirs, scored = by_trl(model, args)
    config = GRPOConfig(**{**args.to_dict(), "output_dir": str(tmp_path / "ours")})
    ours, steps, completions = by_us(model, config)
    assert (steps, completions) == (len(theirs), scored)
    each = steps // len(ours)
    assert ours == pytest.approx(theirs[each - 1 :: each], rel=1e-6, abs=1e-15)
    if not settings:
        assert (steps, completions) == (48, 384)


def test_completions_are_shown_and_the_model_is_uploaded_with_every_checkpoint(model, tmp_path, monkeypatch):
    uploads: list[Any] = []

    def upload(folder: Path, place: str, message: str) -> str:
        uploads.append((sorted(file.name for file in folder.glob("*.safetensors")), place))
        if len(uploads) == 2:
            raise PostrlError("the hub is away")
        return place

    monkeypatch.setenv("HF_TOKEN", "of nobody")
    monkeypatch.setattr("postrl.scripts.names.push_model", upload)
    config = GRPOConfig(
        output_dir=str(tmp_path / "mine"), per_device_train_batch_size=8, max_completion_length=4, max_steps=3, save_steps=1,
        push_to_hub=True, log_completions=True, num_completions_to_print=2, logging_steps=2, bf16=False,
    )  # fmt: skip
    by_us(model, config)
    assert uploads == [(["model.safetensors"], "mine")] * 3
    notes = (tmp_path / "mine" / "logs" / "notes.log").read_text().splitlines()
    assert "not uploaded: the hub is away" in notes and notes.count("uploaded to mine") == 2
    shown = [note for note in notes if " -> " in note and "(reward " in note]
    assert len(shown) == 2 and all("Say " in note for note in shown), (
        "two of step 2, which is the only one of two steps"
    )


def test_a_script_of_trls_that_sets_only_its_folder_and_precision_makes_trls_48_steps(model, tmp_path):
    config = GRPOConfig(output_dir=str(tmp_path / "run"), bf16=False, max_completion_length=4)
    _, steps, completions = by_us(model, config)
    assert (steps, completions) == (48, 384)
