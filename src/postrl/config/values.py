"""Values of settings as their types, and settings from a YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import Field
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from postrl.errors import UsageError
from postrl.host.text import read_text


class AsWritten(float):
    """A number that is its text where text is meant, such as a commit 1234e5."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


@cache
def _loader() -> Any:
    """YAML's safe loader, for which 1e-6 is a number: YAML 1.1 wants a point in it, and a sign behind the e."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    exponent = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("!exponent", exponent, list("-+.0123456789"))
    Loader.add_constructor("!exponent", lambda loader, node: AsWritten(str(node.value)))
    return Loader


def parse_yaml(text: str) -> Any:
    """What a text says in YAML. Raises yaml.YAMLError where it is not YAML."""
    import yaml

    return yaml.load(text, Loader=_loader())


def from_text(text: str) -> Any:
    """A value as YAML reads it, and any other text as it is."""
    import yaml

    try:
        return parse_yaml(text)
    except yaml.YAMLError:
        return text


def arguments(given: Sequence[str]) -> dict[str, Any]:
    """Arguments that are written as KEY=VALUE, each value as YAML reads it."""
    parts = (arg.partition("=") for arg in given)
    return {key: from_text(value) for key, _, value in parts}


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
        values = parse_yaml(read_text(path, "the config file", "check the path given with --config"))
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
    """A value as the field's type; a single item may stand where a list is meant.

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


def _steps(value: Any) -> float:
    """A number that is whole where it counts steps."""
    number = _float(value)
    return int(number) if number == number // 1 else number


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | PurePath):
        raise TypeError
    return str(value)


_READERS: dict[str, Callable[[Any], Any]] = {"bool": _bool, "int": _int, "float": _float, "Steps": _steps}
