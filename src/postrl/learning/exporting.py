"""What a run has trained, or an adapter, as a model folder: one that transformers, peft and vLLM load and `--model` takes.

    source = find_source(Path("runs/mine"))                       # RUN, RUN/model, a checkpoint, an adapter, a model
    export(source, Path("runs/mine/merged"), merge=True, dtype="auto")

The weights are in memory once, in the dtype that is written; the folder is there under its name when it is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from postrl.config import GRPOConfig
from postrl.config.settings import Settings
from postrl.errors import UsageError
from postrl.host.files import whole_folder
from postrl.host.text import read_template
from postrl.learning.loading import explained, loaded
from postrl.models.adapter import Adapter, adapter_named, base_of, check_mergeable, find_adapter
from postrl.models.folder import ADAPTER_CONFIG, CONFIG, check_model_path, has_tokenizer, is_checkpoint, is_run
from postrl.models.packaged import PACKAGED, packaged_model
from postrl.run.folder import checkpoints_in, step_of

ExportDtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Source:
    """What a model folder is made of."""

    path: Path
    """Where it lies: a model's folder, an adapter's or a checkpoint."""
    base: str
    """The model whose weights are loaded first: a packaged name, a hub id or a folder."""
    settings: Settings
    """Of the run, as far as there is one: model, revision, chat_template, trust_remote_code."""
    tokenizer: str
    """Where it is loaded from; empty: the base's."""
    run: Path | None = None
    """Whose model or checkpoint it is."""
    adapter: Adapter | None = None
    checkpoint: Path | None = None
    name: str = ""
    """What is used, for people."""

    @property
    def has_adapter(self) -> bool:
        return self.adapter is not None or (self.checkpoint is not None and (self.checkpoint / ADAPTER_CONFIG).exists())

    @property
    def whole(self) -> bool:
        """Whether it is a model folder already."""
        return self.adapter is None and self.checkpoint is None

    def default_target(self, word: str) -> Path:
        """RUN/merged, RUN/merged-step_000010, or beside the source SOURCE-merged, where the word is "merged"."""
        if self.run is None:
            return self.path.with_name(f"{self.path.name}-{word}")
        return self.run / (f"{word}-{self.checkpoint.name}" if self.checkpoint else word)


def find_source(path: Path, base: str | None = None, step: int | None = None) -> Source:
    """What lies at a path: of a run its model, or the newest checkpoint where that is newer.

    Args:
        base: the model under it, where it is no longer where the run had it.
        step: the checkpoint of a run that is wanted.

    Raises:
        UsageError: nothing that a model could be made of.
    """
    path = path.expanduser()
    if step is not None:
        return _of_checkpoint(_step_of_run(path, step), base)
    if is_checkpoint(path):
        return _of_checkpoint(path, base)
    if steps := checkpoints_in(path):  # RUN/checkpoints
        return _of_checkpoint(steps[-1], base)
    if is_run(path) and not (path / CONFIG).exists():
        return _of_run(path, base)
    if path.name == "critic" and is_run(path.parent):
        raise UsageError(
            f"{path} is the critic of a run, whole already", hint="AutoModelForTokenClassification loads it"
        )
    run = path.parent if path.name == "model" and is_run(path.parent) else None
    if (path / ADAPTER_CONFIG).exists() or not path.exists():
        adapter = find_adapter(str(path))
        if adapter is None:
            raise UsageError(
                f"there is no {path}", hint="give a run's folder, a checkpoint, RUN/model or an adapter's folder"
            )
        return replace(_of_adapter(adapter, base), run=run)
    check_model_path(str(path), "postrl export", tokenizer=False)
    tokenizer = str(path) if has_tokenizer(path) else ""
    return Source(path, str(path), Settings(), tokenizer, run, name=f"the model {path}")


def _step_of_run(run: Path, step: int) -> Path:
    """The checkpoint of a step."""
    steps = {step_of(path): path for path in checkpoints_in(run / "checkpoints")}
    if step not in steps:
        there = f"it has {', '.join(map(str, steps))}" if steps else "it has none"
        raise UsageError(
            f"{run} has no checkpoint of step {step}: {there}",
            hint="--step takes one of these; how many a run keeps says its --save-total-limit"
            if steps
            else "--step belongs to a run's folder with checkpoints",
        )
    return steps[step]


def _of_run(run: Path, base: str | None) -> Source:
    model, steps = run / "model", checkpoints_in(run / "checkpoints")
    saved = next((model / name for name in (ADAPTER_CONFIG, CONFIG) if (model / name).exists()), None)
    if saved is None and not steps:
        raise UsageError(
            f"the run {run} has left neither a model nor a checkpoint",
            hint="let it train to its end, or stop it with Ctrl-C",
        )
    if saved is None or (steps and (steps[-1] / "state.json").stat().st_mtime > saved.stat().st_mtime):
        return _of_checkpoint(steps[-1], base)  # of a run that went on and was killed
    return find_source(model, base)


