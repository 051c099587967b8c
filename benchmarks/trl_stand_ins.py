"""What TRL's trainer tests take from the hub, made here: tiny random models, a tokenizer, sentences of our own. A pytest plugin,
which `trl_tests.py` loads; nothing in it is TRL's.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

ORG = "trl-internal-testing"
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tiny-Qwen2ForCausalLM-2.5": ("qwen2", "text", {}),
    "tiny-Qwen2ForSequenceClassification-2.5": ("qwen2", "score", {}),
    "tiny-Qwen3ForCausalLM": ("qwen3", "text", {}),
    "tiny-Qwen3ForSequenceClassification": ("qwen3", "score", {}),
    "tiny-LlamaForCausalLM-3.2": ("llama", "text", {}),
    "tiny-LlamaForSequenceClassification-3.2": ("llama", "score", {}),
    "tiny-MistralForCausalLM-0.2": ("mistral", "text", {}),
    "tiny-Gemma2ForCausalLM": ("gemma2", "text", {}),
    "tiny-Cohere2ForCausalLM": ("cohere2", "text", {}),
    "tiny-Qwen3MoeForCausalLM": ("qwen3_moe", "text", EXPERTS),
    "tiny-Glm4MoeForCausalLM": ("glm4_moe", "text", {**EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1}),
    "tiny-GptOssForCausalLM": ("gpt_oss", "text", {**EXPERTS, "num_local_experts": 4}),
}
"""Name on the hub -> (model type, what its head gives, further settings). Vision models have no stand-in."""
SENTENCES = (
    "A river does not", "The baker opens", "Seven lamps in the", "Nobody had told", "When the snow is", "Her brother paints",
    "An honest clock", "Under the old bridge", "It takes two", "The last train", "Most birds of", "He counts to",
    "Between the hills", "Every third page", "A letter without", "The kettle sings", "Some maps show", "Bread and",
    "On the seventh day",
)  # fmt: skip
"""Prompts: 17 to train on, 2 to evaluate with."""


def make_hub(folder: Path) -> list[str]:
    """Write the models into `folder` as the hub's cache has them; returns what could not be made here."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    from helpers import tiny_tokenizer

    failed = []
    for name, (kind, head, further) in MODELS.items():
        place = folder / f"models--{ORG}--{name}"
        snapshot = place / "snapshots" / ("0" * 40)
        if snapshot.exists():
            continue
        tokenizer = tiny_tokenizer()
        ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
        torch.manual_seed(0)
        try:
            config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **SIZES, **ids, **further)
            if head == "score":
                config.num_labels = 1
                model = AutoModelForSequenceClassification.from_config(config)
            else:
                model = AutoModelForCausalLM.from_config(config)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
            continue
        model.save_pretrained(snapshot)
        tokenizer.save_pretrained(snapshot)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    return failed


def load_dataset(path: str, name: str = "", *, split: str | None = None, streaming: bool = False, **_: Any) -> Any:
    """In place of datasets.load_dataset."""
    from datasets import Dataset, DatasetDict, IterableDatasetDict

    if path != f"{ORG}/zen" or not name.endswith("prompt_only"):
        pytest.fail(f"no stand-in for the data set {path} {name}")
    chat = name.startswith("conversational")
    prompts = [[{"role": "user", "content": text}] if chat else text for text in SENTENCES]
    parts = {"train": Dataset.from_dict({"prompt": prompts[:17]}), "test": Dataset.from_dict({"prompt": prompts[17:]})}
    if streaming:
        parts = {part: rows.to_iterable_dataset() for part, rows in parts.items()}
    return (IterableDatasetDict if streaming else DatasetDict)(parts) if split is None else parts[split]


def pytest_configure(config: Any) -> None:
    import datasets

    datasets.load_dataset = load_dataset
    # A checkout of another version asks for packages that the installed TRL does not know: they are not there.
    import_module("trl.import_utils").__getattr__ = _missing


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """What has no result yet, and of that what the file TRL_TESTS_ONLY names, where it is given."""
    done = results(Path(os.environ["TRL_TESTS_RESULTS"]))
    only = os.environ.get("TRL_TESTS_ONLY")
    wanted = json.loads(Path(only).read_text(encoding="utf-8")) if only else None
    items[:] = [i for i in items if i.name not in done and (wanted is None or i.name in wanted)]


def pytest_runtest_logreport(report: Any) -> None:
    """Keep each result as it comes."""
    if report.when != "call" and report.passed:
        return
    problem = ""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        problem = str(crash.message if crash else report.longrepr)
    with Path(os.environ["TRL_TESTS_RESULTS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([report.nodeid.rpartition("::")[2], report.outcome, problem]) + "\n")


def results(path: Path) -> dict[str, tuple[str, str]]:
    """Test -> passed, failed or skipped; and what went wrong."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {test: (outcome, problem) for test, outcome, problem in map(json.loads, lines)}


def _missing(name: str) -> Any:
    if not (name.startswith("is_") and name.endswith("_available")):
        raise AttributeError(name)
    return lambda: False
