"""Data sets, columns, prompts: from `--dataset` to token ids.

A prompt column holds text or messages, as in TRL: text is a plain prompt, given to the model as it is; a list of
messages is conversational and goes through the tokenizer's chat template. The text of a known data set (PRESETS), and
any text with --chat or a --system-prompt, becomes a user message. A --system-prompt takes the place of a row's own.
Whatever rows hold is made plain at the door (`postrl.rows`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from postrl.config import GRPOConfig
from postrl.config.values import arguments
from postrl.data.sources import (
    Row,
    Rows,
    files_of_split,
    known_names,
    read_files,
    read_hub,
)
from postrl.data.stream import PromptStream, repeats, steps_for_epochs
from postrl.errors import DataError, UsageError
from postrl.host.hub import hub_is_reachable
from postrl.host.text import read_template
from postrl.rows.columns import ANSWER, PROMPT, Guess, guess, likely
from postrl.rows.given import given_rows
from postrl.rows.plain import plain_row
from postrl.rows.programming import code_columns
from postrl.rows.recipes import PRESETS, Preset, dataset_names, find_preset, is_file_name, parse_weight
from postrl.rows.rendering import Rendering
from postrl.rows.tokens import encode_prompts
from postrl.types import Prompt

__all__ = ["PRESETS", "PromptSet", "PromptStream", "load_prompts", "steps_for_epochs"]

Split = Literal["train", "eval"]

NAMED_UNUSABLE = 5
"""Unusable rows that are named; the rest are counted."""


@dataclass(slots=True)
class PromptSet:
    """The usable prompts of one or several data sets, and what was left out on the way."""

    prompts: list[Prompt]
    dropped_long: int = 0
    """Rows left out because their prompt has more than max_prompt_length tokens."""
    unusable: list[str] = field(default_factory=list)
    """Ids of the first few rows without a usable prompt or answer."""
    num_unusable: int = 0
    default_reward: tuple[str, ...] = ()
    """The data sets' own rewards: what scores them when no reward is given. Empty: they have none."""
    weights: dict[str, float] | None = None
    """Share of each data set by name, for PromptStream; None: each prompt counts the same."""
    name: str = ""
    """The data sets' names, joined with +."""
    notes: list[str] = field(default_factory=list)
    """What was guessed or looks unintended, a line each."""

    def describe(self) -> str:
        """One line for people: how many prompts, how many left out and why."""
        left_out = []
        if self.dropped_long:
            left_out.append(f"{self.dropped_long} too long")
        if self.num_unusable:
            more = ", ..." if self.num_unusable > len(self.unusable) else ""
            left_out.append(f"{self.num_unusable} without a usable prompt or answer: {', '.join(self.unusable)}{more}")
        return f"{self.name}: {len(self.prompts)} prompts" + (f" ({'; '.join(left_out)})" if left_out else "")


def load_prompts(
    config: GRPOConfig,
    tokenizer: Any,
    *,
    split: Split,
    raw: Any = None,
) -> PromptSet:
    """The prompts to train or to evaluate on, with token ids.

    Args:
        tokenizer: a transformers tokenizer; `config.chat_template` replaces its template.
        split: "train": --dataset; "eval": --eval-dataset, at most eval_prompts of it, spread evenly over its rows.
        raw: rows given by a script instead (see `given_rows`); named "train" or "eval".

    Raises:
        DataError: no such data set, a missing column, offline, or nothing usable.
        UsageError: no data set given, a weight that is none.
    """
    if config.chat_template:
        tokenizer.chat_template = read_template(config.chat_template)
    sources = _sources(config, split, raw)
    parts = [_prompts(source, config, tokenizer) for source in sources]
    result = _joined(sources, parts, own_rewards=not config.reward)
    if split == "eval":
        result.prompts = _spread(result.prompts, config.eval_prompts)
    return result


QUICK = 50 << 20
"""Bytes of data files that are read in a moment."""


