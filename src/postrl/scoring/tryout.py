"""Groups to try a reward on without training: rows of a data set with completions that are made up, given, stored or
sampled. `postrl reward test` scores and shows them.

    made up     the row's own answer, the same in a box, and a wrong one
    given       a JSONL file: line i is about row i, with `completion` (text) or `completions` (several)
    stored      the rollouts of a run's last step
    sampled     from a model, in this process
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postrl.config import GRPOConfig
from postrl.data.prompts import PromptSet, load_prompts
from postrl.data.sources import read_files
from postrl.errors import DataError, UsageError
from postrl.rewards.runner import RewardRunner
from postrl.rows.plain import plain_row
from postrl.rows.rendering import TEXT_PROMPTS
from postrl.rows.tokens import check_vocabulary
from postrl.scoring.groups import as_group, unscored
from postrl.types import Group, Prompt

REFERENCES = ("answer", "canonical_solution", "solution", "code")
"""Columns that may hold a right answer."""


@dataclass
class Trial:
    """A group and where each of its completions comes from."""

    group: Group
    origins: list[str]
    seconds: float = 0.0
    """What scoring it took."""


async def score_all(runner: RewardRunner, trials: Sequence[Trial], done: Callable[[], None] = lambda: None) -> None:
    """Score one trial after the other, each in one call, as a group is in training.

    Raises:
        RewardError: a function cannot be loaded.
    """
    await runner.start()
    for trial in trials:
        begin = time.monotonic()
        await runner.score(trial.group)
        trial.seconds = time.monotonic() - begin
        done()


# -- rows --------------------------------------------------------------------------------------------------------------


class Untokenized:
    """Stands in for a tokenizer where no model is involved: known data sets are conversations, as for a chat model."""

    chat_template = "a chat model's"
    bos_token = eos_token = None
    all_special_tokens = ()

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **how: Any) -> str:
        return "\n\n".join(str(message["content"]) for message in messages)

    def __call__(self, texts: Sequence[str], **how: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] for _ in texts]}


def load_rows(config: GRPOConfig, raw: Any = None) -> PromptSet:
    """The prompts of --dataset, or of rows given as `raw`, without a tokenizer.

    Raises:
        DataError, UsageError: as `load_prompts`.
    """
    found = load_prompts(config, Untokenized(), split="train", raw=raw)
    found.notes = [note for note in found.notes if TEXT_PROMPTS not in note]  # of a model, and there is none
    return found


# -- made up -----------------------------------------------------------------------------------------------------------


def made_up(prompts: Sequence[Prompt]) -> list[Trial]:
    """A right and a wrong completion of each row.

    Raises:
        UsageError: the rows carry no answer to make them from.
    """
    trials = []
    for number, prompt in enumerate(prompts):
        reference = next((prompt.columns[name] for name in REFERENCES if prompt.columns.get(name) is not None), None)
        if reference is None:
            raise UsageError(
                f"the row {prompt.prompt_id} has no answer to make a completion from (columns: "
                f"{', '.join(prompt.columns) or 'none'})",
                hint="give completions with --completions FILE.jsonl or --run RUN, or sample them with --sample",
            )
        made = _programs(str(reference)) if "tests" in prompt.columns else _answers(str(reference))
        trials.append(Trial(as_group(prompt, number, list(made.values())), list(made)))
    return trials


def _programs(reference: str) -> dict[str, str]:
    return {"the solution": reference, "empty program": "```python\npass\n```"}


def _answers(answer: str) -> dict[str, str]:
    marked = "####" in answer or "\\boxed" in answer
    wrong = wrong_answer(answer)
    if marked:
        return {"the answer": answer, "wrong": wrong}
    return {
        "the answer": answer,
        "boxed": f"The answer is \\boxed{{{answer}}}.",
        "wrong, boxed": f"The answer is \\boxed{{{wrong}}}.",
    }


def wrong_answer(answer: str) -> str:
    """Another answer of the same kind: the last number one higher; without a number, the text turned round."""
    numbers = list(re.finditer(r"[0-9]+", answer))
    if numbers:
        last = numbers[-1]
        return answer[: last.start()] + _one_more(last.group()) + answer[last.end() :]
    turned = answer[::-1]
    return turned if turned != answer else f"not {answer}"


def _one_more(digits: str) -> str:
    """The number one higher, at the same width; in steps of one digit, so that no length is too long for int()."""
    head, last = digits.rstrip("9"), len(digits) - len(digits.rstrip("9"))
    return ("1" if not head else head[:-1] + str(int(head[-1]) + 1)) + "0" * last


# -- given -------------------------------------------------------------------------------------------------------------


def given(config: GRPOConfig, path: str | Path, most: int) -> tuple[PromptSet, list[Trial]]:
    """The first completions of a file, each line on the data set's row of the same number, or on itself when no data
    set is given. What else a line holds (an `answer`, a `prompt`) takes the place of the row's column.

    Raises:
        DataError: a line without a completion, or about a row that does not exist or is not usable.
        UsageError: several data sets, whose rows have no common numbering.
    """
    lines = read_files(path)
    texts = [_completions(line, f"{path}, line {i + 1}") for i, line in enumerate(lines)]
    extra = [
        {
            name: value
            for name, value in plain_row(line, f"{path}, line {i + 1}").items()
            if not name.startswith("completion")
        }
        for i, line in enumerate(lines)
    ]
    named = config.dataset or config.dataset_path
    if len(config.dataset) > 1:
        raise UsageError(f"{len(config.dataset)} data sets are given with --completions", hint="give one of them")
    found = load_rows(config) if named else load_rows(config, [{"prompt": "(no prompt)", **line} for line in extra])
    rows = {int(prompt.prompt_id.rpartition(":")[2]): prompt for prompt in found.prompts}
    trials = []
    for i in range(min(most, len(lines))):
        if i not in rows:
            raise DataError(
                f"{path}, line {i + 1} is about row {i} of {found.name}, which does not exist or is not usable",
                hint="line i is about row i; a line may carry its own `prompt` and `answer` when no --dataset is given",
            )
        prompt = rows[i]
        prompt.columns.update({name: value for name, value in extra[i].items() if name != "prompt"} if named else {})
        origins = [f"line {i + 1}"] * len(texts[i])
        trials.append(Trial(as_group(prompt, i, texts[i]), origins))
    return found, trials


def _completions(line: dict[str, Any], where: str) -> list[str]:
    values = line.get("completions", [line.get("completion")])
    texts = [_text(value) for value in values] if isinstance(values, list) else []
    if not texts or None in texts:
        raise DataError(
            f"{where} has no completion; it has {', '.join(line) or 'no column'}",
            hint='a line is {"completion": "text"} or {"completions": ["text", "text"]}',
        )
    return [text for text in texts if text is not None]


def _text(value: Any) -> str | None:
    """A completion as text: itself, or what the last of its messages says."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    return value if isinstance(value, str) else None


