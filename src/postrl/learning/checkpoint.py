"""Checkpoints: written beside their place and renamed, so that an interrupted save never costs an earlier one.

RUN/checkpoints/step_000010/
    learner/      torch.distributed.checkpoint: weights that are trained, optimizer, random state of each rank; the critic's
                  weights and optimizer, where there is one
    generation_config.json, and with an adapter adapter_config.json     for `postrl export`
    state.json    step, weight version, optimizer steps, data position
    pending.bin   finished groups that wait to be trained on: a message of postrl.run.messages
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from postrl.errors import PostrlError, UsageError
from postrl.learning.learner import Learner
from postrl.learning.loading import save_generation
from postrl.learning.model_folder import name_base
from postrl.learning.optimizing import Optimizing
from postrl.learning.stored import in_one_line, load_stored, stored_names, unreadable

STATE = "state.json"
PENDING = "pending.bin"
WRITING = ".writing-"
POLICY = "model.model."
"""What stands before the names of the policy's weights in a checkpoint."""
OTHER_MODEL = "give the model that the run began with (--model FOLDER), or an earlier checkpoint"
_OPTIONS = StateDictOptions(ignore_frozen_params=True, strict=False)


def save_checkpoint(
    folder: Path, step: int, learner: Learner, state: dict[str, Any], pending: bytes = b"", *, keep: int | None
) -> Path:
    """Write checkpoint `step` and delete the oldest beyond `keep` (a collective).

    Args:
        state: JSON values; pending: bytes to keep beside them, see `load_pending`.

    Raises:
        PostrlError: the disk is full or not writable; earlier checkpoints are intact.
    """
    target = folder / f"step_{step:06d}"
    temporary = folder / f"{WRITING}{target.name}"
    try:
        if learner.ranks.is_main:
            for left in folder.glob(f"{WRITING}*"):  # of a run that was killed while it saved
                shutil.rmtree(left, ignore_errors=True)
            temporary.mkdir(parents=True)
        learner.ranks.sum([0.0])  # the folder is there before the others write into it
        with _quiet():
            dcp.save(_learner_state(learner), checkpoint_id=str(temporary / "learner"))  # type: ignore[attr-defined]
        if learner.ranks.is_main:
            save_generation(learner.policy.causal_lm, temporary)
            if learner.policy.has_adapter:
                name_base(learner.policy.peft_config, learner.config).save_pretrained(str(temporary))
            (temporary / PENDING).write_bytes(pending)
            updates = {_count_of(name): part.updates for name, part in _parts(learner).items()}
            (temporary / STATE).write_text(json.dumps({**state, "step": step, **updates}), encoding="utf-8")
            _sync_to_disk(temporary)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
            _sync(folder)
    except (OSError, RuntimeError, CheckpointException) as error:
        cause = os.strerror(errno.ENOSPC) if _is_full(folder) else in_one_line(error)
        shutil.rmtree(temporary, ignore_errors=True)
        raise PostrlError(
            f"checkpoint {step} could not be written to {folder}: {cause}",
            hint="free space or choose another --output-dir, then continue with --resume; earlier checkpoints are intact",
        ) from error
    if learner.ranks.is_main and keep:
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    return target


def load_checkpoint(path: Path, learner: Learner) -> dict[str, Any]:
    """Put a checkpoint into the learner (a collective); returns its state. It may come from another number of ranks.

    Raises:
        PostrlError: it does not fit this model, has no critic where this run has one (or the reverse), or is damaged.
    """
    with _reading(
        path, "resume with the same model and LoRA settings, or delete this checkpoint to use the one before"
    ):
        state = read_state(path)
        _check_critic(path, state, learner)
        loaded = _learner_state(learner)
        random_state = _drop_missing(loaded, path, f"random_{learner.ranks.rank}")
        with _quiet():
            load_stored(loaded, path / "learner")
        for name, part in _parts(learner).items():
            part.updates = int(state[_count_of(name)])
    for name, part in _parts(learner).items():
        _set_part(part, loaded[name] if name else loaded)
    if learner.reference is not None and "reference" in loaded:
        set_model_state_dict(learner.reference, loaded["reference"])
    _set_random_state(random_state)
    return state


def load_policy(path: Path, model: Any) -> None:
    """Put the policy's weights of a checkpoint into a model without a learner: all that were trained, each in the dtype that
    it has there. Weights that the checkpoint lacks were not trained, and stay.

    Args:
        model: a transformers or peft model, on the CPU; of one on the meta device what was trained is moved to the CPU.

    Raises:
        UsageError: the checkpoint is of another model.
        PostrlError: it is damaged.
    """
    held, saved = model.state_dict(), policy_names(path)
    if strange := sorted(saved - held.keys()):
        raise UsageError(
            f"checkpoint {path} is of another model: it has {strange[0]}, and {type(model).__name__} has not",
            hint="give the model that the run began with: --model FOLDER",
        )
    with _reading(path, OTHER_MODEL), _quiet():
        new = {name: torch.empty_like(held[name], device="cpu") for name in saved if held[name].is_meta}
        load_stored({POLICY + name: new.get(name, held[name]) for name in saved}, path / "learner", alone=True)
    model.load_state_dict(new, strict=False, assign=True)


