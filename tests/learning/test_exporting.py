"""`postrl export`: adapters and checkpoints become model folders that give the same log-probs, and nothing is overwritten."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from helpers import tiny_model, tiny_model_dir, tiny_tokenizer
from learning.batches import make_groups, make_learner, settings, update
from postrl.errors import PostrlError, UsageError
from postrl.learning.checkpoint import save_checkpoint
from postrl.learning.exporting import export, find_source
from postrl.learning.loading import with_lora

IDS = torch.arange(1, 60)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("base") / "tiny")


def logps(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=IDS).logits.float().log_softmax(-1)
    return found


def adapter(folder: Path, base: Path, peft_config: Any, model: Any = None) -> torch.Tensor:
    """Save a trained adapter; returns the log-probs under it."""
    model = get_peft_model(model or tiny_model(), copy.deepcopy(peft_config))  # it writes into it
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(str(folder))
    return logps(model)


PLAIN = {"r": 4, "target_modules": ["q_proj", "up_proj"], "task_type": "CAUSAL_LM"}
KINDS = {
    "plain": LoraConfig(**PLAIN),
    "rslora with rank patterns": LoraConfig(**PLAIN, use_rslora=True, rank_pattern={"q_proj": 8}, alpha_pattern={"q_proj": 3}),
    "dora": LoraConfig(**PLAIN, use_dora=True),
    "a tied head": LoraConfig(**{**PLAIN, "target_modules": ["lm_head", "q_proj"]}),
    "a tied embedding": LoraConfig(**{**PLAIN, "target_modules": ["embed_tokens", "q_proj"]}),
    "a head of its own": LoraConfig(**PLAIN, modules_to_save=["lm_head"]),
    "tokens": LoraConfig(**PLAIN, trainable_token_indices={"embed_tokens": [1, 2]}),
    "ia3": IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_merged_model_gives_the_log_probs_of_base_and_adapter(kind: str, base: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = adapter(tmp_path / "a", base, KINDS[kind])
    source = find_source(tmp_path / "a")
    assert source.default_target("merged") == tmp_path / "a-merged"
    export(source, tmp_path / "m", merge=True)
    found = logps(AutoModelForCausalLM.from_pretrained(tmp_path / "m"))
    assert (found - expected).abs().max() < 1e-5 < (logps(tiny_model()) - expected).abs().max()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert tokenizer.chat_template == tiny_tokenizer().chat_template
    assert GenerationConfig.from_pretrained(tmp_path / "m").eos_token_id == tiny_tokenizer().eos_token_id
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "m"]


def test_an_embedding_that_was_resized_for_added_tokens_comes_with_the_adapter(base: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, tokenizer = tiny_model(), tiny_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=True)
    model.resize_token_embeddings(len(tokenizer))
    expected = adapter(tmp_path / "a", base, LoraConfig(**PLAIN, modules_to_save=["embed_tokens", "lm_head"]), model)
    tokenizer.save_pretrained(tmp_path / "a")
    written = export(find_source(tmp_path / "a"), tmp_path / "m", merge=True)
    assert written.get_input_embeddings().weight.shape[0] == len(AutoTokenizer.from_pretrained(tmp_path / "m"))
    assert (logps(AutoModelForCausalLM.from_pretrained(tmp_path / "m")) - expected).abs().max() < 1e-5


def test_dtypes_and_sampling_settings_that_transformers_refuses_to_save(base: Path, tmp_path: Path) -> None:
    odd = Path(shutil.copytree(base, tmp_path / "odd"))
    (odd / "generation_config.json").write_text('{"temperature": 0.6, "do_sample": false, "eos_token_id": 2}')
    adapter(tmp_path / "a", odd, KINDS["plain"])
    export(find_source(tmp_path / "a"), tmp_path / "m", merge=True, dtype="bfloat16")
    assert {p.dtype for p in AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype="auto").parameters()} == {
        torch.bfloat16
    }
    assert GenerationConfig.from_pretrained(tmp_path / "m").temperature == 0.6


def run_of(tmp_path: Path, base: Path, rank: int) -> tuple[Path, Any]:
    """A run's folder with one checkpoint, and its learner."""
    config = settings(model=str(base), lora_rank=rank, learning_rate=0.05)
    learner = make_learner(with_lora(tiny_model(), config), config)
    update(learner, make_groups())
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    config.save(run / "config.yaml")
    learner.policy.causal_lm.generation_config.eos_token_id = [2, 1]  # as the run has found its turns to end
    save_checkpoint(run / "checkpoints", 1, learner, {}, keep=1)
    return run, learner


@pytest.mark.parametrize("rank", [0, 4])
def test_a_checkpoint_becomes_the_policy_of_its_step(rank: int, base: Path, tmp_path: Path) -> None:
    run, learner = run_of(tmp_path, base, rank)
    expected = logps(learner.policy.model)
    for place in (run, run / "checkpoints", run / "checkpoints" / "step_000001"):
        source = find_source(place)
        assert source.default_target("merged") == run / "merged-step_000001"
        export(source, tmp_path / "m", merge=True)
        assert (logps(AutoModelForCausalLM.from_pretrained(tmp_path / "m")) - expected).abs().max() < 1e-5
        assert GenerationConfig.from_pretrained(tmp_path / "m").eos_token_id == [2, 1]
        shutil.rmtree(tmp_path / "m")
    learner.save_model(str(run / "model"), tiny_tokenizer())
    source = find_source(run)
    assert source.name.endswith(f"{run}/model") and source.default_target("merged") == run / "merged"
    export(source, tmp_path / "m", merge=True)
    assert (logps(AutoModelForCausalLM.from_pretrained(tmp_path / "m")) - expected).abs().max() < 1e-5
    assert GenerationConfig.from_pretrained(tmp_path / "m").eos_token_id == [2, 1]


