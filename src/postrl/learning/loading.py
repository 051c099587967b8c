"""Tokenizers and models: hub ids, folders, the packaged demo model; LoRA adapters."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postrl.errors import PostrlError, UsageError, first_line
from postrl.host.text import read_template
from postrl.models.adapter import NOT_PLAIN_LORA, Adapter, adapter_named
from postrl.models.folder import has_tokenizer, refuse_quantised

if TYPE_CHECKING:
    from postrl.config import GRPOConfig
    from postrl.config.settings import Settings


def load_tokenizer(config: GRPOConfig, path: str, flag: str = "--model") -> Any:
    """The tokenizer of the model at `path`, or of the adapter on it where that has one, with `--chat-template` in place of
    its own; `flag`, for messages, is what names it.

    Raises:
        UsageError: there is no such model, or it has no tokenizer.
    """
    from transformers import AutoTokenizer

    if config.adapter and has_tokenizer(folder := adapter_named(config.adapter).folder):
        path, flag = str(folder), "--adapter"
    tokenizer = loaded(AutoTokenizer, config, path, "tokenizer", flag)
    if config.chat_template:
        tokenizer.chat_template = read_template(config.chat_template)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(config: GRPOConfig, path: str, flag: str = "--model", *, peft_config: Any = None) -> Any:
    """The causal language model at `path`, in float32, or frozen in bfloat16 under LoRA with bfloat16 compute.

    Args:
        peft_config: the adapters' that it is to be under, where a script gives it.

    Raises:
        UsageError: there is no such model, or its weights cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM

    frozen = (config.lora_rank > 0 or peft_config is not None) and compute_dtype(config) == "bfloat16"
    dtype, attention = torch.bfloat16 if frozen else torch.float32, config.attn_implementation
    model = loaded(AutoModelForCausalLM, config, path, "model", flag, dtype=dtype, attn_implementation=attention)
    refuse_quantised(path, model.config.to_dict())  # of the hub: a folder was looked at before the start
    return model


def compute_dtype(config: GRPOConfig) -> str:
    """What `auto` means on this machine: bfloat16 on GPUs, float32 on CPUs."""
    import torch

    if config.dtype != "auto":
        return config.dtype
    return "bfloat16" if torch.cuda.is_available() else "float32"


def with_lora(model: Any, config: GRPOConfig, peft_config: Any = None) -> Any:
    """The model under LoRA adapters: the one that the run starts from (`adapter`), those of `peft_config`, else of the --lora
    settings; itself when none is set.

    What is trained becomes float32, whatever a script loaded it in: small updates vanish in bfloat16 weights.

    Raises:
        UsageError: an adapter of another kind than LoRA, or two of them, or one of another model.
    """
    if hasattr(model, "peft_config"):
        if peft_config is not None or config.lora_rank or config.adapter:
            raise UsageError(
                "the model has an adapter already, and the settings ask for another", hint="give one of them"
            )
        if not hasattr(model, "get_base_model") or list(model.peft_config) != ["default"]:
            raise UsageError(
                f"the model's adapters are {', '.join(model.peft_config)}",
                hint="give a peft.PeftModel with one adapter, or the adapter's folder: GRPOTrainer(model='FOLDER')",
            )
        _check_plain(model.peft_config["default"])
        _thaw(model)
    elif config.adapter:
        model = on_adapter(model, adapter_named(config.adapter), dropout=config.lora_dropout)
    elif peft_config is not None or config.lora_rank:
        model = _adapted(model, config, peft_config)
    if not hasattr(model, "peft_config"):
        return model.float()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def _adapted(model: Any, config: GRPOConfig, peft_config: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    if peft_config is None:
        targets = config.lora_target_modules
        peft_config = LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha or 2 * config.lora_rank,
            lora_dropout=config.lora_dropout,
            target_modules=targets[0] if targets == ["all-linear"] else targets,
            task_type="CAUSAL_LM",
        )
    _check_plain(peft_config)
    return get_peft_model(model, copy.deepcopy(peft_config))  # it writes the model's name and layers into it


