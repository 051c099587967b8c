"""--model ADAPTER: the settings of the run that goes on from it, and adapters that none can go on from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from helpers import tiny_model, tiny_model_dir, tiny_tokenizer
from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.launch.adapters import AdapterPlan, adapter_plan
from postrl.launch.model import check_model, with_adapter
from postrl.learning.loading import load_model, load_tokenizer, with_lora
from postrl.models.adapter import find_adapter
from postrl.trainer import GRPOTrainer

TARGETS = ["q_proj", "v_proj"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("base") / "tiny")


def saved(base: Path, folder: Path, config: Any = None, **change: Any) -> str:
    """As TRL's SFT leaves one: trained, without a tokenizer."""
    config = config or LoraConfig(
        r=4, lora_alpha=12, lora_dropout=0.1, target_modules=TARGETS, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    model = get_peft_model(tiny_model(), config)
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(str(folder))
    settings = folder / "adapter_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **change}))
    return str(folder)


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(base, tmp_path_factory.mktemp("sft"))


def test_an_adapter_as_model_means_its_base_and_its_own_lora_settings(base: Path, adapter: str) -> None:
    config = with_adapter(GRPOConfig(model=adapter))
    assert (config.model, config.adapter) == (str(base), adapter)
    assert (config.lora_rank, config.lora_alpha, config.lora_target_modules) == (4, 12, TARGETS)
    check_model(config)
    assert with_adapter(config) == config  # as a resumed run has it
    assert with_adapter(GRPOConfig(model=str(base), adapter=adapter)) == config
    assert GRPOTrainer(model=adapter, reward_funcs="math").args.adapter == adapter
    assert with_adapter(plain := GRPOConfig(model=str(base))) == plain and find_adapter("") is None


@pytest.mark.parametrize(
    "given",
    [{"lora_rank": 8}, {"lora_alpha": 8}, {"lora_target_modules": ["q_proj"]}],
    ids=lambda given: next(iter(given)),
)
def test_settings_that_contradict_the_adapter_are_refused(adapter: str, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(given))} is .*, and the adapter .* has"):
        with_adapter(GRPOConfig(model=adapter, **given))
    with_adapter(GRPOConfig(model=adapter, lora_rank=4, lora_alpha=12, lora_target_modules=TARGETS[::-1]))


def test_the_policy_that_is_trained_is_base_and_adapter(adapter: str) -> None:
    config = with_adapter(GRPOConfig(model=adapter))
    policy = with_lora(load_model(config, config.model), config).eval()
    expected = PeftModel.from_pretrained(tiny_model(), adapter).eval()
    ids = torch.arange(1, 30)[None]
    with torch.no_grad():
        assert torch.equal(policy(input_ids=ids).logits, expected(input_ids=ids).logits)
    assert {name.split(".")[-3] for name, p in policy.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}
    assert policy.peft_config["default"].lora_dropout == 0.0  # that was of its own training


def test_a_tokenizer_beside_the_adapter_is_the_runs(adapter: str, base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(adapter, tmp_path / "own"))
    tiny_tokenizer(chat_template="{{ messages[0].content }}!").save_pretrained(folder)
    for path, template in ((str(folder), "{{ messages[0].content }}!"), (adapter, tiny_tokenizer().chat_template)):
        assert load_tokenizer(with_adapter(GRPOConfig(model=path)), str(base)).chat_template == template


def test_a_base_that_has_moved_is_named_and_given_beside_the_adapter(adapter: str, base: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(adapter, tmp_path / "moved"))
    for gone, message in (("/gone/base", "belongs to the model /gone/base, which is not here"), (None, "does not say")):
        settings = json.loads((moved / "adapter_config.json").read_text())
        (moved / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": gone}))
        with pytest.raises(UsageError, match=message) as caught:
            with_adapter(GRPOConfig(model=str(moved)))
        assert f"--model FOLDER --adapter {moved}" in caught.value.hint
    assert with_adapter(GRPOConfig(model=str(base), adapter=str(moved))).lora_rank == 4


def test_the_name_that_postrl_has_for_the_base_comes_first(adapter: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(adapter, tmp_path / "packaged"))
    (folder / "postrl.json").write_text('{"base_model": "smollm2-135m"}')
    assert with_adapter(GRPOConfig(model=str(folder))).model == "smollm2-135m"


def test_an_adapter_of_another_model_is_refused(adapter: str, tmp_path: Path) -> None:
    config = with_adapter(GRPOConfig(model=str(tiny_model_dir(tmp_path / "deep", layers=3)), adapter=adapter))
    with pytest.raises(UsageError, match="is not one of this model") as caught:
        with_lora(load_model(config, config.model), config)
    assert "--model" in caught.value.hint


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LoraConfig(r=4, target_modules=TARGETS, use_dora=True), "sets use_dora"),
        (LoraConfig(r=4, target_modules=TARGETS, modules_to_save=["lm_head"]), "sets modules_to_save"),
        ("IA3", "of peft's kind IA3"),
        ("PROMPT_TUNING", "of peft's kind PROMPT_TUNING"),
    ],
)
def test_adapters_that_no_sampler_could_be_given_are_sent_to_merge(
    base: Path, tmp_path: Path, config: Any, message: str
) -> None:
    change = {"peft_type": config} if isinstance(config, str) else {}
    folder = saved(base, tmp_path, config if not change else None, **change)
    with pytest.raises(UsageError, match=message) as caught:
        with_adapter(GRPOConfig(model=folder))
    assert ("postrl merge" in caught.value.hint) == (config != "PROMPT_TUNING")


def test_damaged_adapters_are_told_apart(adapter: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(adapter, tmp_path / "damaged"))
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"adapter_model\.safetensors ends after"):
        find_adapter(str(folder))
    weights.unlink()
    with pytest.raises(UsageError, match="holds no weights"):
        find_adapter(str(folder))
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(UsageError, match="not valid JSON"):
        find_adapter(str(folder))


def test_servers_make_room_for_the_largest_rank_of_the_adapter(base: Path, tmp_path: Path) -> None:
    lora = LoraConfig(r=4, target_modules=TARGETS, rank_pattern={"v_proj": 24}, task_type="CAUSAL_LM")
    config = with_adapter(GRPOConfig(model=saved(base, tmp_path, lora), engine="vllm"))
    assert adapter_plan(config, config.model, cpu=True) == AdapterPlan(24, ("q_proj", "v_proj"))


def test_an_adapter_that_a_script_loaded_frozen_is_trained(adapter: str) -> None:
    model = with_lora(PeftModel.from_pretrained(tiny_model(), adapter), GRPOConfig())
    assert {name.split(".")[-3] for name, p in model.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}


def test_a_script_may_not_ask_for_a_second_adapter(adapter: str) -> None:
    with pytest.raises(UsageError, match="peft_config asks for a new one"):
        GRPOTrainer(model=adapter, reward_funcs="math", peft_config=LoraConfig(r=2))
