"""Model folders as they are written: a transformers model or a peft adapter, with tokenizer and generation config. The one
way for the end of a run, a script's save_model and `postrl export`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from torch import Tensor

from postrl.errors import PostrlError
from postrl.learning.loading import make_savable, save_generation
from postrl.models.adapter import write_own_name
from postrl.models.packaged import PACKAGED, packaged_model

if TYPE_CHECKING:
    from postrl.config.settings import Settings


def write_model_folder(
    folder: str | Path, model: Any, tokenizer: Any, config: Settings, state: dict[str, Tensor] | None = None
) -> None:
    """Write what transformers, peft and vLLM load.

    Args:
        model: a transformers model, or a peft model: of that its adapter alone is written.
        tokenizer: None where there is none.
        config: the run's, which knows the base of an adapter by its name.
        state: the weights, whole, by name; default: as the model holds them.

    Raises:
        OSError, SafetensorError: the disk is full or not writable; see `saving`.
    """
    adapted = hasattr(model, "disable_adapter")
    causal_lm = model.get_base_model() if adapted else model
    if not adapted:
        make_savable(getattr(causal_lm, "generation_config", None))
        causal_lm.save_pretrained(folder, state_dict=state)
    else:
        save_generation(causal_lm, folder)
        _save_adapter(model, state, folder, config)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _save_adapter(model: Any, state: dict[str, Tensor] | None, folder: str | Path, config: Settings) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    # Never the embeddings: "auto" asks the hub whether they were resized.
    kept = get_peft_model_state_dict(model, state_dict=state, save_embedding_layers=False)
    name_base(model.peft_config["default"], config).save_pretrained(folder)
    if config.model in PACKAGED:
        write_own_name(Path(folder), config.model)
    save_file(kept, f"{folder}/adapter_model.safetensors", metadata={"format": "pt"})


def name_base(peft_config: Any, config: Settings) -> Any:
    """The settings of an adapter as they are saved: with its base model by the name that was given, so that any program
    finds it (a hub id, the absolute path of a folder), and not by where one machine keeps it."""
    named = copy.copy(peft_config)
    if config.model in PACKAGED:
        named.base_model_name_or_path = str(packaged_model(config.model))
    elif Path(config.model).is_dir():
        named.base_model_name_or_path = str(Path(config.model).absolute())
    elif config.model:
        named.base_model_name_or_path, named.revision = config.model, config.revision
    return named


@contextmanager
def saving(what: str, folder: str | Path, hint: str = "") -> Iterator[None]:
    """A full disk or a folder without permission as one message.

    Raises:
        PostrlError: `what` cannot be written.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise PostrlError(
            f"{what} could not be written to {folder}: {error}",
            hint=hint or "free space, then continue with --resume: the last checkpoint holds the same weights",
        ) from error