# -- stored ------------------------------------------------------------------------------------------------------------


def stored(run: str | Path, most: int, *, own: bool = False) -> list[Trial]:
    """The first groups of a run's last step; `own`: each is for the rewards that scored it in the run, else for all.

    Raises:
        UsageError: no run, or no stored rollouts.
    """
    from postrl.rollout.store import read_rollouts
    from postrl.run.folder import step_of
    from postrl.scoring.rescore import steps_of

    file = steps_of(run)[-1]
    groups = [unscored(group, group.rewards if own else ()) for group in read_rollouts(file)[:most]]
    return [Trial(group, [f"step {step_of(file)}"] * len(group.rollouts)) for group in groups]


# -- sampled -----------------------------------------------------------------------------------------------------------


async def sampled(config: GRPOConfig, path: str, most: int, per_prompt: int) -> tuple[PromptSet, list[Trial]]:
    """Completions of the first rows, from the model at `path`, in this process.

    Raises:
        UsageError, DataError: the model or the data cannot be loaded.
    """
    import torch
    from transformers.utils import logging

    from postrl.learning.loading import load_model, load_tokenizer, stop_token_ids, with_lora
    from postrl.rollout.embedded import EmbeddedSampler
    from postrl.rollout.sampler import Request, Sampling, derive_seed
    from postrl.rollout.turn_end import turn_end

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = load_tokenizer(config, path)
    found = load_prompts(config, tokenizer, split="train")
    model = with_lora(load_model(config, path), config)
    check_vocabulary(found.prompts, tokenizer, len(model.get_input_embeddings().weight))
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    stop_ids = stop_token_ids(model.config, getattr(model, "generation_config", None), tokenizer)
    sampler = EmbeddedSampler(model, tokenizer, stop_token_ids=stop_ids, version=lambda: 0)
    sampling = Sampling(config.temperature, config.max_completion_length, tuple(config.stop))
    turn = turn_end(tokenizer, found.prompts, stop_ids)
    prompts = found.prompts[:most]
    requests = [
        Request(
            prompt.token_ids, derive_seed(config.seed, number, prompt.prompt_id, i), turn.sampling(sampling, prompt)
        )
        for number, prompt in enumerate(prompts)
        for i in range(per_prompt)
    ]
    ids = [sampled.completion_ids for sampled in await asyncio.gather(*map(sampler.sample, requests))]
    trials = []
    for number, prompt in enumerate(prompts):
        mine = ids[number * per_prompt : (number + 1) * per_prompt]
        texts = [turn.said(tokenizer, tokens, prompt) for tokens in mine]
        trials.append(Trial(as_group(prompt, number, texts, mine), ["sampled"] * len(mine)))
    return found, trials