def _of_adapter(adapter: Adapter, base: str | None) -> Source:
    settings = Settings(revision=None if base else adapter.revision)
    tokenizer = str(adapter.folder) if has_tokenizer(adapter.folder) else ""
    given = Path(adapter.name).expanduser()
    place = given.absolute() if given.is_dir() else Path(given.name)
    return Source(place, base or adapter.base, settings, tokenizer, adapter=adapter, name=f"the adapter {adapter.name}")


def _of_checkpoint(checkpoint: Path, base: str | None) -> Source:
    run = checkpoint.absolute().parent.parent
    if not (run / "config.yaml").exists():
        raise UsageError(
            f"{checkpoint} is a checkpoint without its run: there is no {run / 'config.yaml'}",
            hint="a checkpoint is exported in the folder of its run, RUN/checkpoints/step_000010",
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
    settings = replace(settings, model=model)
    name = f"the checkpoint {checkpoint}"
    return Source(checkpoint, model, settings, tokenizer, run, checkpoint=checkpoint, name=name)


# -- the model -----------------------------------------------------------------------------------------------------------


def export(source: Source, target: Path, *, merge: bool = False, dtype: ExportDtype = "auto") -> Any:
    """Write the model folder: all weights, or the adapter as it was trained. Returns the model that was loaded for it; None:
    the folder was there to be copied.

    Args:
        merge: merge an adapter into its base.
        dtype: of the weights; `auto`: the base's.

    Raises:
        UsageError: the folder exists, the base cannot be had or does not fit, or an adapter cannot be merged.
        PostrlError: it cannot be written.
    """
    from postrl.learning.merging import merged_model
    from postrl.learning.model_folder import write_model_folder

    check_target(target)
    kept = source.has_adapter and not merge
    if kept and dtype != "auto":
        raise UsageError(
            f"dtype = {dtype} is for whole weights, and an adapter is written as it was trained",
            hint="add --merge, or leave --dtype out",
        )
    if dtype == "auto" and (source.whole or (kept and source.adapter is not None)):
        with _model_folder(target) as folder:
            shutil.copytree(source.adapter.folder if source.adapter else source.path, folder, dirs_exist_ok=True)
        return None
    if source.adapter is not None:
        check_mergeable(source.adapter)
        if source.base == source.adapter.base:
            base_of(source.adapter)  # raises where it is gone
    path = _base_path(source)
    model = _base(source, path, dtype, weights=not kept)
    if source.adapter is not None:
        model = merged_model(model, source.adapter)
    elif source.checkpoint is not None:
        model = _with_checkpoint(model, source.checkpoint, merge)
    tokenizer = _tokenizer(source, path)
    with _model_folder(target) as folder:
        _take_generation_config(model, source)
        write_model_folder(folder, model, tokenizer, source.settings)
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


def _base(source: Source, path: str, dtype: str, *, weights: bool) -> Any:
    """The base model in the dtype that is wanted (`auto`: in its own), with its weights or on the meta device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if weights:
        return loaded(AutoModelForCausalLM, source.settings, path, "model", dtype=dtype)
    config = loaded(AutoConfig, source.settings, path, "model")
    with explained(path, "model"), torch.device("meta"):
        return AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=source.settings.trust_remote_code
        )


def _tokenizer(source: Source, path: str) -> Any:
    """As the run used it, its chat template included; None: there is none anywhere."""
    from transformers import AutoTokenizer

    place = source.tokenizer or path
    if Path(place).is_dir() and not has_tokenizer(Path(place)):
        return None
    tokenizer = loaded(AutoTokenizer, source.settings, place, "tokenizer")
    if source.settings.chat_template and not source.tokenizer:
        tokenizer.chat_template = read_template(source.settings.chat_template)
    return tokenizer


def _take_generation_config(model: Any, source: Source) -> None:
    """That of the run, which knows where its completions end; else the base's."""
    from transformers import GenerationConfig

    folder = source.checkpoint or (source.adapter.folder if source.adapter else None)
    if folder is not None and (folder / "generation_config.json").exists():
        plain = model.get_base_model() if hasattr(model, "disable_adapter") else model
        plain.generation_config = GenerationConfig.from_pretrained(str(folder))


def _with_checkpoint(model: Any, checkpoint: Path, merge: bool) -> Any:
    """The model with the weights of a checkpoint: all that were trained, or an adapter, merged in if that is wanted."""
    from postrl.learning.checkpoint import load_policy, policy_names
    from postrl.learning.merging import untie

    if not (checkpoint / ADAPTER_CONFIG).exists():
        load_policy(checkpoint, model)
        return model
    from peft import PeftConfig, get_peft_model

    config = PeftConfig.from_pretrained(str(checkpoint))
    if merge:
        untie(model, policy_names(checkpoint), config)
    model = get_peft_model(model, config)
    load_policy(checkpoint, model)
    return model.merge_and_unload() if merge else model


@contextmanager
def _model_folder(target: Path) -> Iterator[Path]:
    """The folder to write the model of `target` into, see `whole_folder`.

    Raises:
        PostrlError: the disk is full or not writable.
    """
    from postrl.learning.model_folder import saving

    hint = "free space, or choose another place with --output-dir; nothing was left behind"
    with saving("the model", target, hint), whole_folder(target) as folder:
        yield folder
