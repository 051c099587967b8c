"""From --model to what every process can load, without torch in the launcher."""

from __future__ import annotations

import subprocess
import sys

from postrl.config import GRPOConfig
from postrl.errors import PostrlError, UsageError
from postrl.learning.loading import check_model_path
from postrl.learning.packaged import PACKAGED, cache_folder

CONVERSION_TIMEOUT = 900.0


def local_model(config: GRPOConfig) -> str:
    """The folder or hub id that --model means; a packaged model is converted on first use.

    Raises:
        UsageError: no such folder, or the package of a packaged model is missing.
    """
    if config.model not in PACKAGED:
        check_model_path(config.model)
        return config.model
    command = [sys.executable, "-m", "postrl.learning.packaged", config.model]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CONVERSION_TIMEOUT, stdin=subprocess.DEVNULL
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
