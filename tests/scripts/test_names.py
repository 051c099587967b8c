"""The names of TRL's trainer, in a run of two steps inside this process."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
import torch
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback
from trl import RichProgressCallback

from helpers import tiny_model, tiny_model_dir, tiny_tokenizer
from postrl import GRPOConfig, GRPOTrainer, PostrlError
from postrl.errors import UsageError
from postrl.scripts.hooks import HOOKS

ROWS = [{"prompt": f"What is {n}?", "n": n} for n in range(8)]


def even(completion_ids, **columns):
    return [sum(token % 7 for token in ids) / (7 * len(ids)) for ids in completion_ids]


class Samples(TrainerCallback):
    """Prints a completion, as sample-printing callbacks do."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.asked = 0

    def on_step_end(self, args, state, control, model=None, processing_class=None, **kwargs):
        ids = processing_class("What is", return_tensors="pt").to(model.device)
        with torch.no_grad():
            out = model.generate(**ids, max_new_tokens=2, do_sample=False)
        self.seen.append(processing_class.decode(out[0]))
        control.should_evaluate = state.global_step == 1
        return control

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.asked += state.global_step == 1 and "eval_reward" in metrics


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    tiny_model_dir(folder / "tiny")
    return folder


def settings(folder, name, **more):
    return GRPOConfig(
        output_dir=str(folder / name),
        engine="transformers",
        prompts_per_step=2,
        num_generations=2,
        max_steps=2,
        max_completion_length=8,
        dtype="float32",
        save_steps=0,
        **more,
    )


@pytest.fixture(scope="module")
def trained(folder):
    """A trainer that has made its two steps, with callbacks of transformers, TRL and a script's own; and what train() gave."""
    named = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "metric_for_best_model": "reward"}
    args = settings(folder, "run", lr_scheduler_type="constant", **named)
    trainer = GRPOTrainer(
        model=str(folder / "tiny"),
        reward_funcs=[even],
        args=args,
        train_dataset=ROWS,
        eval_dataset=ROWS[:2],
        reward_processing_classes=[None],
        callbacks=[EarlyStoppingCallback(9), TensorBoardCallback, ProgressCallback, PrinterCallback],
    )
    assert trainer.state.global_step == 0
    before = {name: parameter.clone() for name, parameter in trainer.model.named_parameters()}
    samples = Samples()
    trainer.add_callback(samples)
    trainer.add_callback(RichProgressCallback)
    with closing(trainer):
        yield trainer, trainer.train(), before, samples


def test_training_returns_what_transformers_returns_beside_the_last_metrics(trained):
    trainer, result, _, _ = trained
    assert result["reward/mean"] == trainer.reporter.last["reward/mean"]
    assert result.global_step == trainer.state.global_step == 2
    assert result.training_loss == result.metrics["train_loss"]
    assert result.metrics["train_runtime"] > 0


def test_the_model_of_before_is_the_one_that_was_trained(trained):
    trainer, _, before, _ = trained
    after = dict(trainer.model.named_parameters())
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert trainer.accelerator.unwrap_model(trainer.model) is trainer.model


def test_callbacks_of_others_have_run(trained, folder):
    trainer, _, _, samples = trained
    assert len(samples.seen) == 2 and samples.asked == 1
    assert list((folder / "run").glob("**/events.out.tfevents*"))
    assert trainer.state.best_metric is not None
    logged = [row for row in trainer.state.log_history if "reward" in row]
    assert [row["step"] for row in logged] == [1, 2]
    assert {"rewards/even/mean", "loss", "learning_rate", "completions/mean_length", "reward/mean"} <= logged[0].keys()


def test_the_other_names_are_there(trained):
    trainer = trained[0]
    assert trainer.processing_class is trainer.tokenizer
    assert trainer.processing_class.decode(trainer.processing_class("12")["input_ids"]) == "12"
    assert (trainer.train_dataset, trainer.eval_dataset, trainer.reward_funcs) == (ROWS, ROWS[:2], [even])
    assert trainer.lr_scheduler.get_last_lr() == [trainer.args.learning_rate]
    assert isinstance(trainer.optimizer, torch.optim.Optimizer)
    assert (trainer.ref_model, trainer.hub_model_id) == (None, None)
    assert trainer.is_world_process_zero() and trainer.is_local_process_zero()
    assert trainer.accelerator.is_main_process and trainer.accelerator.num_processes == 1
    trainer.accelerator.wait_for_everyone()
    assert isinstance(trainer.pop_callback(PrinterCallback), PrinterCallback)
    assert trainer.pop_callback(PrinterCallback) is None