def _thaw(model: Any) -> None:
    """A script's adapter is there to be trained, also where peft loaded it frozen (from_pretrained without is_trainable)."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        model.peft_config["default"].inference_mode = False
        model.set_adapter("default")


def on_adapter(model: Any, adapter: Adapter, *, dropout: float = 0.0) -> Any:
    """The model under an adapter that lies in a folder, to be trained on, with `dropout`.

    Raises:
        UsageError: its weights are not for this model, or cannot be read.
    """
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    folder, no_fit = str(adapter.folder), ""
    with explained(adapter.name, "adapter", "--adapter"):
        peft_config = PeftConfig.from_pretrained(folder)
        peft_config.inference_mode, peft_config.base_model_name_or_path = False, None
        if hasattr(peft_config, "lora_dropout"):
            peft_config.lora_dropout = dropout
        weights = load_peft_weights(folder, device="cpu")
    try:
        model = get_peft_model(model, peft_config)
        found: Any = set_peft_model_state_dict(model, weights)
        alone = [name for name in found.unexpected_keys if ".modules_to_save." not in name]  # peft may save those twice
        alone += [name for name in found.missing_keys if "lora_" in name]
        if alone:
            no_fit = f"{alone[0]} is in one of them only"
    except (RuntimeError, ValueError, KeyError) as error:  # other shapes, no such modules
        no_fit = str(error).strip().splitlines()[-1].strip()
    if no_fit:
        raise UsageError(
            f"the adapter {adapter.name} is not one of this model ({type(model).__name__}): {no_fit}",
            hint=f"it belongs to {adapter.base or 'a model that it does not name'}: give that one with --model",
        )
    return model


def starts_at_zero(model: Any) -> bool:
    """Whether the LoRA adapters of a model change nothing yet: then, switched off, they leave the initial policy."""
    factors = ("lora_B", "lora_embedding_A")  # those that are zero at first
    return not any(bool(p.any()) for name, p in model.named_parameters() if any(factor in name for factor in factors))


def _check_plain(peft_config: Any) -> None:
    from peft import LoraConfig

    if not isinstance(peft_config, LoraConfig):
        raise UsageError(f"peft_config is a {type(peft_config).__name__}", hint="give a plain peft.LoraConfig")
    if used := [name for name in NOT_PLAIN_LORA if getattr(peft_config, name, None)]:
        raise UsageError(
            f"peft_config sets {', '.join(used)}: what it trains cannot be merged for the sampler",
            hint="give a plain peft.LoraConfig",
        )


def stop_token_ids(model_config: Any, generation_config: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a completion, by the tokenizer and by the model's own configs."""
    ids: set[int] = set()
    for value in (
        tokenizer.eos_token_id,
        getattr(generation_config, "eos_token_id", None),
        getattr(model_config, "eos_token_id", None),
        getattr(getattr(model_config, "text_config", None), "eos_token_id", None),
    ):
        ids.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
    return sorted(token for token in ids if token >= 0)  # -1: none


def stop_tokens_of(config: GRPOConfig, path: str, tokenizer: Any) -> list[int]:
    """The same from a model folder or hub id, without its weights.

    Raises:
        UsageError: there is no such model.
    """
    from transformers import GenerationConfig

    model_config = _model_config(config, path)
    try:
        generation = GenerationConfig.from_pretrained(path, revision=_revision(config, path) or "main")
    except OSError:  # a model need not have one
        generation = None
    return stop_token_ids(model_config, generation, tokenizer)


def vocabulary_of(config: GRPOConfig, path: str) -> int | None:
    """Tokens that the model at `path` knows; None: its config does not say.

    Raises:
        UsageError: there is no such model.
    """
    return getattr(_model_config(config, path).get_text_config(), "vocab_size", None)


def _model_config(config: GRPOConfig, path: str) -> Any:
    from transformers import AutoConfig

    return loaded(AutoConfig, config, path, "config")


def end_turns(model: Any, eos: Sequence[int], turn_tokens: Sequence[int]) -> None:
    """Let what the model is saved with end its completions where those of its training ended."""
    generation = getattr(model, "generation_config", None)
    if generation is not None and (new := [token for token in turn_tokens if token not in eos]):
        generation.eos_token_id = [*eos, *new]


def make_savable(generation: Any) -> None:
    """Sampling settings of a base model that ask for greedy decoding and a temperature at once: transformers loads them, and
    saves no model with them."""
    if generation is None:
        return
    try:
        generation.validate(strict=True)
    except ValueError:
        generation.do_sample = True


def save_generation(model: Any, folder: str | Path) -> None:
    """The generation config of a model, where it has one; see `make_savable`."""
    make_savable(generation := getattr(model, "generation_config", None))
    if generation is not None:
        generation.save_pretrained(str(folder))


def _revision(config: Settings, path: str) -> str | None:
    return None if os.path.isdir(path) else config.revision


def loaded(kind: Any, config: Settings, path: str, what: str, flag: str = "--model", **options: Any) -> Any:
    """`kind.from_pretrained`, at the revision of the settings; `what` and `flag` are for messages.

    Raises:
        UsageError: there is no such model, or it cannot be read.
    """
    with explained(path, what, flag):
        return kind.from_pretrained(
            path, revision=_revision(config, path), trust_remote_code=config.trust_remote_code, **options
        )


@contextmanager
def explained(path: str, what: str, flag: str = "--model") -> Iterator[None]:
    """Turns what transformers raises for a model it cannot find or read into one message with a way out."""
    try:
        yield
    except PostrlError:
        raise
    except Exception as error:
        where = "in that folder" if os.path.isdir(path) else "on the hub, or in the cache when offline"
        raise UsageError(
            f"cannot load the {what} of {path!r}: {first_line(error)}",
            hint=f"{flag} takes a hub id, a local folder or smollm2-135m; nothing usable was found {where}",
        ) from error
