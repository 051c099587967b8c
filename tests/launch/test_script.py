"""What a script's objects become for servers, which only load folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers import tiny_model, tiny_model_dir, tiny_tokenizer
from postrl import GRPOTrainer
from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.given import Given
from postrl.launch.script import _model_path, _peft_config
from postrl.run.folder import RunFolder


def saved(tmp_path: Path, given: Given, **options: str) -> Path:
    return Path(_model_path(GRPOConfig(engine="vllm", **options), given, RunFolder(tmp_path / "run")))


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("adapter", [True, False])
def test_a_model_that_is_an_object_is_saved_without_its_adapter(tmp_path: Path, tie: bool, adapter: bool) -> None:
    model = tiny_model(tie=tie)
    if adapter:
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    path = saved(tmp_path, Given(model=model, tokenizer=tiny_tokenizer()))
    loaded = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    expected = dict(tiny_model(tie=tie).named_parameters())
    assert {name: torch.equal(p, expected[name]) for name, p in loaded.named_parameters()} == dict.fromkeys(
        expected, True
    )


def test_the_adapter_that_servers_make_room_for_is_the_scripts() -> None:
    asked, own = LoraConfig(r=2), LoraConfig(r=4, target_modules=["q_proj"])
    assert _peft_config(Given()) is None and _peft_config(Given(model=tiny_model())) is None
    assert _peft_config(Given(model=tiny_model(), peft_config=asked)) is asked
    assert _peft_config(Given(model=get_peft_model(tiny_model(), own))) == own


def test_its_tokenizer_is_that_of_where_it_came_from(tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path / "model")
    path = saved(tmp_path, Given(model=tiny_model()), model=str(folder))
    assert AutoTokenizer.from_pretrained(path)("What is")["input_ids"] == tiny_tokenizer()("What is")["input_ids"]


def test_a_model_that_is_a_folder_stays_where_it_is(tmp_path: Path) -> None:
    folder = tiny_model_dir(tmp_path / "model")
    assert saved(tmp_path, Given(), model=str(folder)) == folder


def test_a_script_that_cannot_start_leaves_no_folder_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "one"}, {"prompt": "two"}]
    trainer = GRPOTrainer("./nowhere", lambda completions, **columns: [0.0], train_dataset=rows)
    for _ in range(2):
        with pytest.raises(UsageError, match="no model folder"):
            trainer.train()
    assert list(Path("runs").iterdir()) == []
