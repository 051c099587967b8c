"""An adapter or a checkpoint as a model folder: one that transformers and vLLM load and `--model` takes.

    source = find_source(Path("runs/mine"))                       # RUN, RUN/model, a checkpoint, an adapter, a model
    export(source, Path("runs/mine/merged"), dtype="auto")

The weights are in memory once, in the dtype that is written; the folder is there under its name when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from postrl.config import GRPOConfig
from postrl.errors import PostrlError, UsageError
from postrl.host.text import read_template
from postrl.host.whole import whole_folder
from postrl.models.adapter import Adapter, adapter_named, base_of, check_mergeable, find_adapter
from postrl.models.folder import ADAPTER_CONFIG, CONFIG, check_model_path, has_tokenizer, is_checkpoint, is_run
from postrl.models.packaged import PACKAGED, packaged_model
from postrl.run.folder import checkpoints_in

ExportDtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Source:
    """What a model folder is made of."""

    base: str
    """The model whose weights are loaded first: a packaged name, a hub id or a folder."""
    settings: GRPOConfig
    """Of the run, as far as there is one: revision, chat_template, trust_remote_code."""
    tokenizer: str
    """Where it is loaded from; empty: the base's."""
    default_target: Path
    adapter: Adapter | None = None
    checkpoint: Path | None = None
    whole: bool = False
    """Whether the source is a model folder already."""
    name: str = ""
    """What is used, for people."""


def find_source(path: Path, base: str | None = None) -> Source:
    """What lies at a path: of a run its model, or the newest checkpoint where that is newer.

    Args:
        base: the model under it, where it is no longer where the run had it.

    Raises:
        UsageError: nothing that a model could be made of.
    """
    path = path.expanduser()
    if is_checkpoint(path):
        return _of_checkpoint(path, base)
    if found := _newest(path):
        return _of_checkpoint(found, base)
    if is_run(path) and not (path / CONFIG).exists():
        return _of_run(path, base)
    if path.name == "critic" and is_run(path.parent):
        raise UsageError(
            f"{path} is the critic of a run, whole already", hint="AutoModelForTokenClassification loads it"
        )
    if (path / ADAPTER_CONFIG).exists() or not path.exists():
        adapter = find_adapter(str(path))
        if adapter is None:
            raise UsageError(
                f"there is no {path}", hint="give a run's folder, a checkpoint, RUN/model or an adapter's folder"
            )
        return _of_adapter(adapter, base)
    check_model_path(str(path), "postrl merge", tokenizer=False)
    tokenizer = str(path) if has_tokenizer(path) else ""
    target = path.with_name(f"{path.name}-merged")
    return Source(str(path), GRPOConfig(), tokenizer, target, whole=True, name=f"the model {path}")


def _newest(folder: Path) -> Path | None:
    """Of RUN/checkpoints its newest one."""
    steps = checkpoints_in(folder)
    return steps[-1] if steps else None


def _of_run(run: Path, base: str | None) -> Source:
    model, newest = run / "model", _newest(run / "checkpoints")
    saved = next((model / name for name in (ADAPTER_CONFIG, CONFIG) if (model / name).exists()), None)
    if saved is None and newest is None:
        raise UsageError(
            f"the run {run} has left neither a model nor a checkpoint",
            hint="let it train to its end, or stop it with Ctrl-C",
        )
    if newest and (saved is None or (newest / "state.json").stat().st_mtime > saved.stat().st_mtime):
        return _of_checkpoint(newest, base)  # of a run that went on and was killed
    found = find_source(model, base)
    return replace(found, default_target=run / "merged")


def _of_adapter(adapter: Adapter, base: str | None) -> Source:
    check_mergeable(adapter)
    settings = GRPOConfig(revision=None if base else adapter.revision)
    tokenizer = str(adapter.folder) if has_tokenizer(adapter.folder) else ""
    folder = Path(adapter.name).expanduser()
    in_run = folder.name == "model" and is_run(folder.parent)
    target = (
        folder.parent / "merged" if in_run else Path(f"{folder.absolute() if folder.is_dir() else folder.name}-merged")
    )
    return Source(base or base_of(adapter), settings, tokenizer, target, adapter, name=f"the adapter {adapter.name}")


def _of_checkpoint(checkpoint: Path, base: str | None) -> Source:
    run = checkpoint.absolute().parent.parent
    if not (run / "config.yaml").exists():
        raise UsageError(
            f"{checkpoint} is a checkpoint without its run: there is no {run / 'config.yaml'}",
            hint="a checkpoint is merged in the folder of its run, RUN/checkpoints/step_000010",
        )
    settings = GRPOConfig.from_yaml(run / "config.yaml")
    model = base or settings.model
    if not model:
        raise UsageError(
            f"the run {run} does not say which model it began with (a script gave it as an object)",
            hint="say where that is: --model FOLDER",
        )
    tokenizer = next((str(p) for p in (run / "model",) if has_tokenizer(p)), "")
    if not tokenizer and settings.adapter and has_tokenizer(folder := adapter_named(settings.adapter).folder):
        tokenizer = str(folder)
    target = run / f"merged-{checkpoint.name}"
    name = f"the checkpoint {checkpoint}"
    return Source(model, settings, tokenizer, target, checkpoint=checkpoint, name=name)


