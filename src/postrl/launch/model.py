"""From --model to what every process can load, without torch in the launcher."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from postrl.config import GRPOConfig
from postrl.console import note
from postrl.errors import PostrlError, UsageError
from postrl.host.hub import hub_is_reachable
from postrl.host.python import child_environment, python
from postrl.models.adapter import Adapter, adapter_named, base_of, check_trainable, find_adapter
from postrl.models.folder import (
    CONFIG,
    cached_snapshot,
    check_model_folder,
    check_model_path,
    has_tokenizer,
    read_json,
    refuse_quantised,
)
from postrl.models.packaged import CONVERSION_TIMEOUT, PACKAGED, cache_folder, check_packaged, converted
from postrl.rewards.registry import RewardSpec

TIDYING = 20.0
"""Seconds that a conversion which is to end has to take away what it has written."""


def with_adapter(config: GRPOConfig, *, loaded: bool = False) -> GRPOConfig:
    """The settings with what the adapter says that the run starts from: `model` is the one it belongs to, where --model
    names the adapter, and the --lora settings are its own. Settings without an adapter stay as they are.

    Args:
        loaded: whether a script has loaded the model already, and `model` only says where it came from.

    Raises:
        UsageError: it cannot be trained on, its model is not there, or a setting contradicts it.
    """
    named = None if loaded or config.model in PACKAGED else find_adapter(config.model, config.revision)
    if named and config.adapter:
        raise UsageError(
            f"--model {config.model} and --adapter {config.adapter} are two adapters", hint="leave one of them out"
        )
    if named is None and not config.adapter:
        return config
    adapter = named or adapter_named(config.adapter or "")
    check_trainable(adapter)
    if named:
        config = replace(config, adapter=config.model, model=base_of(named), revision=named.revision)
    return replace(config, **_lora_settings(config, adapter))


def _lora_settings(config: GRPOConfig, adapter: Adapter) -> dict[str, Any]:
    """The --lora settings that describe an adapter. Its dropout was of its own training: lora_dropout says what is now.

    Raises:
        UsageError: one was given otherwise.
    """
    has = adapter.settings
    rank, alpha, targets = int(has.get("r") or 0), has.get("lora_alpha"), has.get("target_modules")
    if config.lora_rank not in (0, rank):
        raise _contradiction(adapter, "lora_rank", config.lora_rank, rank)
    if config.lora_alpha not in (None, alpha):
        raise _contradiction(adapter, "lora_alpha", config.lora_alpha, alpha)
    settings: dict[str, Any] = {"lora_rank": rank}
    if alpha is not None and float(alpha).is_integer():
        settings["lora_alpha"] = int(alpha)
    if isinstance(targets, list):
        if config.lora_target_modules != ["all-linear"] and _ends(config.lora_target_modules) != _ends(targets):
            raise _contradiction(adapter, "lora_target_modules", config.lora_target_modules, sorted(targets))
        settings["lora_target_modules"] = sorted(targets)
    return settings


def _ends(names: Sequence[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in names}


def _contradiction(adapter: Adapter, name: str, given: object, has: object) -> UsageError:
    return UsageError(
        f"{name} is {given}, and the adapter {adapter.name} has {has}",
        hint=f"leave {name} out: an adapter that is trained on stays as it is",
    )


def check_model(config: GRPOConfig, *, tokenizer: bool = True, weights: bool = True) -> None:
    """Refuse a model (or critic_model) that cannot be had before anything starts.

    Args:
        tokenizer: whether it has to come with the model.
        weights: False for a plan, which needs none.

    Raises:
        UsageError: no such folder, a damaged one, a hub id that is not cached where the hub cannot be reached, or no package.
    """
    own = config.adapter is not None and has_tokenizer(adapter_named(config.adapter).folder)
    _check(config.model, "--model", config.revision, weights=weights, tokenizer=tokenizer and not own)
    if config.critic_model is not None:
        _check(config.critic_model, "--critic-model", None, weights=weights, writes_text=False)


def check_module(model: Any, *, adapted: bool) -> None:
    """Refuse a loaded model of a script's that cannot be trained.

    Args:
        adapted: whether it has an adapter or is to get one.

    Raises:
        UsageError: its weights are quantised, or all frozen.
    """
    name = f"the {type(model).__name__}"
    refuse_quantised(name, model.config.to_dict())
    if not (adapted or any(parameter.requires_grad for parameter in model.parameters())):
        raise UsageError(
            f"all weights of {name} are frozen (requires_grad is False): there is nothing to train",
            hint="model.requires_grad_(True), or give peft_config for an adapter",
        )


def _check(name: str, flag: str, revision: str | None, **wanted: bool) -> None:
    if name in PACKAGED:
        check_packaged(name)
    elif not check_model_path(name, flag, **wanted):
        _check_hub(name, flag, revision, wanted)
        if (cached := cached_snapshot(name, revision)) and (cached / CONFIG).exists():
            refuse_quantised(name, read_json(cached / CONFIG, name))


def check_reward_models(specs: Sequence[RewardSpec]) -> None:
    """The same for the models of rewards; one behind a URL needs no weights here.

    Raises:
        UsageError: see `check_model`.
    """
    for spec in specs:
        if spec.kind == "builtin" and spec.payload == "reward_model" and (name := str(spec.options.get("model", ""))):
            check_model_path(name, "--reward reward_model:", writes_text=False, weights=not spec.options.get("url"))


def local_model(config: GRPOConfig) -> str:
    """The folder or hub id that --model means; a packaged model is converted on first use, which a line says.

    Raises:
        UsageError: the package of a packaged model is missing.
        PostrlError: it cannot be converted.
    """
    if config.model not in PACKAGED:
        return config.model
    if (folder := converted(config.model)) is not None:
        return str(folder)
    check_packaged(config.model)
    note(f"preparing {config.model} (converted once, about half a minute)")
    code, out, err = _run_conversion(config.model)
    if code == 0:
        return out.strip().splitlines()[-1]
    message, _, hint = err.strip().rpartition("\nhint: ")
    if message and "Traceback" not in message:
        kind = UsageError if code == UsageError.exit_code else PostrlError
        raise kind(message.splitlines()[-1], hint=hint)
    raise PostrlError(
        f"{config.model} could not be converted:\n{err.strip()[-2000:]}",
        hint=f"delete {cache_folder()} and try again",
    )


def _run_conversion(name: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the process that converts a model. It ends with this call, however that ends, and
    has time to take away what it has half written."""
    command = [*python(), "-m", "postrl.models.packaged", name]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        env=child_environment(),
    ) as process:
        try:
            out, err = process.communicate(timeout=CONVERSION_TIMEOUT)
        except BaseException as error:
            process.terminate()
            try:
                process.wait(TIDYING)
            except BaseException:
                process.kill()
                raise
            if isinstance(error, subprocess.TimeoutExpired):
                raise PostrlError(
                    f"converting {name} took more than {CONVERSION_TIMEOUT:.0f} s",
                    hint=f"delete {cache_folder()} and try again",
                ) from error
            raise
    return process.returncode, out, err


def _check_hub(name: str, flag: str, revision: str | None, wanted: dict[str, bool]) -> None:
    """Without network, have every process use the cache at once (each would try the hub for a minute), or refuse what is
    not there whole."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if hub_is_reachable():
        return
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UsageError(
            f"the model {name!r} is neither a folder nor a hub id", hint=f"check the name given with {flag}"
        ) from error
    cached = cached_snapshot(name, revision)
    if cached is None:
        raise UsageError(
            f"the model {name} is not a folder here and not cached, and the hub cannot be reached (offline)",
            hint=f"give a local folder with {flag}, or run once with network access; smollm2-135m comes as a package",
        )
    try:
        check_model_folder(str(cached), flag, **wanted)
    except UsageError as error:
        raise UsageError(
            f"the model {name} is in the hub's cache in part only, and the hub cannot be reached (offline): {error.message}",
            hint="run once with network access, or give a local folder with the whole model",
        ) from error
    os.environ["HF_HUB_OFFLINE"] = "1"