def policy_names(path: Path) -> set[str]:
    """Names of the policy's weights in a checkpoint, as its model has them.

    Raises:
        PostrlError: it is damaged.
    """
    with _reading(path, OTHER_MODEL):
        saved = stored_names(path / "learner")
    return {name.removeprefix(POLICY) for name in saved if name.startswith(POLICY)}


@contextmanager
def _reading(path: Path, hint: str) -> Iterator[None]:
    """Whatever a damaged file makes torch raise as one message."""
    try:
        yield
    except PostrlError:
        raise
    except (Exception, CheckpointException) as error:
        raise unreadable(path, error, hint) from error


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    found = (path for path in folder.glob("step_*") if (path / STATE).exists())
    numbers = {path: path.name.removeprefix("step_") for path in found}
    return sorted((path for path in numbers if numbers[path].isdigit()), key=lambda path: int(numbers[path]))


def load_pending(path: Path) -> bytes:
    """The `pending` of a checkpoint.

    Raises:
        PostrlError: it is not there.
    """
    try:
        return (path / PENDING).read_bytes()
    except OSError as error:
        raise PostrlError(
            f"checkpoint {path} cannot be read: {error.strerror}: {PENDING}, with finished groups, belongs to it",
            hint="delete this checkpoint to use the one before",
        ) from error


def read_state(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / STATE).read_text(encoding="utf-8")))


def _parts(learner: Learner) -> dict[str, Optimizing[Any]]:
    """What is trained, by its name in a checkpoint; the policy is at the top."""
    return {"": learner} if learner.critic is None else {"": learner, "critic": learner.critic}


def _count_of(part: str) -> str:
    """Where state.json has the optimizer steps of a part."""
    return f"{part}_updates" if part else "updates"


def _check_critic(path: Path, state: dict[str, Any], learner: Learner) -> None:
    saved = _count_of("critic") in state
    if saved != (learner.critic is not None):
        has, needs = ("has a critic", "trains none") if saved else ("has no critic", "trains one")
        raise PostrlError(
            f"checkpoint {path} {has}, and this run {needs}",
            hint="resume with the algorithm that the run was started with, or start a new run",
        )


def _learner_state(learner: Learner) -> dict[str, Any]:
    state: dict[str, Any] = {f"random_{learner.ranks.rank}": _random_state()}
    for name, part in _parts(learner).items():
        state.update({name: _part_state(part)} if name else _part_state(part))
    if (
        learner.reference is not None and learner.config.sync_ref_model
    ):  # else it is the initial policy, which is at hand
        state["reference"] = get_model_state_dict(learner.reference)
    return state


def _part_state(part: Optimizing[Any]) -> dict[str, Any]:
    if not part.optimizer.state:
        _create_optimizer_state(part.optimizer)
    model, optim = get_state_dict(part.module, part.optimizer, options=_OPTIONS)
    # torch keeps a frozen head that is tied to the embedding
    frozen = {name for name, p in part.module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    kept = {name: value for name, value in model.items() if name not in frozen}
    return {"model": kept, "optim": optim}


def _set_part(part: Optimizing[Any], loaded: dict[str, Any]) -> None:
    for saved, group in zip(loaded["optim"]["param_groups"], part.optimizer.param_groups, strict=True):
        if "fused" in saved:  # a matter of the machine, not of the run
            saved["fused"] = group["fused"]
    set_state_dict(
        part.module,
        part.optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optim"],
        options=_OPTIONS,
    )


def _drop_missing(loaded: dict[str, Any], path: Path, name: str) -> dict[str, Any]:
    """This rank's random state, to be loaded, without what the checkpoint has not: it may come from fewer ranks, or from
    a machine without GPUs. What is missing stays as the run's seed made it."""
    saved = stored_names(path / "learner")
    kept = {kind: value for kind, value in loaded.pop(name).items() if f"{name}.{kind}" in saved}
    if kept:
        loaded[name] = kept
    return kept


def _create_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Moments exist after a first step. One with zero gradients and no learning rate makes them and moves nothing; it
    does not count (torch would make it too, and count it: the bias correction of the next step would be another)."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for state in optimizer.state.values():
        if "step" in state:
            state["step"].zero_()


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _sync_to_disk(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns of a single process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _is_full(folder: Path) -> bool:
    """torch says "unexpected pos 704 vs 598" then, and loses what the system said on the way between ranks."""
    try:
        return shutil.disk_usage(folder).free < 64 << 10
    except OSError:
        return False
