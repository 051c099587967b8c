"""What a script may give as its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pytest

from helpers import tiny_model, tiny_tokenizer
from postrl import GRPOConfig, GRPOTrainer
from postrl.config import GRPOConfig as Config
from postrl.data.prompts import load_prompts
from postrl.errors import DataError
from postrl.rows.given import given_rows

ROWS = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}]


@dataclass
class Task:
    prompt: str
    answer: int


def stream() -> Iterator[dict]:
    yield from ROWS


class WithoutEnd:
    """As torch's data sets are: a length, an item for any number, no iterator."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, i: int) -> dict:
        assert i < len(self), "nobody asks for more than there is"
        return ROWS[i]


@pytest.mark.parametrize(
    "raw",
    [ROWS, tuple(ROWS), pd.DataFrame(ROWS), pd.DataFrame(ROWS).set_index("answer", drop=False), pa.Table.from_pylist(ROWS),
     [Task("a", 1), Task("b", 2)], WithoutEnd()],
    ids=["list", "tuple", "DataFrame", "indexed DataFrame", "Arrow table", "dataclasses", "length and items"],
)  # fmt: skip
def test_lists_and_tables_give_the_same_rows(raw):
    assert list(given_rows(raw, "train")) == ROWS


def test_messages_from_a_data_frame_that_came_from_parquet_are_messages(tmp_path):
    messages = [{"role": "user", "content": "Hi", "name": None}]
    pd.DataFrame({"prompt": [messages], "answer": [[1, 2]]}).to_parquet(tmp_path / "rows.parquet")
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    assert type(frame["prompt"][0]).__name__ == "ndarray"
    (prompt,) = load_prompts(Config(), tiny_tokenizer(), split="train", raw=frame).prompts
    assert prompt.messages == [{"role": "user", "content": "Hi"}] and prompt.columns == {"answer": [1, 2]}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (stream(), "is a generator, expected .*list"),
        ({"train": ROWS, "test": ROWS}, r"several splits: train, test.*train_dataset=dataset\['train'\]"),
        ({"prompt": ["a"], "answer": [1]}, "a dict of columns: prompt, answer"),
        ("rows.jsonl", r"is a str.*dataset=\['rows.jsonl'\]"),
        (["just text"], "row 0 is a str"),
        (pd.DataFrame([["a", "b"]], columns=["prompt", "prompt"]), "two columns 'prompt'"),
    ],
    ids=["generator", "splits", "columns", "text", "texts", "twice"],
)
def test_what_is_no_rows_is_refused_with_what_to_give(raw, says):
    with pytest.raises(DataError, match="(?s)" + says):
        given_rows(raw, "train")


@pytest.mark.parametrize("form", ["pandas", "numpy", "torch", None])
def test_a_dataset_gives_its_rows_in_whatever_form_it_is(form):
    from datasets import Dataset

    raw = Dataset.from_list(ROWS).with_format(form)
    assert load_prompts(Config(), tiny_tokenizer(), split="train", raw=raw).prompts[0].columns == {"answer": 1}


def test_a_stream_of_the_datasets_library_is_refused():
    from datasets import Dataset

    with pytest.raises(DataError, match="IterableDataset"):
        given_rows(Dataset.from_list(ROWS).to_iterable_dataset(), "eval")


def test_a_trainer_refuses_its_rows_when_it_is_made(tmp_path):
    args = GRPOConfig(output_dir=str(tmp_path), engine="transformers")
    with pytest.raises(DataError, match="train:1: column image holds 3 bytes"):
        GRPOTrainer(tiny_model(), lambda completions: [0.0], args, [*ROWS[:1], {**ROWS[1], "image": b"png"}], None,
                    tiny_tokenizer())  # fmt: skip
