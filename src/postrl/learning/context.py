"""How many tokens a model reads, from its configuration; without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def context_length(model: str) -> int | None:
    """The longest context of a model in a folder or in the hub's cache; None where it is not here, or does not say."""
    try:
        return context_of(json.loads(_config_file(model).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def context_of(config: Mapping[str, Any]) -> int | None:
    """The longest context in a config.json; None when it does not say, or scales it."""
    inner = config.get("text_config")
    config = inner if isinstance(inner, Mapping) else config
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(scaling, Mapping) and scaling.get("factor"):
        return None
    lengths = [config.get(key) for key in ("max_position_embeddings", "n_positions", "max_sequence_length")]
    return next((length for length in lengths if isinstance(length, int)), None)


def _config_file(model: str) -> Path:
    folder = Path(model) / "config.json"
    if folder.exists() or Path(model).exists() or model.count("/") > 1:
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return folder
    return Path(cached) if isinstance(cached, str) else folder