@pytest.mark.parametrize("rank", [0, 4])
def test_a_checkpoint_is_exported_as_the_run_itself_saves_its_model(rank: int, base: Path, tmp_path: Path) -> None:
    run, learner = run_of(tmp_path, base, rank)
    learner.save_model(str(run / "model"), tiny_tokenizer())
    export(find_source(run, step=1), tmp_path / "m")
    assert find_source(run, step=1).default_target("exported") == run / "exported-step_000001"
    export(find_source(run), tmp_path / "copy")
    saved = weights_in(run / "model")
    for folder in (tmp_path / "m", tmp_path / "copy"):
        assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in (run / "model").iterdir())
        found = weights_in(folder)
        assert found.keys() == saved.keys() and all(torch.equal(found[name], saved[name]) for name in saved)
        opened = PeftModel.from_pretrained(tiny_model(), str(folder)) if rank else None
        opened = opened or AutoModelForCausalLM.from_pretrained(folder)
        torch.testing.assert_close(logps(opened), logps(learner.policy.model))
        assert logps(AutoModelForCausalLM.from_pretrained(folder)).equal(logps(opened))  # of adapters its base, too


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(next(folder.glob("*.safetensors"))))


def test_a_step_without_checkpoint_and_a_dtype_for_an_adapter_alone_are_refused(base: Path, tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, base, 4)
    with pytest.raises(UsageError, match="has no checkpoint of step 3: it has 1"):
        find_source(run, step=3)
    with pytest.raises(UsageError, match="has no checkpoint of step 1: it has none"):
        find_source(base, step=1)
    with pytest.raises(UsageError, match="an adapter is written as it was trained"):
        export(find_source(run), tmp_path / "m", dtype="bfloat16")
    assert not (tmp_path / "m").exists()


def test_a_checkpoint_of_another_base_is_refused(base: Path, tmp_path: Path) -> None:
    run, _ = run_of(tmp_path, base, 4)
    other = tiny_model_dir(tmp_path / "shallow", layers=1)
    with pytest.raises(UsageError, match=r"is of another model: it has .*layers\.1"):
        export(find_source(run, str(other)), tmp_path / "m", merge=True)
    shutil.rmtree(run / "checkpoints" / "step_000001" / "learner")
    (run / "checkpoints" / "step_000001" / "learner").mkdir()
    with pytest.raises(PostrlError, match="cannot be read into this model"):
        export(find_source(run), tmp_path / "m", merge=True)
    assert not (tmp_path / "m").exists()


def test_nothing_is_overwritten_and_what_cannot_be_merged_says_what_it_is(base: Path, tmp_path: Path) -> None:
    adapter(tmp_path / "a", base, KINDS["plain"])
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine.txt").touch()
    with pytest.raises(UsageError, match="exists already"):
        export(find_source(tmp_path / "a"), tmp_path / "m")
    prompts = get_peft_model(tiny_model(), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    prompts.save_pretrained(str(tmp_path / "p"))
    with pytest.raises(UsageError, match="of peft's kind PROMPT_TUNING: it adds to the prompt"):
        export(find_source(tmp_path / "p"), tmp_path / "m2", merge=True)
    with pytest.raises(UsageError, match="there is no"):
        find_source(tmp_path / "nothing")
    assert find_source(base).whole


def test_the_adapter_of_a_run_names_its_base_as_it_was_given(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saved(model: str, **more: Any) -> tuple[str, str | None]:
        config = settings(model=model, lora_rank=2, **more)
        learner = make_learner(with_lora(tiny_model(), config), config)
        learner.save_model(str(tmp_path / "out"), tiny_tokenizer())
        found = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
        return found["base_model_name_or_path"], found["revision"]

    monkeypatch.chdir(base.parent)
    assert saved("tiny") == (str(base), None)
    assert saved("org/name", revision="v2") == ("org/name", "v2")


def test_the_reference_of_a_trained_adapter_is_its_start(base: Path, tmp_path: Path) -> None:
    from learning.batches import prepared

    adapter(tmp_path / "a", base, KINDS["plain"])
    model = PeftModel.from_pretrained(tiny_model(), str(tmp_path / "a"), is_trainable=True)
    learner = make_learner(
        model, settings(beta=0.1, learning_rate=0.05, optim="adamw", minibatches=2), keeps_start=True
    )
    first, _ = prepared(learner, make_groups())
    torch.testing.assert_close(first.prox_BT, first.ref_BT, rtol=0, atol=0)
    update(learner, make_groups())
    second, _ = prepared(learner, make_groups())
    torch.testing.assert_close(second.ref_BT, first.ref_BT, rtol=0, atol=0)
    again, _ = prepared(learner, make_groups())  # and the policy is as it was before the reference was asked
    torch.testing.assert_close(again.prox_BT, second.prox_BT, rtol=0, atol=0)
    assert not torch.allclose(second.prox_BT, second.ref_BT)