# -- the model -----------------------------------------------------------------------------------------------------------


def export(source: Source, target: Path, *, dtype: ExportDtype = "auto") -> Any:
    """Write the model folder; returns the model.

    Raises:
        UsageError: the folder exists, the base cannot be had, or does not fit.
        PostrlError: it cannot be written.
    """
    check_target(target)
    path = _base_path(source)
    model = _base(source, path, dtype)
    if source.adapter is not None:
        model = _merged(model, source.adapter)
    elif source.checkpoint is not None:
        model = _with_checkpoint(model, source.checkpoint)
    tokenizer = _tokenizer(source, path)
    with _model_folder(target) as folder:
        _take_generation_config(model, source)
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    return model


def check_target(target: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        UsageError: it does, or is a file.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists already", hint="choose another with --output-dir, or remove it first")


def _base_path(source: Source) -> str:
    if source.base in PACKAGED:
        return str(packaged_model(source.base))
    check_model_path(source.base, "--model", tokenizer=False)
    return source.base


def _base(source: Source, path: str, dtype: str) -> Any:
    """The base model in the dtype that is wanted; `auto`: in its own."""
    from transformers import AutoModelForCausalLM

    from postrl.learning.loading import explained

    with explained(path, "model"):
        return AutoModelForCausalLM.from_pretrained(
            path,
            revision=_revision(source, path),
            trust_remote_code=source.settings.trust_remote_code,
            dtype=dtype,
        )


def _tokenizer(source: Source, path: str) -> Any:
    """As the run used it, its chat template included; None: there is none anywhere."""
    from transformers import AutoTokenizer

    from postrl.learning.loading import explained

    place = source.tokenizer or path
    if Path(place).is_dir() and not has_tokenizer(Path(place)):
        return None
    with explained(place, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(
            place, revision=_revision(source, place), trust_remote_code=source.settings.trust_remote_code
        )
    if source.settings.chat_template and not source.tokenizer:
        tokenizer.chat_template = read_template(source.settings.chat_template)
    return tokenizer


def _revision(source: Source, path: str) -> str | None:
    return None if Path(path).is_dir() else source.settings.revision


def _merged(model: Any, adapter: Adapter) -> Any:
    """The model with an adapter merged in, whatever kind of adapter peft can merge."""
    from peft import PeftConfig
    from peft.utils import load_peft_weights

    from postrl.learning.loading import on_adapter

    weights = load_peft_weights(str(adapter.folder), device="cpu")
    _resize(model, weights)
    config = PeftConfig.from_pretrained(str(adapter.folder))
    _untie(model, weights, config)
    return on_adapter(model, adapter).merge_and_unload()


def _resize(model: Any, weights: dict[str, Any]) -> None:
    """Rows for the tokens that were added before the adapter was trained: it holds the embedding then."""
    rows = [
        w.shape[0]
        for name, w in weights.items()
        if name.endswith(("embed_tokens.weight", "lm_head.weight", "wte.weight"))
    ]
    if rows and max(rows) != model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(max(rows), mean_resizing=False)


def _untie(model: Any, names: Iterable[str], peft_config: Any) -> None:
    """Give the head weights of its own, where an adapter changes it or the embedding alone: merged into the weight that
    both share, it would change the other, too."""
    import torch

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or head.weight is not embedding.weight:
        return
    if getattr(peft_config, "ensure_weight_tying", False):
        return
    layers = [name for name in names if "trainable_tokens" not in name]  # those peft keeps alike in both
    if {part for name in layers for part in name.split(".")} & {
        "lm_head",
        "embed_out",
        "embed_tokens",
        "wte",
        "embed_in",
    }:
        head.weight = torch.nn.Parameter(embedding.weight.detach().clone(), requires_grad=False)
        model.config.get_text_config().tie_word_embeddings = False
        model.config.tie_word_embeddings = False


def _take_generation_config(model: Any, source: Source) -> None:
    """That of the run, which knows where its completions end; else the base's."""
    from transformers import GenerationConfig

    from postrl.learning.loading import make_savable

    folder = source.checkpoint or (source.adapter.folder if source.adapter else None)
    if folder is not None and (folder / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(str(folder))
    make_savable(model.generation_config)


def _with_checkpoint(model: Any, checkpoint: Path) -> Any:
    """The model with the weights of a checkpoint: all that were trained, or an adapter, merged in."""
    from postrl.learning.checkpoint import load_policy, policy_names

    if not (checkpoint / ADAPTER_CONFIG).exists():
        load_policy(checkpoint, model)
        return model
    from peft import PeftConfig, get_peft_model

    config = PeftConfig.from_pretrained(str(checkpoint))
    _untie(model, policy_names(checkpoint), config)
    model = get_peft_model(model, config)
    load_policy(checkpoint, model)
    return model.merge_and_unload()


@contextmanager
def _model_folder(target: Path) -> Iterator[Path]:
    """The folder to write the model of `target` into, see `whole_folder`.

    Raises:
        PostrlError: the disk is full or not writable.
    """
    from safetensors import SafetensorError

    try:
        with whole_folder(target) as folder:
            yield folder
    except (OSError, SafetensorError) as error:
        raise PostrlError(
            f"the model could not be written to {target}: {error}",
            hint="free space, or choose another place with --output-dir; nothing was left behind",
        ) from error