def check_sources(config: GRPOConfig, look: Callable[[str, list[str]], None] = lambda name, columns: None) -> list[str]:
    """Raise what `load_prompts` would for --dataset and --eval-dataset, as far as it shows in a moment and without a
    tokenizer: no such data set, not cached while offline, a broken file, a missing column, a value that is not plain, a step of
    far more prompts than rows. For the launcher; large files and the hub itself are left to `load_prompts`. Returns a line for
    each thing that was guessed.

    Args:
        look: is shown each data set's name and the columns that rewards will have.
    """
    names = [_path_of(config, name) or name for name in dataset_names(config.dataset)] or config.dataset_path
    train = _train(config) if all(_is_quick(name) for name in names) else []
    evaluation = []
    if config.eval_dataset:
        name, _ = _evaluated(config.eval_dataset)
        path = _path_of(config, name) if name in dataset_names(config.dataset) else None
        evaluation = [_eval(config)] if _is_quick(path or name) else []
    notes = []
    for source in train + evaluation:
        rows = _plain(source)
        prompt, answer, guessed = _columns(source, rows, config)
        columns = dict.fromkeys(name for row in rows for name in _converted(row, source.preset) if name != prompt)
        look(source.name, list(columns | dict.fromkeys(["answer"] if answer else [])))
        notes += [source.note, guessed.line(source.name)]
    if train:
        notes.append(repeats(config.prompts_per_step, sum(len(source.rows) for source in train)))
    return [note for note in dict.fromkeys(notes) if note]


def _is_quick(name: str) -> bool:
    preset, path = find_preset(name), Path(name).expanduser()
    if preset and (preset.generate or preset.packaged_file()):
        return True
    if preset is None and is_file_name(name):
        files = path.iterdir() if path.is_dir() else [path] if path.exists() else []
        return sum(file.stat().st_size for file in files) <= QUICK
    return not hub_is_reachable()


