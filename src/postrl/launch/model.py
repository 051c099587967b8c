"""From --model to what every process can load, without torch in the launcher."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from postrl.config import GRPOConfig
from postrl.data_sources import hub_is_reachable
from postrl.errors import PostrlError, UsageError
from postrl.host.python import child_environment, python
from postrl.learning.loading import check_model_path
from postrl.learning.packaged import PACKAGED, cache_folder

CONVERSION_TIMEOUT = 900.0


def check_model(config: GRPOConfig) -> None:
    """Refuse a model (or critic_model) that cannot be had before anything starts.

    Raises:
        UsageError: no such folder, or a hub id that is not cached where the hub cannot be reached.
    """
    _check(config.model, "--model", config.revision)
    if config.critic_model is not None:
        _check(config.critic_model, "--critic-model", None)


def _check(name: str, flag: str, revision: str | None) -> None:
    if name not in PACKAGED:
        check_model_path(name, flag)
        if not Path(name).is_dir():
            _check_hub(name, flag, revision)


def local_model(config: GRPOConfig) -> str:
    """The folder or hub id that --model means; a packaged model is converted on first use.

    Raises:
        UsageError: the package of a packaged model is missing.
        PostrlError: it cannot be converted.
    """
    if config.model not in PACKAGED:
        return config.model
    command = [*python(), "-m", "postrl.learning.packaged", config.model]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=CONVERSION_TIMEOUT,
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise PostrlError(
            f"converting {config.model} took more than {CONVERSION_TIMEOUT:.0f} s",
            hint=f"delete {cache_folder()} and try again",
        ) from error
    if done.returncode == UsageError.exit_code:
        message, _, hint = done.stderr.strip().rpartition("\nhint: ")
        raise UsageError(message.splitlines()[-1] if message else done.stderr.strip(), hint=hint)
    if done.returncode:
        raise PostrlError(
            f"{config.model} could not be converted:\n{done.stderr.strip()[-2000:]}",
            hint=f"delete {cache_folder()} and try again",
        )
    return done.stdout.strip().splitlines()[-1]


def _check_hub(name: str, flag: str, revision: str | None) -> None:
    """Without network, have every process use the cache at once (each would try the hub for a minute), or refuse."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if hub_is_reachable():
        return
    try:
        cached = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError as error:
        raise UsageError(
            f"the model {name!r} is neither a folder nor a hub id", hint=f"check the name given with {flag}"
        ) from error
    if not isinstance(cached, str):
        raise UsageError(
            f"the model {name} is no folder here and not cached, and the hub cannot be reached (offline)",
            hint=f"give a local folder with {flag}, or run once with network access; smollm2-135m comes as a package",
        )
    os.environ["HF_HUB_OFFLINE"] = "1"
