"""Values of settings as their types, and settings from a YAML file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field
from pathlib import Path, PurePath
from typing import Any

from postrl.errors import UsageError
from postrl.host.text import read_text


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UsageError when the file is missing or not a mapping."""
    import yaml

    if Path(path).is_dir():
        inside = Path(path, "config.yaml")
        raise UsageError(
            f"the config file {path} is a folder",
            hint=f"--config {inside}" if inside.exists() else "check the path given with --config",
        )
    try:
        values = yaml.safe_load(read_text(path, "the config file", "check the path given with --config"))
    except yaml.YAMLError as error:
        raise UsageError(
            f"{path} is not valid YAML: {error}", hint="a config file has one `setting: value` a line"
        ) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(
            f"{path} holds a {type(values).__name__}, not settings",
            hint="a config file has one `setting: value` a line",
        )
    return values


def as_typed(f: Field[Any], value: Any, source: str) -> Any:
    """A value as the field's type; YAML reads 1e-6 as text and a single item where a list is meant.

    Raises:
        UsageError: it is not one; the message names the setting, the value and the type.
    """
    kind = str(f.type)
    if value is None and "None" in kind:
        return None
    try:
        if kind.startswith("list["):
            items = value if isinstance(value, list | tuple) else [value]
            return [_float(item) if "float" in kind else _text(item) for item in items]
        read = next((read for name, read in _READERS.items() if kind.startswith(name)), _text)
        return read(value)
    except (TypeError, ValueError) as error:
        message = f"{source}: {f.name} is {value!r}, expected {kind}"
        raise UsageError(message, hint=f"{f.name}: {f.metadata['help']}") from error


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _int(value: Any) -> int:
    number = _float(value)
    if number != int(number):
        raise ValueError
    return int(number)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | PurePath):
        raise TypeError
    return str(value)


_READERS: dict[str, Callable[[Any], Any]] = {"bool": _bool, "int": _int, "float": _float}
