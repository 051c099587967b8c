"""Whether a folder is a model that can be trained, and if not, what it is instead. Nothing is loaded: it takes milliseconds.

check_model_folder("Qwen2.5-7B", "--model")
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from postrl.errors import UsageError
from postrl.models.weights import INDEX, LFS_POINTER, PICKLED, SAFETENSORS, damage, stored_tensors, weight_map

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
AGAIN = "it was copied or downloaded in part: copy or download it again"
TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "tekken.json", "tiktoken.model",
)  # fmt: skip
"""Files that a tokenizer is loaded from: one of them is enough."""
OTHER_HEADS = (
    "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice", "ForMaskedLM",
)  # fmt: skip
"""Ends of the names of architectures that write no text."""
OTHER_FORMATS = {
    "*.gguf": "GGUF", "*.h5": "TensorFlow", "*.msgpack": "Flax", "*.onnx": "ONNX", "*.pth": "PyTorch's own", "*.pt": "PyTorch's own",
    "*.ckpt": "PyTorch's own",
}  # fmt: skip


def check_model_folder(
    name: str, flag: str, *, writes_text: bool = True, tokenizer: bool = True, weights: bool = True
) -> None:
    """Refuse a folder that is no whole model.

    Args:
        flag: what the name was given with, for messages.
        writes_text: whether a language model is wanted; else any architecture.
        tokenizer: whether it has to have one.
        weights: False lets a folder without any pass, as for a plan; damaged ones are refused all the same.

    Raises:
        UsageError: what it is, or what is damaged, and what to do.
    """
    folder = Path(name).expanduser()
    try:
        if not (folder / CONFIG).exists():
            _refuse_other_folder(folder, name, flag)
        _check_config(folder, name, flag, writes_text)
        _check_weights(folder, name, flag, weights)
        if tokenizer and (weights or has_weights(folder)):
            _check_tokenizer(folder, name, flag)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}", hint="may you read it?") from error


def check_model_path(name: str, flag: str, **wanted: bool) -> bool:
    """Refuse a wrong model before any process starts; returns whether it is a folder. Names of the hub pass.

    Args:
        wanted: see `check_model_folder`.

    Raises:
        UsageError: there is no such folder, or it is no whole model.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        check_model_folder(name, flag, **wanted)
        return True
    if folder.exists():
        raise UsageError(
            f"the model {name} is a file, expected a folder or a hub id", hint="give the folder it lies in"
        )
    if is_path(name):
        raise UsageError(f"there is no model folder {name}", hint=f"check the path given with {flag}")
    return False


def is_path(name: str) -> bool:
    """Whether the name of a model can only be a path, and no hub id."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def has_weights(folder: Path) -> bool:
    """Whether there are files that transformers loads weights from, whole or not."""
    return any((folder / (name + end)).exists() for name in (SAFETENSORS, PICKLED) for end in ("", INDEX))


def cached_snapshot(name: str, revision: str | None) -> Path | None:
    """The folder in the hub's cache with what is there of a model; None: nothing."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for file in (CONFIG, SAFETENSORS, SAFETENSORS + INDEX):
        try:
            found = try_to_load_from_cache(name, file, revision=revision)
        except HFValidationError:
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in TOKENIZERS)


def read_json(
    path: Path, name: str, hint: str = "save the model again, or copy or download it again"
) -> dict[str, Any]:
    """A JSON object from a file of a folder that is called `name`.

    Raises:
        UsageError: it is not a JSON object.
    """
    where = f"{name}/{path.name}"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is not text", hint=hint) from error
    if not text.strip():
        raise UsageError(f"{where} is empty", hint=hint)
    if text.startswith(LFS_POINTER.decode()):
        raise UsageError(
            f"{where} is a pointer of git-lfs, without the file it points to", hint=f"git -C {name} lfs pull"
        )
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not valid JSON: {error}", hint=hint) from error
    if not isinstance(found, dict):
        raise UsageError(f"{where} is a JSON {type(found).__name__}, expected an object", hint=hint)
    return found


# -- what else a folder may be -----------------------------------------------------------------------------------------


def is_checkpoint(folder: Path) -> bool:
    return (folder / "state.json").exists() and (folder / "learner").is_dir()


def is_run(folder: Path) -> bool:
    return (folder / "config.yaml").exists() and any((folder / part).is_dir() for part in ("checkpoints", "logs"))


def _refuse_other_folder(folder: Path, name: str, flag: str) -> None:
    if is_checkpoint(folder) or list(folder.glob("step_*/state.json")):
        raise UsageError(
            f"{name} is a checkpoint of a run, which --resume continues from, and no model folder",
            hint=f"postrl merge {name} makes one of it",
        )
    if (folder / ADAPTER_CONFIG).exists():
        raise UsageError(
            f"{name} is an adapter, and {flag} takes a whole model",
            hint=f"postrl merge {name} makes a model of it and of the one it belongs to",
        )
    inside = sorted(
        p.parent for kind in ("", "snapshots/") for p in folder.glob(f"{kind}*/*config.json") if _is_model(p)
    )
    if is_run(folder):
        raise UsageError(
            f"{name} is the folder of a run, and no model folder",
            hint=f"{flag} {folder / 'model'}"
            if folder / "model" in inside
            else f"postrl merge {name} makes a model folder of its newest checkpoint",
        )
    raise UsageError(
        f"the folder {name} holds no model: it has no config.json",
        hint=f"{flag} {inside[-1]} has one"
        if inside
        else "give the folder that save_pretrained wrote, such as RUN/model",
    )


def _is_model(path: Path) -> bool:
    return path.name in (CONFIG, ADAPTER_CONFIG)


