"""How many tokens a model reads, from its configuration; without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from postrl.models.folder import CONFIG, cached_snapshot


def context_length(model: str) -> int | None:
    """The longest context of a model in a folder or in the hub's cache; None where it is not here, or does not say."""
    folder = Path(model) if Path(model).exists() else cached_snapshot(model, None)
    try:
        return context_of(json.loads((folder / CONFIG).read_text(encoding="utf-8"))) if folder else None
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