def _spread(prompts: list[Prompt], most: int) -> list[Prompt]:
    """At most `most` of them, evenly spaced: the same ones each time, not only the first rows of a sorted file."""
    n = min(most, len(prompts))
    return [prompts[i * len(prompts) // n] for i in range(n)]


# -- sources: which rows, under which name ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Source:
    name: str
    rows: Rows
    preset: Preset | None = None
    weight: float | None = None
    own_columns: bool = False
    """The preset's columns hold, and --prompt-column and --answer-column are about another data set."""
    note: str = ""
    """Where the rows come from, if that was not said."""


def _sources(config: GRPOConfig, split: Split, raw: Any) -> list[_Source]:
    if raw is not None:
        return [_Source(split, given_rows(raw, split))]
    return _train(config) if split == "train" else [_eval(config)]


def _train(config: GRPOConfig) -> list[_Source]:
    """The data sets of --dataset and --dataset-path."""
    if not config.dataset and not config.dataset_path:
        raise UsageError("no data set is given", hint="--dataset arithmetic, or --dataset FILE.jsonl")
    if not config.dataset:
        file = config.dataset_path[0]
        return [_Source(Path(file).stem, read_files(file, config.dataset_split or "train"))]
    sources = []
    for entry in config.dataset:
        name, weight = parse_weight(entry)
        preset, path = find_preset(name), _path_of(config, name)
        if path and preset and preset.generate:
            raise UsageError(f"{name} is generated, and --dataset-path is given", hint="give one of them")
        split = _train_split(config, preset)
        source = _named(name, split, path=path, hub_config=config.dataset_config)
        source.weight = weight
        source.own_columns = source.preset is not None and len(config.dataset) > 1
        sources.append(source)
    names = [source.name for source in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(f"--dataset names {twice} twice", hint="give it once, with a weight: --dataset NAME=2")
    return sources


def _train_split(config: GRPOConfig, preset: Preset | None) -> str:
    return config.dataset_split or (preset.splits["train"] if preset else "train")


def _path_of(config: GRPOConfig, name: str) -> str | None:
    """Where --dataset-path has the rows of this data set; a path without a name is that of the only one."""
    for entry in config.dataset_path:
        of, equals, path = entry.partition("=")
        if equals and of == name:
            return path
    return next((entry for entry in config.dataset_path if len(config.dataset) <= 1), None)


def _eval(config: GRPOConfig) -> _Source:
    """The data set of --eval-dataset: NAME, NAME:split or a local file."""
    if not config.eval_dataset:
        raise UsageError("no evaluation set is given", hint="--eval-dataset NAME, NAME:split or FILE")
    name, split = _evaluated(config.eval_dataset)
    trained = dataset_names(config.dataset)
    if find_preset(name) is None and is_file_name(name):
        if split and name in (trained or config.dataset_path):
            return _beside("", name, _train_split(config, None), split)
        rows = read_files(name, split or "test")
        preset = (
            find_preset(trained[0]) if trained else None
        )  # a file beside a known data set is most likely of its kind
        fits = preset is not None and any(preset.prompt_column in row for row in rows[:1])
        return _Source(Path(name).stem, rows, preset if fits else None)
    preset = find_preset(name)
    split = split or (preset.splits["eval"] if preset else "test")
    same = name in trained  # then --dataset-path and --dataset-config are about it
    path = _path_of(config, name) if same else None
    if path:
        source = _beside(name, path, _train_split(config, preset), split, preset)
    else:
        source = _named(name, split, path=None, hub_config=config.dataset_config if same else None)
    source.own_columns = source.preset is not None and trained != [name]
    return source


def _beside(name: str, path: str, trained: str, split: str, preset: Preset | None = None) -> _Source:
    """Another split of the data set whose rows to train on are read from `path`; "": it has its file's name."""
    files = files_of_split(path, trained, split)
    source = _Source(name or files[0].stem, [row for file in files for row in read_files(file, split)], preset)
    source.note = f"the evaluation reads {', '.join(map(str, files))}"
    return source


def _evaluated(given: str) -> tuple[str, str]:
    """What --eval-dataset says: name and split, "" where it names none."""
    name, _, split = given.rpartition(":")
    whole = Path(given).expanduser().exists() or is_file_name(Path(given).name)
    return (given, "") if not name or "/" in split or whole else (name, split)


def _named(name: str, split: str, *, path: str | Path | None, hub_config: str | None) -> _Source:
    """The rows of a data set by name: generated, or from `path` if given, else from a package, a file or the hub."""
    preset = find_preset(name)
    if preset and preset.generate:
        return _Source(name, preset.generate(split), preset)
    path = path or (preset.packaged_file() if preset else None)
    if path:
        return _Source(name, read_files(path, split), preset)
    if preset:
        return _Source(name, _from_hub(preset, hub_config, split), preset)
    if is_file_name(name):
        return _Source(Path(name).stem, read_files(name, split))
    if "/" not in name:
        raise DataError(
            f"there is no data set {name}",
            hint=f"{known_names(name)}; a hub id is owner/name, a local file ends in .jsonl, .json, .parquet or .csv",
        )
    return _Source(name, read_hub(name, hub_config, split))


def _from_hub(preset: Preset, hub_config: str | None, split: str) -> Rows:
    try:
        return read_hub(preset.hub_id, hub_config or preset.config, split)
    except DataError as error:
        if preset.package:
            error.hint = f"pip install {preset.package[0]}, which holds the rows; or {error.hint}"
        raise


# -- rows to prompts -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    prompts: list[Prompt]
    dropped_long: int
    unusable: list[str]
    num_rows: int
    notes: list[str]


def _prompts(source: _Source, config: GRPOConfig, tokenizer: Any) -> _Part:
    """The prompts of one source: columns picked, templates applied, tokens counted."""
    rows = _plain(source)
    prompt_column, answer_column, guessed = _columns(source, rows, config)
    optional = answer_column == guessed.answer  # nobody has said that a row needs one
    template = source.preset.template if source.preset else None
    rendering = Rendering(tokenizer, template, config.chat, config.system_prompt, arguments(config.chat_template_arg))
    found: list[Prompt] = []
    unusable: list[str] = []
    for i, given in enumerate(rows):
        prompt_id, row = f"{source.name}:{i}", _converted(given, source.preset)
        prompt, answer = row.get(prompt_column), row.get(answer_column) if answer_column else None
        if _empty(prompt) or (answer_column and not optional and _empty(answer)):
            unusable.append(prompt_id)
            continue
        columns = {name: value for name, value in row.items() if name != prompt_column}
        if answer_column and not _empty(answer):
            columns["answer"] = answer
        messages, text = rendering.render(prompt_id, prompt, columns)
        found.append(Prompt(prompt_id, messages, text, [], columns))
    _tokenize(found, tokenizer)
    unusable += [prompt.prompt_id for prompt in found if not prompt.token_ids]
    found = [prompt for prompt in found if prompt.token_ids]
    short = [prompt for prompt in found if len(prompt.token_ids) <= config.max_prompt_length]
    notes = [source.note, guessed.line(source.name), *rendering.notes(chat_is_likely=not _is_base(config.model))]
    return _Part(short, len(found) - len(short), unusable, len(rows), [note for note in notes if note])


def _plain(source: _Source) -> list[dict[str, Any]]:
    """The rows of a source as plain values.

    Raises:
        DataError: it has none, or one that holds what is not plain.
    """
    if not len(source.rows):
        raise DataError(
            f"{source.name} has no rows", hint="is it the right file, and the right split (--dataset-split)?"
        )
    return [plain_row(row, f"{source.name}:{i}") for i, row in enumerate(source.rows)]


def _columns(source: _Source, rows: Rows, config: GRPOConfig) -> tuple[str, str | None, Guess]:
    """Names of the prompt and the answer column, and which of them were guessed. A data set whose rewards need no answer
    may have none."""
    columns = getattr(source.rows, "column_names", None)
    names = columns if isinstance(columns, list) else list(dict.fromkeys(name for row in rows for name in row))
    preset = source.preset
    flags = (None, None) if source.own_columns else (config.prompt_column, config.answer_column)
    guessed = Guess() if preset else guess(names, rows, prompt=flags[0], answer=flags[1])
    prompt = flags[0] or guessed.prompt or (preset.prompt_column if preset else PROMPT)
    answer = flags[1] or guessed.answer or (preset.answer_column if preset else ANSWER)
    between = likely(PROMPT, names, rows)
    required = {prompt: f"choose one with --prompt-column{': ' + ' or '.join(between) if between else ''}"}
    if answer and (flags[1] or preset):
        required[answer] = "choose one with --answer-column"
    if preset and preset.needs:
        required = dict.fromkeys(preset.needs, f"rows of {source.name} have {', '.join(preset.needs)}")
    for column, hint in required.items():
        if names and column not in names:
            raise DataError(f"{source.name} has no column {column!r}; it has {', '.join(names)}", hint=hint)
    return prompt, answer if answer in names else None, guessed


def _is_base(model: str) -> bool:
    """Whether its name says that a model is no chat model."""
    return re.search(r"[-_](base|pt)([-_.]|$)", Path(model).name, re.IGNORECASE) is not None


def _converted(row: Row, preset: Preset | None) -> Row:
    """A row with the columns that its reward asks for; without a prompt, so unusable, where it cannot be converted."""
    if preset is None or preset.convert is None:
        return {**row, **code_columns(row)}
    try:
        return {**row, **preset.convert(row)}
    except (LookupError, TypeError, ValueError, AttributeError):  # a missing cell, one of another kind, no tests
        return {}


def _empty(value: Any) -> bool:
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def _tokenize(prompts: Sequence[Prompt], tokenizer: Any) -> None:
    """Fill in the token ids."""
    for plain in (True, False):
        group = [prompt for prompt in prompts if (prompt.messages is None) == plain]
        ids = encode_prompts(tokenizer, [prompt.text for prompt in group], templated=not plain)
        for prompt, token_ids in zip(group, ids, strict=True):
            prompt.token_ids = token_ids


# -- several data sets -----------------------------------------------------------------------------------------------


def _joined(sources: list[_Source], parts: list[_Part], *, own_rewards: bool) -> PromptSet:
    """One set of all. `own_rewards`: no --reward is given, so each row is scored by its own data set's."""
    for source, part in zip(sources, parts, strict=True):
        if not part.prompts:
            raise _nothing_left(source, part)
    rewards = tuple(dict.fromkeys(source.preset.reward for source in sources if source.preset))
    if own_rewards and rewards:
        _score_by_own(sources, parts)
    unusable = [row for part in parts for row in part.unusable]
    weighted = len(sources) > 1 and any(source.weight is not None for source in sources)
    return PromptSet(
        prompts=[prompt for part in parts for prompt in part.prompts],
        dropped_long=sum(part.dropped_long for part in parts),
        unusable=unusable[:NAMED_UNUSABLE],
        num_unusable=len(unusable),
        default_reward=rewards,
        weights={source.name: source.weight or 1.0 for source in sources} if weighted else None,
        name="+".join(source.name for source in sources),
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _nothing_left(source: _Source, part: _Part) -> DataError:
    """Why a data set gives no prompt, and what would help."""
    hints = ["raise --max-prompt-length"] * bool(part.dropped_long)
    hints += ["check --prompt-column and --answer-column"] * bool(part.unusable)
    return DataError(
        f"no row of {source.name} is usable: {part.num_rows} rows, {part.dropped_long} longer than "
        f"max_prompt_length, {len(part.unusable)} without a usable prompt or answer",
        hint=", or ".join(hints),
    )


def _score_by_own(sources: list[_Source], parts: list[_Part]) -> None:
    for source, part in zip(sources, parts, strict=True):
        if source.preset is None:
            raise UsageError(f"{source.name} has no reward of its own", hint="give one for all data sets with --reward")
        for prompt in part.prompts:
            prompt.rewards = (source.preset.reward,)