# -- its parts ---------------------------------------------------------------------------------------------------------


def _check_config(folder: Path, name: str, flag: str, writes_text: bool) -> None:
    found = read_json(folder / CONFIG, name)
    kind = found.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise UsageError(
            f"{name}/{CONFIG} names no model_type, so it is not known what kind of model it is",
            hint="give a folder that transformers' save_pretrained wrote",
        )
    if "auto_map" not in found and kind not in (known := known_model_types()) and known:
        raise UsageError(
            f"{name}/{CONFIG}: model_type is {kind!r}, which transformers {metadata.version('transformers')} does not know",
            hint="pip install -U transformers where it is a new one; check the spelling where it is yours",
        )
    heads = found.get("architectures")
    head = heads[0] if isinstance(heads, list) and heads else ""
    if writes_text and str(head).endswith(OTHER_HEADS):
        raise UsageError(
            f"{name} is a {head}, which writes no text",
            hint=f"{flag} takes a causal language model; a critic (RUN/critic) or reward model is not one",
        )
    refuse_quantised(name, found)


def refuse_quantised(name: str, config: Mapping[str, Any]) -> None:
    """Refuse a model by its config.json, or by what that was loaded into.

    Raises:
        UsageError: its weights are quantised.
    """
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "") if isinstance(quantization, Mapping) else ""
        raise UsageError(
            f"the weights of {name} are quantised ({getattr(method, 'value', method) or 'see its quantization_config'}): they "
            "cannot be trained, nor an adapter on them be merged for the sampler",
            hint="give the same model in bfloat16 or float32 (without quantization_config); with LoRA its weights are frozen in "
            "bfloat16; the base of an adapter with --model FOLDER --adapter ADAPTER",
        )


def _check_weights(folder: Path, name: str, flag: str, needed: bool) -> None:
    for kind in (SAFETENSORS, PICKLED):
        if (folder / kind).exists():
            return _check_whole(folder, name, [kind])
        if (folder / (kind + INDEX)).exists():
            try:
                return _check_whole(folder, name, sorted({*weight_map(folder / (kind + INDEX)).values()}))
            except ValueError as error:
                if isinstance(error, UsageError):
                    raise
                raise UsageError(f"{name} is damaged: {kind + INDEX} {error}", hint=AGAIN) from error
    parts = sorted(p.name for p in folder.glob("*-of-*") if p.suffix in (".safetensors", ".bin"))
    if parts:
        raise UsageError(
            f"{name} is not whole: it holds {parts[0]} and no index ({SAFETENSORS + INDEX}) that says what is where",
            hint=AGAIN,
        )
    others = {path.name: what for pattern, what in OTHER_FORMATS.items() for path in sorted(folder.glob(pattern))}
    others |= {p.name: "safetensors under another name" for p in sorted(folder.glob("*.safetensors"))}
    if others:
        file, what = next(iter(others.items()))
        raise UsageError(
            f"{name} holds weights that cannot be trained: {file} ({what}); expected {SAFETENSORS} or its shards",
            hint="give the folder of the same model in transformers' format (save_pretrained)",
        )
    if needed:
        raise UsageError(
            f"{name} holds no weights: neither {SAFETENSORS} nor its shards",
            hint=f"copy or download the model whole: hf download MODEL --local-dir {name}; a plan needs none (--dry-run)",
        )
    return None


def _check_whole(folder: Path, name: str, files: list[str]) -> None:
    if missing := [file for file in files if not (folder / file).exists()]:
        raise UsageError(
            f"{name} is not whole: {len(missing)} of {len(files)} files of weights are missing, such as {missing[0]}",
            hint=AGAIN,
        )
    for file in files:
        if problem := damage(folder / file):
            pointer = "git-lfs" in problem
            raise UsageError(
                f"{name} is damaged: {file} {problem}", hint=f"git -C {name} lfs pull" if pointer else AGAIN
            )
    if not files or (files[0].endswith(".safetensors") and not any(True for _ in stored_tensors(folder))):
        raise UsageError(f"{name} is damaged: its weights name no tensor", hint=AGAIN)


def _check_tokenizer(folder: Path, name: str, flag: str) -> None:
    if not has_tokenizer(folder):
        raise UsageError(
            f"{name} has no tokenizer: none of {', '.join(TOKENIZERS[:4])}, ...",
            hint=f"copy the tokenizer's files into it: AutoTokenizer.from_pretrained(MODEL).save_pretrained({name!r}); "
            "a script may give processing_class=",
        )
    for file in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / file).exists():
            found = read_json(folder / file, name, hint=f"the tokenizer is damaged; {AGAIN}")
            if file == "tokenizer.json" and not isinstance(found.get("model"), dict):
                raise UsageError(f"{name}/{file} holds no tokenizer: it has no model", hint=AGAIN)
    for file in TOKENIZERS:
        path = folder / file
        if path.exists() and path.stat().st_size == 0:
            raise UsageError(f"the tokenizer of {name} is damaged: {file} is empty", hint=AGAIN)


@cache
def known_model_types() -> frozenset[str]:
    """The model types of the installed transformers, read from its source: importing it takes seconds. Empty: not found."""
    spec = util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    folder = Path(spec.origin).parent / "models" / "auto"
    found: set[str] = set()
    for path in (folder / "auto_mappings.py", folder / "configuration_auto.py"):
        if path.exists():
            found.update(
                re.findall(r"""["']([\w.-]+)["'](?:, |: )["']\w+Config["']""", path.read_text(encoding="utf-8"))
            )
    return frozenset(found)
