"""Weight files by their headers: what they hold and whether they are whole, in milliseconds for any size.

tensors(path)["lm_head.weight"].shape       # of a safetensors file
damage(path)                                # "ends after 1.2 MB, and its header says 3.4 MB"; "" where nothing is wrong
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LFS_POINTER = b"version https://git-lfs"
LONGEST_HEADER = 100_000_000
"""Bytes; safetensors reads no longer one."""
INDEX = ".index.json"
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
"""What transformers and vLLM load, whole or in shards named by NAME.index.json; the second without running code of it."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file."""

    dtype: str
    shape: tuple[int, ...]
    end: int
    """Byte after it, counted from the end of the header."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def tensors(path: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file by name.

    Raises:
        ValueError: the header cannot be read; why.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        if size == 0:
            raise ValueError("is empty")
        if LFS_POINTER.startswith(start):
            raise ValueError("is a pointer of git-lfs, without the weights it points to")
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > LONGEST_HEADER:
            raise ValueError("is not a safetensors file: it does not begin with a header")
        if 8 + length > size:
            raise ValueError(f"ends inside its header, after {shown_bytes(size)}")
        header = file.read(length)
    try:
        entries = json.loads(header)
        found = {name: _stored(entry) for name, entry in entries.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("is not a safetensors file, or its header is damaged") from error
    said = 8 + length + max((tensor.end for tensor in found.values()), default=0)
    if size < said:
        raise ValueError(f"ends after {shown_bytes(size)}, and its header says {shown_bytes(said)}")
    if size > said:
        raise ValueError(f"has {shown_bytes(size)}, and its header says {shown_bytes(said)}")
    return found


def _stored(entry: dict[str, Any]) -> Stored:
    return Stored(str(entry["dtype"]), tuple(int(n) for n in entry["shape"]), int(entry["data_offsets"][1]))


def damage(path: Path) -> str:
    """What is wrong with a file of weights, to be said after its name; empty: nothing that shows without reading it all."""
    try:
        if path.suffix == ".safetensors":
            tensors(path)
            return ""
        return _damage_of_archive(path)
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _damage_of_archive(path: Path) -> str:
    """Of what torch.save has written: an archive, whose directory is at the end."""
    with open(path, "rb") as file:
        start = file.read(len(LFS_POINTER))
    if not start:
        return "is empty"
    if start == LFS_POINTER:
        return "is a pointer of git-lfs, without the weights it points to"
    if start.startswith(b"PK") and not zipfile.is_zipfile(path):
        return "ends before its end: it was written in part"
    return ""


def weight_map(index: Path) -> dict[str, str]:
    """Name of a tensor -> name of the file it is in, from an index of shards.

    Raises:
        ValueError: it is no such index; why.
    """
    try:
        text = index.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError("is not JSON") from error
    if text.startswith(LFS_POINTER.decode()):
        raise ValueError("is a pointer of git-lfs, without the index it points to")
    try:
        return {name: str(file) for name, file in json.loads(text)["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("is not an index of weights: it should be JSON with a weight_map") from error


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers loads from a folder; empty: there are none, or their index cannot be read."""
    for name in (SAFETENSORS, PICKLED):
        if (folder / name).exists():
            return [folder / name]
        if (folder / (name + INDEX)).exists():
            try:
                return [folder / file for file in sorted({*weight_map(folder / (name + INDEX)).values()})]
            except ValueError:
                return []
    return []


def stored_tensors(folder: Path) -> Iterator[tuple[str, Stored]]:
    """The tensors in a folder's safetensors files, as far as they can be read."""
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            try:
                yield from tensors(path).items()
            except (OSError, ValueError):
                continue


def tensor_names(folder: Path) -> list[str]:
    """Names of the tensors that a folder's safetensors files, or their index, list."""
    if (index := folder / (SAFETENSORS + INDEX)).exists():
        try:
            return list(weight_map(index))
        except ValueError:
            return []
    return [name for name, _ in stored_tensors(folder)]


def parameter_count(model: str) -> int | None:
    """Parameters of a model folder; None where it is not one, or holds no safetensors."""
    return sum(tensor.size for _, tensor in stored_tensors(Path(model))) or None


def shown_bytes(size: float) -> str:
    """12 bytes, 3.4 MB or 5.6 GB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} bytes"
