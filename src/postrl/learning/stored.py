"""Reading the files of a checkpoint, which may come from anywhere: none of them can run code here.

torch.distributed.checkpoint keeps its table of contents (.metadata) and each value that is no tensor as pickles, and reads
both with everything that a pickle may do. Here the table is read with the few classes that it consists of, and values and
tensors as plain data.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from postrl.errors import PostrlError, first_line

TABLE = ".metadata"
CLASSES = {
    metadata.__name__: {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    filesystem.__name__: {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}  # fmt: skip
"""What a table of contents consists of, by module. None of them does more than hold what it is given."""
FOREIGN = re.compile(r"\b(?i:unsupported global):? (?:GLOBAL )?([\w.]+)")
"""How torch says of plain data that it names something else, known to be dangerous or not."""


class NamesCode(Exception):
    """A file of a checkpoint asks for a function or class that no checkpoint of ours holds; it was not called."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it names {name}")


def load_stored(state: dict[str, Any], folder: Path, *, alone: bool = False) -> None:
    """Fill `state` in place from what was saved in `folder` (a collective unless `alone`).

    Raises:
        NamesCode: a file could run code; alone or within torch's CheckpointException.
        Exception: whatever a damaged file makes torch raise.
    """
    dcp.load(state, storage_reader=_Reader(str(folder)), planner=_Planner(), no_dist=alone)  # type: ignore[attr-defined]


def stored_names(folder: Path) -> set[str]:
    """The names of all that was saved in `folder`. Raises as `load_stored`."""
    return set(_Reader(str(folder)).read_metadata().state_dict_metadata)


class _Table(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in CLASSES.get(module, ()):
            raise NamesCode(f"{module}.{name}")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / TABLE).open("rb") as file:
            table = _Table(file).load()
        if not isinstance(table, Metadata):
            raise pickle.UnpicklingError(f"{TABLE} holds a {type(table).__name__}")
        table.storage_meta = table.storage_meta or StorageMeta()
        table.storage_meta.load_id = self.load_id
        return table

    def read_data(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_data(*args, **kwargs)
        except pickle.UnpicklingError as error:
            raise _plainly(error) from None


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        plain = torch.load(value, weights_only=True)
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], plain)


def _plainly(error: pickle.UnpicklingError) -> Exception:
    """torch's long advice, which ends with how to let the file run code, in a few words."""
    found = FOREIGN.search(str(error))
    return NamesCode(found[1]) if found else pickle.UnpicklingError("it does not hold plain data")


def unreadable(path: Path, error: BaseException, hint: str) -> PostrlError:
    """The error about a checkpoint that is damaged, of another model, or no checkpoint of ours at all."""
    cause = _innermost(error)
    if isinstance(cause, NamesCode):
        return PostrlError(
            f"checkpoint {path} is refused: {cause}, which could run code, and a checkpoint holds numbers alone; nothing of it was run",
            hint="someone has changed it after it was saved: delete it to use the one before, and ask where it comes from",
        )
    return PostrlError(f"checkpoint {path} cannot be read into this model: {in_one_line(error)}", hint=hint)


def _innermost(error: BaseException) -> BaseException:
    """What went wrong first, on the rank where it did."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def in_one_line(error: BaseException) -> str:
    """What went wrong first, in one line."""
    return first_line(_innermost(error))
