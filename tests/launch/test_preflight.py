"""What the command line and a script's train() refuse alike, before anything is started."""

from __future__ import annotations

import json

import pytest
from peft import LoraConfig
from transformers import BitsAndBytesConfig

from helpers import tiny_model, tiny_tokenizer
from postrl import GRPOConfig, GRPOTrainer
from postrl.config.python_hints import in_python
from postrl.errors import DataError, UsageError
from postrl.given import Given
from postrl.launch.preflight import check_data, preflight
from postrl.rewards.registry import resolve


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the configuration of a model that reads 600 tokens."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 600})
    )
    (tmp_path / "r.py").write_text("def score(completions, gold, **rest): ...\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1?", "label": "2"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


FITS = {"max_prompt_length": 500, "max_completion_length": 100, "engine": "transformers", "prompts_per_step": 1}
WRONG = [
    ({"reward": ["judge"]}, "reward judge needs the option url and model"),
    ({"reward_arg": ["math.levels=2"], "reward": ["math"]}, "reward math has no option 'levels'"),
    ({"max_prompt_length": 501}, "501 + 100 = 601 tokens exceed the context of m, 600 tokens"),
    ({"max_completion_length": 600}, "500 + 600 = 1100 tokens exceed the context of m"),
    ({"max_model_len": 599, "engine": "vllm"}, "500 + 100 = 600 tokens exceed max_model_len = 599"),
    ({"chat_template": "no.jinja"}, "cannot read the chat template no.jinja"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_a_script_is_refused_as_the_command_line_is(folder, monkeypatch, settings, message):
    monkeypatch.setattr("postrl.launch.preflight.check_model", lambda *args, **options: None)  # it has no weights here
    settings = {"reward": ["math"], **FITS, **settings}
    with pytest.raises(UsageError) as by_command:
        preflight(GRPOConfig(model="m", dataset=["rows.jsonl"], **settings))
    trainer = GRPOTrainer(
        "m", args=GRPOConfig(output_dir="run", **settings), train_dataset=[{"prompt": "1+1?", "answer": "2"}]
    )
    with pytest.raises(UsageError) as by_script:
        trainer.train()
    assert message in by_command.value.message
    assert by_script.value.message == by_command.value.message
    assert by_script.value.hint == in_python(by_command.value.hint)
    assert not (folder / "run").exists()


def quantised(model):
    model.config.quantization_config = BitsAndBytesConfig(load_in_4bit=True)
    return model


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (quantised, r"the weights of the LlamaForCausalLM are quantised \(bitsandbytes\)"),
        (lambda model: model.requires_grad_(False), r"all weights of the LlamaForCausalLM are frozen"),
    ],
)
def test_a_loaded_model_that_cannot_be_trained_is_refused(folder, spoil, message):
    args = GRPOConfig(output_dir="run", reward=["math"], **FITS)
    rows = [{"prompt": "1+1?", "answer": "2"}]
    trainer = GRPOTrainer(spoil(tiny_model()), args=args, train_dataset=rows, processing_class=tiny_tokenizer())
    with pytest.raises(UsageError, match=message):
        trainer.train()
    assert not (folder / "run").exists()


def test_a_frozen_model_is_the_base_of_an_adapter(folder):
    given = Given(tiny_model().requires_grad_(False), LoraConfig(task_type="CAUSAL_LM"), tokenizer=tiny_tokenizer())
    preflight(GRPOConfig(dataset=["arithmetic"], **FITS), given)


def test_a_quantised_model_in_the_hubs_cache_is_refused(folder, monkeypatch):
    config = {"model_type": "llama", "quantization_config": {"quant_method": "awq"}}
    (folder / "m" / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("postrl.launch.model.hub_is_reachable", lambda: True)
    monkeypatch.setattr("postrl.launch.model.cached_snapshot", lambda name, revision: folder / "m")
    with pytest.raises(UsageError, match=r"the weights of owner/name are quantised \(awq\)"):
        preflight(GRPOConfig(model="owner/name", dataset=["arithmetic"], **FITS))


def test_lengths_that_fit_and_stored_rollouts_are_not_refused(folder, monkeypatch):
    monkeypatch.setattr("postrl.launch.preflight.check_model", lambda *args, **options: None)  # it has no weights here
    data = {"dataset": ["arithmetic"]}
    preflight(GRPOConfig(model="m", **data, **FITS))
    preflight(GRPOConfig(model="m", replay="elsewhere", max_prompt_length=5000, max_completion_length=5000))
    preflight(GRPOConfig(model="owner/unknown", max_prompt_length=5000, **data))


def test_data_that_something_scores_passes(folder):
    check_data(GRPOConfig(dataset=["arithmetic"]))
    check_data(GRPOConfig(dataset=["arithmetic", "rows.jsonl=0.5"], reward=["format"]))
    check_data(GRPOConfig(dataset=["rows.jsonl"]), [resolve("format")])


def test_data_that_nothing_scores_is_refused(folder):
    with pytest.raises(UsageError, match=r"no reward is given, and rows\.jsonl has none of its own"):
        check_data(GRPOConfig(dataset=["rows.jsonl"]))


def test_a_sandbox_that_does_not_work_here_is_refused_for_a_script_too(folder, monkeypatch):
    monkeypatch.setattr("postrl.launch.preflight.check_model", lambda *args, **options: None)

    def choose(level: str) -> None:
        raise UsageError(f"sandbox level {level} does not work here")

    monkeypatch.setattr("postrl.rewards.code.sandbox.choose", choose)
    trainer = GRPOTrainer(
        "m",
        "code",
        args=GRPOConfig(output_dir="run", sandbox="strict", **FITS),
        train_dataset=[{"prompt": "f", "tests": []}],
    )
    with pytest.raises(UsageError, match="sandbox level strict does not work here"):
        trainer.train()
    assert not (folder / "run").exists()


def test_a_column_that_a_reward_asks_for_is_missed_before_anything_starts(folder, monkeypatch):
    monkeypatch.setattr("postrl.launch.preflight.check_model", lambda *args, **options: None)  # it has no weights here
    config = GRPOConfig(model="m", dataset=["rows.jsonl"], reward=["r.py:score"], **FITS)
    with pytest.raises(UsageError, match="reward function score asks for gold, and rows has no such column") as error:
        preflight(config)
    assert "gold=None" in error.value.hint
    config.reward_arg = ["score.gold=7"]
    preflight(config)
    (folder / "rows.jsonl").write_text('{"prompt": "1+1?", "gold": "2"}\n{"prompt": "2+2?"}\n')
    config.reward_arg = []
    preflight(config)


def test_an_evaluation_file_that_is_not_there_is_missed_too(folder, monkeypatch):
    monkeypatch.setattr("postrl.launch.preflight.check_model", lambda *args, **options: None)  # it has no weights here
    config = GRPOConfig(model="m", dataset=["arithmetic"], eval_dataset="no.jsonl", **FITS)
    with pytest.raises(DataError, match=r"no\.jsonl does not exist"):
        preflight(config)
