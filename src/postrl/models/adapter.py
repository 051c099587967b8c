"""Folders of peft adapters: which model they belong to, and whether they can be trained on or merged. Nothing is loaded.

adapter_config.json          peft's settings; base_model_name_or_path is where the base model lies, for any program
adapter_model.safetensors    the trained factors (or adapter_model.bin)
postrl.json                  {"base_model": NAME}: the base by the name it has with postrl, where that is another
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postrl.errors import UsageError
from postrl.host.hub import hub_is_reachable
from postrl.models.folder import ADAPTER_CONFIG, AGAIN, CONFIG, has_weights, is_path, read_json
from postrl.models.weights import damage, tensors

ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
OWN_NAME = "postrl.json"
NOT_PLAIN_LORA = ("use_dora", "lora_bias", "modules_to_save", "target_parameters", "trainable_token_indices")
"""Fields of peft.LoraConfig that train more than the two factors of a linear layer."""
FILES = [
    "adapter_config.json", "adapter_model.*", "tokenizer*", "special_tokens_map.json", "*.jinja", "vocab*", "merges.txt",
]  # fmt: skip
"""What is taken from the hub for an adapter."""
OF_PROMPTS = (
    "PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT", "CARTRIDGE",
)  # fmt: skip
"""Kinds of adapters that add to the prompt and not to the weights: they cannot be merged."""


@dataclass(frozen=True)
class Adapter:
    """An adapter on disk."""

    name: str
    """As it was given: a folder or a hub id."""
    folder: Path
    settings: dict[str, Any]
    """adapter_config.json."""

    @property
    def kind(self) -> str:
        return str(self.settings.get("peft_type", "LORA")).upper()

    @property
    def base(self) -> str:
        """The model it belongs to: a packaged name, a hub id or a folder; empty: it does not say."""
        own = self.folder / OWN_NAME
        found = read_json(own, self.name).get("base_model") if own.exists() else None
        return str(found or self.settings.get("base_model_name_or_path") or "")

    @property
    def revision(self) -> str | None:
        return self.settings.get("revision")

    @property
    def rank(self) -> int:
        """The largest."""
        pattern: dict[str, int] = self.settings.get("rank_pattern") or {}
        return max(int(self.settings.get("r") or 0), *pattern.values(), 0)


def find_adapter(name: str, revision: str | None = None) -> Adapter | None:
    """The adapter of that name; None: it is something else, such as a model.

    Raises:
        UsageError: it is one and cannot be read.
    """
    if not name:
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        found = None if folder.exists() else _on_hub(name, revision)
        return _read(name, found) if found else None
    if not (folder / ADAPTER_CONFIG).exists() or (folder / "state.json").exists():
        return None
    if (folder / CONFIG).exists() and has_weights(folder):
        if not any((folder / file).exists() for file in ADAPTER_WEIGHTS):
            return None
        raise UsageError(
            f"{name} holds a whole model and an adapter: it is not known which is meant",
            hint=f"move {' and '.join(ADAPTER_WEIGHTS[:1])} and {ADAPTER_CONFIG}, or the model, to a folder of their own",
        )
    return _read(name, folder)


def adapter_named(name: str) -> Adapter:
    """The adapter of that name.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    found = find_adapter(name)
    if found is None:
        raise UsageError(
            f"there is no adapter {name}: it has no {ADAPTER_CONFIG}",
            hint="--adapter takes the folder that peft's save_pretrained wrote, such as RUN/model of a run with --lora-rank",
        )
    return found


def _read(name: str, folder: Path) -> Adapter:
    settings = read_json(folder / ADAPTER_CONFIG, name, hint="save the adapter again, or copy or download it again")
    files = [file for file in ADAPTER_WEIGHTS if (folder / file).exists()]
    if not files:
        raise UsageError(
            f"the adapter {name} holds no weights: neither {' nor '.join(ADAPTER_WEIGHTS)}",
            hint=f"{AGAIN}, or save it again",
        )
    if problem := damage(folder / files[0]):
        raise UsageError(f"the adapter {name} is damaged: {files[0]} {problem}", hint=AGAIN)
    return Adapter(name, folder, settings)


