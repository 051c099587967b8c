"""A value model as a Hugging Face folder: the token-classification model of its type with one label, whose logit at a
token is the value of the state after it.

    AutoModelForTokenClassification.from_pretrained("RUN/critic")

Types without one are saved with their sequence-classification class, others as the bare body, for `AutoModel`, with the
head beside it in value_head.safetensors.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HEAD = "value_head.safetensors"


def save_value_model(folder: Path, config: Any, body: dict[str, Tensor], head_1D: Tensor) -> None:
    """Write weights of a body and a head without bias, on the CPU, with the body's config.

    Raises:
        OSError, SafetensorError: the disk is full or not writable.
    """
    from transformers import (
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
        AutoModel,
    )

    for mapping in (MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING):
        if type(config) in mapping and (model := _classifier(mapping[type(config)], config, body, head_1D)):
            model.save_pretrained(folder)
            return
    model = _empty(AutoModel.from_config, config, body)
    model.load_state_dict(body, assign=True)
    model.save_pretrained(folder)
    save_file({"head.weight": head_1D.contiguous()}, folder / HEAD)


def _classifier(kind: Any, config: Any, body: dict[str, Tensor], head_1D: Tensor) -> Any:
    """A classification model with these weights; None where it is more than a body and a linear head."""
    config = copy.deepcopy(config)
    config.num_labels = 1
    model = _empty(kind, config, body)
    wanted = model.state_dict()
    state = {f"{model.base_model_prefix}.{name}": tensor for name, tensor in body.items()}
    for name in wanted.keys() - state.keys():
        state[name] = torch.zeros(1) if name.endswith(".bias") else head_1D
    if {name: tensor.shape for name, tensor in state.items()} != {name: t.shape for name, t in wanted.items()}:
        return None
    model.load_state_dict(state, assign=True)
    return model


def _empty(kind: Any, config: Any, body: dict[str, Tensor]) -> Any:
    """A model without memory for its weights, in the dtype of the body's."""
    with torch.device("meta"):
        model = kind(config)
    return model.to(next(iter(body.values())).dtype)
