"""Checkpoints: written beside their place and renamed, so that an interrupted save never costs an earlier one.

RUN/checkpoints/step_000010/
    learner/      torch.distributed.checkpoint: weights that are trained, optimizer, random state of each rank
    state.json    step, weight version, optimizer steps, data position, pending groups
"""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from postrl.errors import PostrlError
from postrl.learning.learner import Learner


def save_checkpoint(folder: Path, step: int, learner: Learner, state: dict[str, Any], *, keep: int | None) -> Path:
    """Write checkpoint `step` and delete the oldest beyond `keep` (a collective).

    Raises:
        PostrlError: the disk is full or not writable; earlier checkpoints are intact.
    """
    import torch.distributed.checkpoint as dcp

    target = folder / f"step_{step:06d}"
    temporary = folder / f".writing-{target.name}"
    try:
        if learner.ranks.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        learner.ranks.sum([0.0])  # the folder is there before the others write into it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(_learner_state(learner), checkpoint_id=str(temporary / "learner"))
        if learner.ranks.is_main:
            (temporary / "state.json").write_text(json.dumps({**state, "step": step, "updates": learner.updates}))
            _sync_to_disk(temporary)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise PostrlError(
            f"checkpoint {step} could not be written to {folder}: {_cause(error)}",
            hint="free space or choose another --output-dir, then continue with --resume; earlier checkpoints are intact",
        ) from error
    if learner.ranks.is_main and keep:
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    return target


def load_checkpoint(path: Path, learner: Learner) -> dict[str, Any]:
    """Put a checkpoint into the learner (a collective); returns its state.

    Raises:
        PostrlError: it does not fit this model, or is damaged.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    state = read_state(path)
    _create_optimizer_state(learner)
    loaded = _learner_state(learner)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(loaded, checkpoint_id=str(path / "learner"))
    except Exception as error:  # whatever a damaged file makes torch raise
        raise PostrlError(
            f"checkpoint {path} cannot be read into this model: {_cause(error)}",
            hint="resume with the same model and LoRA settings, or delete this checkpoint to use the one before",
        ) from error
    set_state_dict(
        learner.policy,
        learner.optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optim"],
        options=_OPTIONS(),
    )
    _set_random_state(loaded[f"random_{learner.ranks.rank}"])
    learner.updates = int(state["updates"])
    return state


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(p for p in folder.glob("step_*") if (p / "state.json").exists())


def read_state(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "state.json").read_text()))


def _OPTIONS() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(ignore_frozen_params=True, strict=False)


def _learner_state(learner: Learner) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optim = get_state_dict(learner.policy, learner.optimizer, options=_OPTIONS())
    return {"model": model, "optim": optim, f"random_{learner.ranks.rank}": _random_state()}


def _create_optimizer_state(learner: Learner) -> None:
    """Moments exist after a first step; a step with zero gradients and no learning rate makes them and moves nothing."""
    rates = [group["lr"] for group in learner.optimizer.param_groups]
    for group in learner.optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(learner.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _sync_to_disk(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def _cause(error: BaseException) -> str:
    """The innermost thing that went wrong, in one line."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
