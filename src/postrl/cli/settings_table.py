"""docs/settings.md from the settings dataclass: `python -m postrl.cli.settings_table > docs/settings.md`."""

from __future__ import annotations

import sys
from dataclasses import Field, fields
from typing import Any, get_args, get_origin, get_type_hints

from postrl.algorithms.refused import flag
from postrl.cli.options import choices
from postrl.config.setting import PANELS, default_of
from postrl.config.settings import Settings

HEAD = """# Settings

Generated from `postrl.config.GRPOConfig` by `python -m postrl.cli.settings_table`. A setting has one name: `max_steps` is
the flag `--max-steps`, the key `max_steps:` in a `--config` file, and `GRPOConfig(max_steps=...)` in a script. Flags win over
the config file. Yes/no flags are switched off with `--no-...`; lists are given by repeating the flag. Defaults are those of
`postrl grpo`; [presets.md](presets.md) says what other algorithms have otherwise.

In a setting that is a path, `~` is the home folder; variables such as `$DATA` are the shell's and stay as they are in a file or
a script. Text files (configurations, templates, rubrics, rewards) are read as UTF-8, whatever the locale says.
"""


def settings_table() -> str:
    """All settings as Markdown, a table per panel."""
    types = get_type_hints(Settings)
    parts = [HEAD]
    for panel in PANELS:
        rows = [_row(f, types[f.name]) for f in fields(Settings) if f.metadata["panel"] == panel]
        parts.append(f"\n## {panel}\n\n| flag | values | default | meaning |\n|---|---|---|---|\n" + "".join(rows))
    return "".join(parts)


def _row(f: Field[Any], kind: Any) -> str:
    within = f.metadata["within"]
    values = _values(kind) + (f", {within.words}" if within else "")
    return f"| `{flag(f.name)}` | {values} | {_default(default_of(f))} | {f.metadata['help']} |\n"


def _default(value: Any) -> str:
    if value in (None, "", []):
        return ""
    text = (
        ", ".join(value) if isinstance(value, list) else "yes" if value is True else "no" if value is False else value
    )
    return f"`{text}`"


def _values(kind: Any) -> str:
    if literal := choices(kind):
        return ", ".join(f"`{choice}`" for choice in literal)
    if get_origin(kind) is list:
        return f"{_values(get_args(kind)[0])}, repeatable"
    names = {bool: "yes/no", int: "integer", float: "number", str: "text"}
    return next(names[part] for part in (kind, *get_args(kind)) if part in names)


if __name__ == "__main__":
    sys.stdout.write(settings_table())
