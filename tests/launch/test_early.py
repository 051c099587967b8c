"""What the command line and a script's train() refuse alike, before anything is started."""

from __future__ import annotations

import json

import pytest

from postrl import GRPOConfig, GRPOTrainer
from postrl.errors import DataError, UsageError
from postrl.launch.early import check_early
from postrl.launch.run import check


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
    monkeypatch.setattr("postrl.launch.script.check_model", lambda *args, **options: None)  # it has no weights here
    monkeypatch.setattr("postrl.launch.run.check_model", lambda *args, **options: None)
    settings = {"reward": ["math"], **FITS, **settings}
    with pytest.raises(UsageError) as by_command:
        check(GRPOConfig(model="m", dataset=["rows.jsonl"], **settings))
    trainer = GRPOTrainer(
        "m", args=GRPOConfig(output_dir="run", **settings), train_dataset=[{"prompt": "1+1?", "answer": "2"}]
    )
    with pytest.raises(UsageError) as by_script:
        trainer.train()
    assert message in by_command.value.message
    assert str(by_script.value) == str(by_command.value)
    assert not (folder / "run").exists()


def test_lengths_that_fit_and_stored_rollouts_are_not_refused(folder):
    check_early(GRPOConfig(model="m", **FITS))
    check_early(GRPOConfig(model="m", replay="elsewhere", max_prompt_length=5000, max_completion_length=5000))
    check_early(GRPOConfig(model="owner/unknown", max_prompt_length=5000))


def test_a_column_that_a_reward_asks_for_is_missed_before_anything_starts(folder, monkeypatch):
    monkeypatch.setattr("postrl.launch.run.check_model", lambda *args, **options: None)
    config = GRPOConfig(model="m", dataset=["rows.jsonl"], reward=["r.py:score"], **FITS)
    with pytest.raises(UsageError, match="reward function score asks for gold, and rows has no such column") as error:
        check(config)
    assert "gold=None" in error.value.hint
    config.reward_arg = ["score.gold=7"]
    check(config)
    (folder / "rows.jsonl").write_text('{"prompt": "1+1?", "gold": "2"}\n{"prompt": "2+2?"}\n')
    config.reward_arg = []
    check(config)


def test_an_evaluation_file_that_is_not_there_is_missed_too(folder, monkeypatch):
    monkeypatch.setattr("postrl.launch.run.check_model", lambda *args, **options: None)
    config = GRPOConfig(model="m", dataset=["arithmetic"], eval_dataset="no.jsonl", **FITS)
    with pytest.raises(DataError, match=r"no\.jsonl does not exist"):
        check(config)
