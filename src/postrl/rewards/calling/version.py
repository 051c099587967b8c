"""Which version of a reward function gave a score: text that is stored with each score."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from postrl.rewards.builtin import BUILTINS
from postrl.rewards.registry import RewardSpec
from postrl.version import __version__


def version_of(spec: RewardSpec, function: Callable[..., Any], constants: Mapping[str, Any]) -> str:
    """The version of a function that was loaded from this spec, with the options it was given.

        math 1, postrl 0.1.0                   a built-in: what it says of itself, and postrl's version
        shaping 1, postrl 0.1.0, cache=64
        sha256 0123456789ab                    a file or module: of its source; a Python callable: of its pickle

    Args:
        constants: the function's constant arguments; a `version` attribute gets those that it names.
    """
    options = "".join(f", {name}={value}" for name, value in sorted(spec.options.items()))
    if spec.kind == "builtin":
        return f"{own_version(str(spec.payload), function, constants)}, postrl {__version__}{options}"
    return f"sha256 {hashlib.sha256(_source(spec, function)).hexdigest()[:12]}{options}"


def own_version(name: str, function: Callable[..., Any], constants: Mapping[str, Any]) -> str:
    """What a built-in says of itself: its `version()`, else the VERSION of its module, else its name."""
    version = getattr(function, "version", None)
    if version is None:
        places = (BUILTINS[name].target.partition(":")[0], function.__module__)
        return next((sys.modules[place].VERSION for place in places if hasattr(sys.modules[place], "VERSION")), name)
    named = inspect.signature(version).parameters
    return str(version(**{key: value for key, value in constants.items() if key in named}))


def _source(spec: RewardSpec, function: Callable[..., Any]) -> bytes:
    """What the function is made of, as far as one file or pickle says."""
    if isinstance(spec.payload, bytes):
        return spec.payload
    place = spec.payload.rpartition(":")[0]
    path = place if spec.kind == "file" else getattr(sys.modules.get(place), "__file__", None)
    try:
        return Path(path or "").read_bytes()
    except OSError:  # a module without a source file
        return f"{spec.payload} {getattr(sys.modules.get(place), '__version__', '')}".encode()