def _on_hub(name: str, revision: str | None) -> Path | None:
    """The files of an adapter on the hub, from the cache where they are there; None: it has none of that name."""
    from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    if "/" not in name or is_path(name):
        return None
    try:
        if isinstance(try_to_load_from_cache(name, CONFIG, revision=revision), str):
            return None  # a model, as nearly all are
        if isinstance(found := try_to_load_from_cache(name, ADAPTER_CONFIG, revision=revision), str):
            if not hub_is_reachable():
                return Path(found).parent
        elif not hub_is_reachable():
            return None
        hf_hub_download(name, ADAPTER_CONFIG, revision=revision)
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES))
    except (EntryNotFoundError, HFValidationError):
        return None
    except OSError:  # no such repository, or no access: what loads the model says it better
        return None


# -- what can be done with it ------------------------------------------------------------------------------------------


def check_trainable(adapter: Adapter) -> None:
    """Refuse an adapter that cannot be trained on and pushed to samplers.

    Raises:
        UsageError: which kind it is, and what to do with it.
    """
    if adapter.kind != "LORA":
        raise UsageError(
            f"the adapter {adapter.name} is of peft's kind {adapter.kind}, and only LoRA adapters are trained on",
            hint="adapters of prompts cannot be merged either; train a LoRA adapter instead"
            if adapter.kind in OF_PROMPTS
            else _merge_first(adapter),
        )
    if used := [field for field in NOT_PLAIN_LORA if adapter.settings.get(field)]:
        raise UsageError(
            f"the adapter {adapter.name} sets {', '.join(used)}: what it trains cannot be merged for the sampler",
            hint=_merge_first(adapter),
        )
    if more := more_than_factors(adapter):
        raise UsageError(
            f"the adapter {adapter.name} holds {more} beside its factors (an embedding that was resized for added tokens?), "
            "which are not trained on",
            hint=_merge_first(adapter),
        )


def more_than_factors(adapter: Adapter) -> str:
    """The first of its tensors that is no factor of a LoRA or a bias; empty: there is none, or it is not a safetensors file."""
    path = adapter.folder / ADAPTER_WEIGHTS[0]
    names = tensors(path) if path.exists() else {}
    return next((name for name in names if "lora_" not in name and not name.endswith(".bias")), "")


def _merge_first(adapter: Adapter) -> str:
    return (
        f"postrl merge {adapter.name} makes a model of it; then --model that model, with --lora-rank for a new adapter"
    )


def check_mergeable(adapter: Adapter) -> None:
    """Refuse an adapter that changes no weights.

    Raises:
        UsageError: which kind it is.
    """
    if adapter.kind in OF_PROMPTS:
        raise UsageError(
            f"the adapter {adapter.name} is of peft's kind {adapter.kind}: it adds to the prompt, and there is nothing to "
            "merge into the weights",
            hint="load it with peft.PeftModel.from_pretrained",
        )


def base_of(adapter: Adapter) -> str:
    """The model that an adapter belongs to, which is there if it is a folder.

    Raises:
        UsageError: it does not say, or the folder is gone.
    """
    base, give = adapter.base, f"say where it is: --model FOLDER --adapter {adapter.name}"
    if not base:
        raise UsageError(f"the adapter {adapter.name} does not say which model it belongs to", hint=give)
    if is_path(base) and not Path(base).expanduser().is_dir():
        raise UsageError(f"the adapter {adapter.name} belongs to the model {base}, which is not here", hint=give)
    return base


def write_own_name(folder: Path, name: str) -> None:
    """Note the base by the name it has with postrl."""
    (folder / OWN_NAME).write_text(json.dumps({"base_model": name}) + "\n", encoding="utf-8")
