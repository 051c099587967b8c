"""What is not a model folder, or not a whole one, is found out by its files alone; each message says what to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from helpers import tiny_model, tiny_model_dir
from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.launch.model import check_model, check_reward_models
from postrl.models.folder import check_model_folder, check_model_path, known_model_types
from postrl.models.weights import damage, parameter_count
from postrl.rewards.registry import resolve, with_options

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model_dir(tmp_path_factory.mktemp("sharded"))
    (folder / WEIGHTS).unlink()
    tiny_model().save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def problem(folder: Path, **wanted: bool) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        check_model_folder(str(folder), "--model", **wanted)
    return caught.value.message, caught.value.hint


def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def cut(path: Path, share: float = 0.5) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def settings(folder: Path, **values: object) -> None:
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**found, **values}))


def without(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink()


def test_whole_models_pass(whole: Path, sharded: Path) -> None:
    for folder in (whole, sharded):
        check_model_folder(str(folder), "--model")
        assert parameter_count(str(folder)) == tiny_model().num_parameters()


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda f: cut(f / WEIGHTS), r"model\.safetensors ends after .* kB, and its header says .* kB"),
    "too long": (lambda f: (f / WEIGHTS).open("ab").write(b"more"), "its header says"),
    "truncated in the header": (lambda f: cut(f / WEIGHTS, 0.001), "ends inside its header"),
    "empty": (lambda f: (f / WEIGHTS).write_bytes(b""), r"model\.safetensors is empty"),
    "a pointer": (lambda f: (f / WEIGHTS).write_bytes(POINTER), "is a pointer of git-lfs"),
    "another file": (lambda f: (f / WEIGHTS).write_bytes(b"not tensors at all"), "does not begin with a header"),
    "a broken header": (
        lambda f: (f / WEIGHTS).write_bytes((5).to_bytes(8, "little") + b"{nope"),
        "or its header is damaged",
    ),
    "no weights": (lambda f: without(f, WEIGHTS), "holds no weights"),
    "GGUF": (lambda f: (f / WEIGHTS).rename(f / "model-q4.gguf"), r"model-q4\.gguf \(GGUF\)"),
    "another name": (lambda f: (f / WEIGHTS).rename(f / "consolidated.safetensors"), "safetensors under another name"),
    "PyTorch's own": (lambda f: (f / WEIGHTS).rename(f / "consolidated.00.pth"), r"consolidated\.00\.pth"),
    "no config": (lambda f: without(f, "config.json"), "has no config.json"),
    "an empty config": (lambda f: (f / "config.json").write_text(""), r"config\.json is empty"),
    "a cut config": (lambda f: cut(f / "config.json"), r"config\.json is not valid JSON"),
    "a config that is a list": (lambda f: (f / "config.json").write_text("[]"), "is a JSON list"),
    "a config that is not text": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "is not text"),
    "a config that is a pointer": (lambda f: (f / "config.json").write_bytes(POINTER), "pointer of git-lfs"),
    "no model_type": (lambda f: settings(f, model_type=None), "names no model_type"),
    "an unknown model_type": (lambda f: settings(f, model_type="llamaa"), r"'llamaa', which transformers .* not know"),
    "a critic": (
        lambda f: settings(f, architectures=["LlamaForTokenClassification"]),
        "LlamaForTokenClassification, which writes no text",
    ),
    "quantised": (lambda f: settings(f, quantization_config={"quant_method": "bitsandbytes"}), r"quantised \(bitsand"),
    "no tokenizer": (lambda f: without(f, "tokenizer*"), "has no tokenizer"),
    "an empty tokenizer": (lambda f: (f / "tokenizer.json").write_text(""), r"tokenizer\.json is empty"),
    "a cut tokenizer": (lambda f: cut(f / "tokenizer.json"), r"tokenizer\.json is not valid JSON"),
    "a tokenizer without a model": (lambda f: (f / "tokenizer.json").write_text("{}"), "holds no tokenizer"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_what_is_wrong_with_a_folder_is_said_with_what_to_do(kind: str, whole: Path, tmp_path: Path) -> None:
    import re

    break_it, expected = DAMAGED[kind]
    folder = copy(whole, tmp_path)
    break_it(folder)
    message, hint = problem(folder)
    assert re.search(expected, message) and hint, message
    assert str(folder) in message


def test_shards_that_are_missing_damaged_or_without_an_index_are_named(sharded: Path, tmp_path: Path) -> None:
    folder = copy(sharded, tmp_path)
    shards = sorted(folder.glob("*.safetensors"))
    cut(shards[1])
    assert f"{shards[1].name} ends after" in problem(folder)[0]
    shards[1].unlink()
    message, _ = problem(folder)
    assert f"1 of {len(shards)} files of weights are missing, such as {shards[1].name}" in message
    index = folder / "model.safetensors.index.json"
    cut(index)
    assert "index.json is not an index of weights" in problem(folder)[0]
    index.unlink()
    assert "holds model-00001-of" in problem(folder)[0] and "no index" in problem(folder)[0]


def test_pickled_weights_pass_unless_they_are_cut(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    without(folder, WEIGHTS)
    torch.save(tiny_model().state_dict(), folder / "pytorch_model.bin")
    check_model_folder(str(folder), "--model")
    cut(folder / "pytorch_model.bin")
    assert "pytorch_model.bin ends before its end" in problem(folder)[0]
    (folder / "pytorch_model.bin").write_bytes(POINTER)
    assert "git-lfs" in damage(folder / "pytorch_model.bin")


def test_a_config_alone_is_enough_for_a_plan_and_damaged_weights_are_not(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    without(folder, WEIGHTS, "tokenizer*")
    check_model_folder(str(folder), "--model", weights=False)
    (folder / WEIGHTS).write_bytes(b"")
    assert "is empty" in problem(folder, weights=False)[0]


def test_folders_of_a_run_are_answered_with_the_folder_or_the_command_that_helps(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    step = run / "checkpoints" / "step_000010"
    (step / "learner").mkdir(parents=True)
    (step / "state.json").write_text("{}")
    (step / "adapter_config.json").write_text("{}")
    (run / "config.yaml").write_text("model: m\n")
    assert problem(run)[1] == f"postrl merge {run} makes a model folder of its newest checkpoint"
    for folder in (step, step.parent):
        message, hint = problem(folder)
        assert "is a checkpoint of a run" in message and f"postrl merge {folder} " in hint
    shutil.copytree(whole, run / "model")
    assert problem(run)[1] == f"--model {run}/model"


def test_paths_are_told_from_names_of_the_hub(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.touch()
    for name, message in {
        str(file): "is a file",
        str(tmp_path / "x"): "no model folder",
        "./x": "no model folder",
    }.items():
        with pytest.raises(UsageError, match=message):
            check_model_path(name, "--model")
    assert not check_model_path("org/name-of-a-hub-model", "--model")


def test_a_critic_and_a_reward_model_are_checked_like_the_model(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    settings(folder, architectures=["LlamaForSequenceClassification"])
    cut(folder / WEIGHTS)
    with pytest.raises(UsageError, match="ends after"):
        check_model(GRPOConfig(model=str(whole), algorithm="ppo", critic_model=str(folder)))
    spec = resolve(f"reward_model:{folder}")
    with pytest.raises(UsageError, match="ends after"):
        check_reward_models([spec])
    without(folder, WEIGHTS)
    with pytest.raises(UsageError, match="holds no weights"):
        check_reward_models([spec])
    check_reward_models(with_options([spec], ["reward_model.url=http://127.0.0.1:1"]))  # its server has them


def test_a_model_that_is_in_the_cache_in_part_is_refused_offline(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    snapshot = tmp_path / "models--org--name" / "snapshots" / ("0" * 40)
    shutil.copytree(whole, snapshot)
    refs = tmp_path / "models--org--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    for name, value in {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": True}.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check_model(GRPOConfig(model="org/name"))
    (snapshot / WEIGHTS).unlink()
    check_model(GRPOConfig(model="org/name"), weights=False)
    with pytest.raises(UsageError, match=r"in the hub's cache in part only.*holds no weights"):
        check_model(GRPOConfig(model="org/name"))


def test_the_types_that_transformers_knows_are_read_without_importing_it() -> None:
    from transformers import CONFIG_MAPPING

    assert known_model_types() >= set(CONFIG_MAPPING.keys())
    code = (
        "import sys; from postrl.models.folder import *; assert 'llama' in known_model_types(); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
