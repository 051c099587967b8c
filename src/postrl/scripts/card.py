"""The model card of a run: what was trained, on what, how, with which versions, and how it went."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

from postrl.config import GRPOConfig
from postrl.config.setting import ALGORITHM, ASYNC, CRITIC, MODEL, OPTIMIZER, ROLLOUT, default_of
from postrl.config.settings import Settings
from postrl.run.folder import RunFolder
from postrl.run.metrics import read_metrics
from postrl.version import __version__

SHOWN = ("prompts_per_step", "num_generations", "learning_rate", "beta", "max_completion_length", "temperature", "seed")
"""Settings that are always in a card, beside those that are not at their default."""
PUBLIC = (MODEL, ROLLOUT, ASYNC, ALGORITHM, CRITIC, OPTIMIZER)
CURVES = ("reward/mean", "completion/length_mean", "policy/entropy", "policy/loss")
LIBRARIES = ("transformers", "torch", "peft", "datasets", "vllm")
_BARS = " ▁▂▃▄▅▆▇█"


def model_card(
    config: GRPOConfig, folder: RunFolder, *, name: str = "", dataset: str = "", tags: Sequence[str] = ()
) -> str:
    """The card as Markdown, with the hub's front matter.

    Args:
        name: the model's; default: that of the run.
        dataset: the data set's, where the script brought the rows.
        tags: further tags for the hub.
    """
    data = dataset or ", ".join(config.dataset)
    head = {
        "base_model": config.model or None,
        "datasets": [data] if _is_id(data) else None,
        "library_name": "peft" if (folder.model / "adapter_config.json").exists() else "transformers",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys(["postrl", "reinforcement-learning", config.algorithm, *tags])),
    }
    front = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in head.items() if value)
    lines = [
        f"# {name or config.run_name or folder.path.name}",
        f"{config.model or 'A model'}, trained with reinforcement learning ({config.algorithm}) on {data or 'rows of a script'} "
        f"by postrl {__version__}.",
        "## Training",
        _table([(key, json.dumps(value, ensure_ascii=False)) for key, value in _settings(config)]),
        "## Course",
        _table(_curves(folder.metrics), ("metric", "first", "last", "course")) or "No step was finished.",
        "## Versions",
        _table([("postrl", __version__), *_versions()]),
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(lines) + "\n"


def write_card(text: str, folder: RunFolder) -> Path:
    """Beside the model where there is one, else in the run's folder; returns the file."""
    target = (folder.model if folder.model.is_dir() else folder.path) / "README.md"
    with folder.writing("the model card"):
        target.write_text(text, encoding="utf-8")
    return target


def _is_id(data: str) -> bool:
    return bool(data) and ", " not in data and not data.startswith((".", "/")) and not Path(data).exists()


def _settings(config: GRPOConfig) -> Iterator[tuple[str, Any]]:
    """Of what was trained how, without paths and addresses: a card is for everybody."""
    usual = {**{f.name: default_of(f) for f in fields(Settings)}, **config.defaults_of(config.algorithm)}
    for f in fields(Settings):
        value, public = getattr(config, f.name), f.metadata["panel"] in PUBLIC and not f.metadata["path"]
        if f.name in SHOWN or (public and not f.name.startswith("vllm") and value != usual[f.name]):
            yield f.name, value


def _curves(metrics: Path) -> Iterator[tuple[str, ...]]:
    rows = read_metrics(metrics) if metrics.exists() else []
    for name in CURVES:
        values = [row[name] for row in rows if row.get(name) is not None]
        if values:
            yield name, f"{values[0]:.4g}", f"{values[-1]:.4g}", _bars(values)


def _bars(values: list[float], width: int = 32) -> str:
    """A curve as text, of means over up to `width` equal parts."""
    size = max(1, -(-len(values) // width))
    means = [sum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(_BARS[1 + round((mean - low) / span * (len(_BARS) - 2))] for mean in means)


def _versions() -> Iterator[tuple[str, str]]:
    for library in LIBRARIES:
        try:
            yield library, metadata.version(library)
        except metadata.PackageNotFoundError:
            continue


def _table(rows: Iterable[tuple[str, ...]], head: tuple[str, ...] = ("", "")) -> str:
    rows = list(rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ("---",) * len(head), *rows]) if rows else ""
