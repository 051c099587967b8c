"""Data sets, columns, prompts: from `--dataset` to token ids.

A prompt column holds text or messages, as in TRL: text is a plain prompt, given to the model as it is; a list of
messages is conversational and goes through the tokenizer's chat template. The text of a known data set (RECIPES), and
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
from postrl.data.chosen import Source, chosen, quick_sources
from postrl.data.sources import Row, Rows
from postrl.data.stream import PromptStream, repeats, steps_for_epochs
from postrl.errors import DataError, UsageError
from postrl.host.text import read_template
from postrl.rows.columns import ANSWER, PROMPT, Guess, guess, likely
from postrl.rows.plain import plain_row
from postrl.rows.programming import code_columns
from postrl.rows.recipes import RECIPES, Recipe
from postrl.rows.rendering import Rendering
from postrl.rows.tokens import encode_prompts
from postrl.types import Prompt

__all__ = ["RECIPES", "PromptSet", "PromptStream", "load_prompts", "steps_for_epochs"]

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
    split: Literal["train", "eval"],
    raw: Any = None,
) -> PromptSet:
    """The prompts to train or to evaluate on, with token ids.

    Args:
        tokenizer: a transformers tokenizer; `config.chat_template` replaces its template.
        split: "train": --dataset; "eval": --eval-dataset, at most eval_prompts of it, spread evenly over its rows.
        raw: rows given by a script instead (see `given_rows`); named "train" or "eval".

    Raises:
        DataError: no such data set, a missing column, offline, or nothing usable.
        UsageError: no data set given, a weight that is not above 0.
    """
    if config.chat_template:
        tokenizer.chat_template = read_template(config.chat_template)
    sources = chosen(config, split, raw)
    parts = [_prompts(source, config, tokenizer) for source in sources]
    result = _joined(sources, parts, own_rewards=not config.reward)
    if split == "eval":
        result.prompts = _spread(result.prompts, config.eval_prompts)
    return result


def check_sources(config: GRPOConfig, look: Callable[[str, list[str]], None] = lambda name, columns: None) -> list[str]:
    """Raise what `load_prompts` would for --dataset and --eval-dataset, as far as it shows in a moment and without a
    tokenizer: no such data set, not cached while offline, a broken file, a missing column, a value that is not plain, a step of
    far more prompts than rows. For the launcher; large files and the hub itself are left to `load_prompts`. Returns a line for
    each thing that was guessed.

    Args:
        look: is shown each data set's name and the columns that rewards will have.
    """
    train, evaluation = quick_sources(config)
    notes = []
    for source in train + evaluation:
        rows = _plain(source)
        prompt, answer, guessed = _columns(source, rows, config)
        columns = dict.fromkeys(name for row in rows for name in _converted(row, source.recipe) if name != prompt)
        look(source.name, list(columns | dict.fromkeys(["answer"] if answer else [])))
        notes += [source.note, guessed.line(source.name)]
    if train:
        notes.append(repeats(config.prompts_per_step, sum(len(source.rows) for source in train)))
    return [note for note in dict.fromkeys(notes) if note]


def _spread(prompts: list[Prompt], most: int) -> list[Prompt]:
    """At most `most` of them, evenly spaced: the same ones each time, not only the first rows of a sorted file."""
    n = min(most, len(prompts))
    return [prompts[i * len(prompts) // n] for i in range(n)]


# -- rows to prompts -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    prompts: list[Prompt]
    dropped_long: int
    unusable: list[str]
    num_rows: int
    notes: list[str]


def _prompts(source: Source, config: GRPOConfig, tokenizer: Any) -> _Part:
    """The prompts of one source: columns picked, templates applied, tokens counted."""
    rows = _plain(source)
    prompt_column, answer_column, guessed = _columns(source, rows, config)
    optional = answer_column == guessed.answer  # nobody has said that a row needs one
    template = source.recipe.template if source.recipe else None
    rendering = Rendering(tokenizer, template, config.chat, config.system_prompt, arguments(config.chat_template_arg))
    found: list[Prompt] = []
    unusable: list[str] = []
    for i, given in enumerate(rows):
        prompt_id, row = f"{source.name}:{i}", _converted(given, source.recipe)
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


def _plain(source: Source) -> list[dict[str, Any]]:
    """The rows of a source as plain values.

    Raises:
        DataError: it has none, or one that holds what is not plain.
    """
    if not len(source.rows):
        raise DataError(
            f"{source.name} has no rows", hint="is it the right file, and the right split (--dataset-split)?"
        )
    return [plain_row(row, f"{source.name}:{i}") for i, row in enumerate(source.rows)]


def _columns(source: Source, rows: Rows, config: GRPOConfig) -> tuple[str, str | None, Guess]:
    """Names of the prompt and the answer column, and which of them were guessed. A data set whose rewards need no answer
    may have none."""
    columns = getattr(source.rows, "column_names", None)
    names = columns if isinstance(columns, list) else list(dict.fromkeys(name for row in rows for name in row))
    recipe = source.recipe
    flags = (None, None) if source.own_columns else (config.prompt_column, config.answer_column)
    guessed = Guess() if recipe else guess(names, rows, prompt=flags[0], answer=flags[1])
    prompt = flags[0] or guessed.prompt or (recipe.prompt_column if recipe else PROMPT)
    answer = flags[1] or guessed.answer or (recipe.answer_column if recipe else ANSWER)
    between = likely(PROMPT, names, rows)
    required = {prompt: f"choose one with --prompt-column{': ' + ' or '.join(between) if between else ''}"}
    if answer and (flags[1] or recipe):
        required[answer] = "choose one with --answer-column"
    if recipe and recipe.needs:
        required = dict.fromkeys(recipe.needs, f"rows of {source.name} have {', '.join(recipe.needs)}")
    for column, hint in required.items():
        if names and column not in names:
            raise DataError(f"{source.name} has no column {column!r}; it has {', '.join(names)}", hint=hint)
    return prompt, answer if answer in names else None, guessed


def _is_base(model: str) -> bool:
    """Whether its name says that a model is not a chat model."""
    return re.search(r"[-_](base|pt)([-_.]|$)", Path(model).name, re.IGNORECASE) is not None


def _converted(row: Row, recipe: Recipe | None) -> Row:
    """A row with the columns that its reward asks for; without a prompt, so unusable, where it cannot be converted."""
    if recipe is None or recipe.convert is None:
        return {**row, **code_columns(row)}
    try:
        return {**row, **recipe.convert(row)}
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


def _joined(sources: list[Source], parts: list[_Part], *, own_rewards: bool) -> PromptSet:
    """One set of all. `own_rewards`: no --reward is given, so each row is scored by its own data set's."""
    for source, part in zip(sources, parts, strict=True):
        if not part.prompts:
            raise _nothing_left(source, part)
    rewards = tuple(dict.fromkeys(source.recipe.reward for source in sources if source.recipe))
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


def _nothing_left(source: Source, part: _Part) -> DataError:
    """Why a data set gives no prompt, and what would help."""
    hints = ["raise --max-prompt-length"] * bool(part.dropped_long)
    hints += ["check --prompt-column and --answer-column"] * bool(part.unusable)
    return DataError(
        f"no row of {source.name} is usable: {part.num_rows} rows, {part.dropped_long} longer than "
        f"max_prompt_length, {len(part.unusable)} without a usable prompt or answer",
        hint=", or ".join(hints),
    )


def _score_by_own(sources: list[Source], parts: list[_Part]) -> None:
    for source, part in zip(sources, parts, strict=True):
        if source.recipe is None:
            raise UsageError(f"{source.name} has no reward of its own", hint="give one for all data sets with --reward")
        for prompt in part.prompts:
            prompt.rewards = (source.recipe.reward,)