def test_metrics_and_state_are_written_as_transformers_writes_them(trained, folder, capsys):
    trainer, result, _, _ = trained
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    trainer.log({"mine": 1.0})
    assert "train_loss" in capsys.readouterr().out
    assert json.loads((folder / "run" / "train_results.json").read_text()) == result.metrics
    assert json.loads((folder / "run" / "trainer_state.json").read_text())["global_step"] == 2
    assert trainer.state.log_history[-1]["mine"] == 1.0


def test_the_model_card_says_what_was_trained_and_how_it_went(trained, folder):
    trainer = trained[0]
    trainer.create_model_card(dataset_name="me/rows", tags="maths")
    card = (folder / "run" / "model" / "README.md").read_text()
    head = card.split("---")[1]
    assert f'base_model: "{folder}/tiny"' in head and '"maths"' in head and 'datasets: ["me/rows"]' in head
    assert "| learning_rate | 1e-06 |" in card
    assert "| reward/mean | " in card and "| transformers | " in card
    assert str(folder) not in card.split("## Training")[1]


def test_the_hub_gets_the_model_with_its_card(trained, monkeypatch):
    trainer, pushed = trained[0], []
    monkeypatch.setattr("postrl.scripts.names.push_model", lambda *args: pushed.append(args) or "address")
    assert trainer.push_to_hub(dataset_name="me/rows", blocking=True) == "address"
    ((folder, name, message),) = pushed
    assert (name, message) == ("run", "Trained with postrl")
    assert (folder / "README.md").exists() and (folder / "model.safetensors").exists()


def test_a_second_training_says_that_nothing_is_left(trained, folder):
    trainer = trained[0]
    assert trainer.train().global_step == 2
    assert "all 2 steps are trained" in (folder / "run" / "logs" / "notes.log").read_text()


def test_a_name_that_is_not_there_says_where_to_look(trained):
    trainer = trained[0]
    for name, where in (
        ("predict", "evaluate"),
        ("_metrics", "metrics.jsonl"),
        ("llm", "vLLM"),
        ("nothing", "from_trl"),
    ):
        with pytest.raises(AttributeError, match=f"GRPOTrainer has no {name}: .*{where}"):
            getattr(trainer, name)


def test_an_adapter_can_be_looked_at_before_it_is_trained(folder):
    from peft import LoraConfig, PeftModel

    trainer = GRPOTrainer(
        tiny_model(),
        even,
        settings(folder, "lora"),
        ROWS,
        processing_class=tiny_tokenizer(),
        peft_config=LoraConfig(r=2, target_modules=["q_proj"]),
    )
    assert isinstance(trainer.model, PeftModel)
    before = {name: p.clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    with closing(trainer):
        trainer.train()
    after = dict(trainer.model.named_parameters())
    assert before and any(not torch.equal(before[name], after[name]) for name in before)
    assert not hasattr(trainer.model.merge_and_unload(), "peft_config")


def test_a_closed_trainer_says_where_its_model_is(folder):
    trainer = GRPOTrainer(str(folder / "tiny"), even, settings(folder, "closed"), ROWS)
    with closing(trainer):
        trainer.train()
    with pytest.raises(PostrlError, match=r"what was trained is in .*closed/model"):
        _ = trainer.model


@pytest.mark.parametrize("hook", ["compute_loss", "_generate_and_score_completions", "log", "get_train_dataloader"])
def test_overriding_what_is_never_called_is_refused(hook):
    assert hook in HOOKS
    with pytest.raises(UsageError, match=f"Mine overrides {hook}"):
        type("Mine", (GRPOTrainer,), {hook: lambda self: None})


def test_a_subclass_may_override_what_the_loop_calls():
    class Mine(GRPOTrainer):
        def update(self, batch):
            return super().update(batch)

        def save_model(self, output_dir=None):
            super().save_model(output_dir)

    assert issubclass(Mine, GRPOTrainer)


def test_arguments_of_trls_trainer_that_mean_something_else_are_refused_by_name():
    with pytest.raises(UsageError, match="no argument tools, rollout_func") as caught:
        GRPOTrainer("tiny", even, tools=[print], rollout_func=print, environment_factory=None, optimizers=(None, None))
    assert "no loop that calls tools" in str(caught.value)
    with pytest.raises(UsageError, match="did you mean train_dataset"):
        GRPOTrainer("tiny", even, train_datasets=ROWS)
