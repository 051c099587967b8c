"""Data sets, columns, prompts: from `--dataset` to token ids.

A prompt column holds text or messages, as in TRL: text is a plain prompt, given to the model as it is; a list of
messages is conversational and goes through the tokenizer's chat template. The text of a known data set (PRESETS), and
any text when there is a --system-prompt, becomes a user message. A --system-prompt takes the place of a row's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from postrl.config import GRPOConfig
from postrl.data_presets import PRESETS, Preset, dataset_names, find_preset, parse_weight
from postrl.data_sources import (
    Row,
    Rows,
    folder_has_split,
    hub_is_reachable,
    is_file_name,
    known_names,
    read_files,
    read_hub,
)
from postrl.data_stream import PromptStream, repeats, steps_for_epochs
from postrl.errors import DataError, UsageError
from postrl.host.text import read_template
from postrl.types import Messages, Prompt

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

    def describe(self) -> str:
        """One line for people: how many prompts, how many left out and why."""
        left_out = []
        if self.dropped_long:
            left_out.append(f"{self.dropped_long} too long")
        if self.num_unusable:
            more = ", ..." if self.num_unusable > len(self.unusable) else ""
            left_out.append(f"{self.num_unusable} without a usable answer: {', '.join(self.unusable)}{more}")
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
        raw: rows given by a script instead (a datasets.Dataset or a list of dicts); named "train" or "eval".

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


def check_sources(config: GRPOConfig) -> None:
    """Raise what `load_prompts` would for --dataset, as far as it shows in a moment and without a tokenizer: no such
    data set, not cached while offline, a broken file, a missing column, a step of far more prompts than rows. For the
    launcher; large files and the hub itself are left to `load_prompts`."""
    names = [_path_of(config, name) or name for name in dataset_names(config.dataset)] or config.dataset_path
    if all(_is_quick(name) for name in names):
        sources = _train(config)
        for source in sources:
            _columns(source, config)
        repeats(config.prompts_per_step, max(1, sum(len(source.rows) for source in sources)))


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


def _sources(config: GRPOConfig, split: Split, raw: Any) -> list[_Source]:
    if raw is not None:
        return [_given(raw, split)]
    return _train(config) if split == "train" else [_eval(config)]


def _given(raw: Any, split: Split) -> _Source:
    """Rows that a script gives."""
    if isinstance(raw, dict):  # a DatasetDict
        raise DataError(
            f"{split}_dataset has several splits: {', '.join(raw)}",
            hint=f"give one: {split}_dataset=dataset[{next(iter(raw))!r}]",
        )
    if not (hasattr(raw, "__len__") and hasattr(raw, "__getitem__")):
        raise DataError(
            f"{split}_dataset is a {type(raw).__name__}, expected a datasets.Dataset or a list of dicts",
            hint=f"{split}_dataset=list(dataset) reads a stream into memory",
        )
    if isinstance(raw, list) and not all(isinstance(row, dict) for row in raw):
        raise DataError(
            f"{split}_dataset has rows that are no dicts", hint="give rows such as {'prompt': ..., 'answer': ...}"
        )
    return _Source(split, raw)


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
        split = config.dataset_split or (preset.splits["train"] if preset else "train")
        source = _named(name, split, path=path, hub_config=config.dataset_config)
        source.weight = weight
        source.own_columns = source.preset is not None and len(config.dataset) > 1
        sources.append(source)
    names = [source.name for source in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(f"--dataset names {twice} twice", hint="give it once, with a weight: --dataset NAME=2")
    return sources


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
    given = config.eval_dataset
    name, _, split = given.rpartition(":")
    if not name or "/" in split or is_file_name(given):
        name, split = given, ""
    trained = dataset_names(config.dataset)
    if find_preset(name) is None and is_file_name(name):
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
    path = path if path and folder_has_split(path, split) else None
    source = _named(name, split, path=path, hub_config=config.dataset_config if same else None)
    source.own_columns = source.preset is not None and trained != [name]
    return source


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


def _prompts(source: _Source, config: GRPOConfig, tokenizer: Any) -> _Part:
    """The prompts of one source: columns picked, templates applied, tokens counted."""
    prompt_column, answer_column = _columns(source, config)
    found: list[Prompt] = []
    unusable: list[str] = []
    for i, row in enumerate(source.rows):
        prompt_id = f"{source.name}:{i}"
        row = _converted(row, source.preset)
        prompt, answer = row.get(prompt_column), row.get(answer_column) if answer_column else None
        if _empty(prompt) or (answer_column and _empty(answer)):
            unusable.append(prompt_id)
            continue
        columns = {name: value for name, value in row.items() if name != prompt_column}
        if answer_column:
            columns["answer"] = answer
        messages, text = _render(prompt_id, prompt, source.preset, config, tokenizer)
        found.append(Prompt(prompt_id, messages, text, [], columns))
    _tokenize(found, tokenizer)
    short = [prompt for prompt in found if 0 < len(prompt.token_ids) <= config.max_prompt_length]
    return _Part(short, len(found) - len(short), unusable, len(source.rows))


def _columns(source: _Source, config: GRPOConfig) -> tuple[str, str | None]:
    """Names of the prompt and the answer column. A data set whose rewards need no answer may have none."""
    names = list(
        getattr(source.rows, "column_names", None) or dict.fromkeys(name for row in source.rows for name in row)
    )
    preset = source.preset
    flags = (None, None) if source.own_columns else (config.prompt_column, config.answer_column)
    prompt = flags[0] or (preset.prompt_column if preset else "prompt")
    answer = flags[1] or (preset.answer_column if preset else "answer")
    required = {prompt: "choose one with --prompt-column"}
    if answer and (flags[1] or preset):
        required[answer] = "choose one with --answer-column"
    if preset and preset.needs:
        required = dict.fromkeys(preset.needs, f"rows of {source.name} have {', '.join(preset.needs)}")
    for column, hint in required.items():
        if names and column not in names:
            raise DataError(f"{source.name} has no column {column!r}; it has {', '.join(names)}", hint=hint)
    return prompt, answer if answer in names else None


def _converted(row: Row, preset: Preset | None) -> Row:
    """A row with the columns that its reward asks for; without a prompt, so unusable, where it cannot be converted."""
    if preset is None or preset.convert is None:
        return row
    try:
        return {**row, **preset.convert(row)}
    except (LookupError, TypeError, ValueError, AttributeError):  # a missing cell, one of another kind, no tests
        return {}


def _empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or value == [] or (isinstance(value, float) and math.isnan(value))


def _render(
    prompt_id: str, prompt: Any, preset: Preset | None, config: GRPOConfig, tokenizer: Any
) -> tuple[Messages | None, str]:
    """A prompt's messages (None: plain) and its text as the model reads it."""
    if isinstance(prompt, str):
        text = preset.template.replace("{prompt}", prompt) if preset else prompt
        if config.system_prompt is None and not (preset and tokenizer.chat_template):
            return None, text
        messages: Messages = [{"role": "user", "content": text}]
    elif isinstance(prompt, Iterable) and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in prompt):
        messages = [dict(m) for m in prompt]
    else:
        raise DataError(
            f"{prompt_id}: the prompt is a {type(prompt).__name__}, expected text or a list of messages (role, content)",
            hint="choose the column with --prompt-column",
        )
    if config.system_prompt is not None:
        messages = [
            {"role": "system", "content": config.system_prompt},
            *(m for m in messages if m["role"] != "system"),
        ]
    return messages, _apply_template(prompt_id, messages, tokenizer)


def _apply_template(prompt_id: str, messages: Messages, tokenizer: Any) -> str:
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise DataError(
            "the prompts are conversations, and the model's tokenizer has no chat template",
            hint="choose an instruction-tuned model, or give a template with --chat-template FILE",
        )
    goes_on = messages[-1]["role"] == "assistant"  # the policy finishes a turn that the prompt begins
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on
            )
        )
    except (TemplateError, ValueError) as error:
        raise DataError(
            f"{prompt_id}: the chat template refuses the prompt: {error}",
            hint="--chat-template FILE replaces the template",
        ) from error


def _tokenize(prompts: Sequence[Prompt], tokenizer: Any) -> None:
    """Fill in the token ids. A chat template writes its own special tokens; plain text gets the tokenizer's."""
    for plain in (True, False):
        group = [prompt for prompt in prompts if (prompt.messages is None) == plain]
        for start in range(0, len(group), 1024):
            batch = group[start : start + 1024]
            encoded = tokenizer([prompt.text for prompt in batch], add_special_tokens=plain, verbose=False)
            for prompt, token_ids in zip(batch, encoded["input_ids"], strict=True):
                prompt.token_ids = list(token_ids)


# -- several data sets -----------------------------------------------------------------------------------------------


def _joined(sources: list[_Source], parts: list[_Part], *, own_rewards: bool) -> PromptSet:
    """One set of all. `own_rewards`: no --reward is given, so each row is scored by its own data set's."""
    for source, part in zip(sources, parts, strict=True):
        if not part.prompts:
            raise DataError(
                f"no row of {source.name} is usable: {part.num_rows} rows, {part.dropped_long} longer than "
                f"max_prompt_length, {len(part.unusable)} without a usable prompt or answer",
                hint="raise --max-prompt-length, or check --prompt-column and --answer-column",
            )
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
    )


def _score_by_own(sources: list[_Source], parts: list[_Part]) -> None:
    for source, part in zip(sources, parts, strict=True):
        if source.preset is None:
            raise UsageError(f"{source.name} has no reward of its own", hint="give one for all data sets with --reward")
        for prompt in part.prompts:
            prompt.rewards = (source.preset.reward,)
