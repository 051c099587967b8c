"""A flag that a command does not have: what to type instead, where it belongs, or how TRL's is called here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from postrl.algorithms.refused import flag
from postrl.config.settings import Settings
from postrl.config.trl_names import OTHERS
from postrl.config.trl_refused import COMMON, REFUSED
from postrl.config.trl_rules import RULES
from postrl.errors import UsageError

_TRL = {name: row.ours for row in RULES for name in row.names if name not in COMMON}
"""TRL's names that are converted in scripts and files -> what to type on the command line."""

_OTHERS = {flag(name): flag(ours) for name, ours in OTHERS.items()}


def explained(command: Any, ctx: Any, parse: Callable[[Any, list[str]], list[str]], args: list[str]) -> list[str]:
    """What `parse` makes of the arguments.

    Raises:
        UsageError: a flag that the command does not have, a value without a flag, or a flag without its value.
    """
    args = ["--help" if arg == "-h" else arg for arg in args]
    _refuse_swallowed(command, args)
    try:
        return parse(ctx, list(args))
    except Exception as error:  # typer brings click's exceptions without a public name
        if hasattr(error, "option_name") and hasattr(error, "possibilities"):
            typed = _as_typed(args, str(error.option_name))
            raise unknown_flag(typed, ctx.command_path, _flags(command, ctx), _elsewhere(command, ctx)) from error
        if found := re.match(r"Got unexpected extra argument\S* \((.*)\)", str(getattr(error, "message", ""))):
            raise _stray(found[1].split()[0], args, _flags(command, ctx)) from error
        if hasattr(error, "option_name") and "does not take a value" in str(getattr(error, "message", "")):
            typed = _as_typed(args, str(error.option_name))
            value = next((arg.partition("=")[2] for arg in args if arg.startswith(f"{typed}=")), "a value")
            raise _no_value(typed, value, _flags(command, ctx)) from error
        raise


def _refuse_swallowed(command: Any, args: list[str]) -> None:
    """A flag whose value was forgotten takes the next flag for it, and a run would begin in the folder --dry-run."""
    own = _options(command.params)
    for name, value in itertools.pairwise(args):
        option = own.get(name.replace("_", "-")) if name.startswith("--") else None
        follows = value.partition("=")[0].replace("_", "-")
        if option is not None and not option.is_flag and value.startswith("--") and follows in own:
            raise UsageError(f"{name} needs a value, and {value} follows it", hint=f"write {name} VALUE {value}")


def unknown_flag(typed: str, command: str, own: list[str], elsewhere: dict[str, str]) -> UsageError:
    """The error for a flag, as it was typed, that `command` has not.

    Args:
        own: the flags of the command.
        elsewhere: flags of other commands -> the command.
    """
    name, hyphens = typed.lstrip("-").replace("-", "_"), typed.replace("_", "-")
    if name in _TRL:
        return UsageError(f"{command} has no {typed}, which is TRL's", hint=f"in postrl: {_TRL[name]}")
    if name in REFUSED:
        row = REFUSED[name]
        return UsageError(f"{command} has no {typed}, which is TRL's: {row.why}", hint=_hint(row.hint, typed))
    ours = _OTHERS.get(hyphens, "")
    if ours.partition(" ")[0] in own:
        return UsageError(f"{command} has no {typed}", hint=f"in postrl: {ours}")
    if hyphens not in elsewhere and ours in elsewhere:
        return unknown_flag(ours, command, own, elsewhere)
    if hyphens in elsewhere and f"{hyphens}s" not in own:
        return UsageError(
            f"{hyphens} means nothing to `{command}`",
            hint=f"leave it out, or give it to `{elsewhere[hyphens]}`; `{command} --help` shows what this command takes",
        )
    lists = f"`{command} --help-all` lists all flags"
    if near := _begins(hyphens, own) or _alike(hyphens, own, 0.7):
        return UsageError(f"{command} has no {typed}", hint=f"did you mean {' or '.join(near)}? {lists}")
    if near := _alike(hyphens, [*map(flag, [*_TRL, *REFUSED]), *elsewhere], 0.8):
        meant = unknown_flag(near[0], command, own, elsewhere)
        return UsageError(f"{command} has no {typed}", hint=f"did you mean {near[0]}? {meant.message}; {meant.hint}")
    return UsageError(f"{command} has no {typed}", hint=lists)


def _begins(typed: str, flags: list[str]) -> list[str]:
    """The flags that it is the beginning of, where these are few."""
    found = [name for name in flags if name.startswith(typed) and len(typed) > 4 and typed != "--no-"]
    return found if len(found) <= 3 else []


def _alike(typed: str, flags: list[str], cutoff: float) -> list[str]:
    names = get_close_matches(typed.lstrip("-"), [name.lstrip("-") for name in flags], n=1, cutoff=cutoff)
    return [f"--{name}" for name in names]


def _as_typed(args: list[str], option: str) -> str:
    """The flag as it stands on the command line: the parser tells it with hyphens."""
    names = [arg.partition("=")[0] for arg in args]
    return next((name for name in names if name.replace("_", "-") == option.replace("_", "-")), option)


def _flags(command: Any, ctx: Any) -> list[str]:
    return [name for name, option in _options(command.get_params(ctx)).items() if not option.hidden]


def _options(parameters: Iterable[Any]) -> dict[str, Any]:
    """Flag -> the option that it belongs to."""
    names = {name: option for option in parameters for name in (*option.opts, *option.secondary_opts)}
    return {name: option for name, option in names.items() if name.startswith("--")}


def _elsewhere(command: Any, ctx: Any) -> dict[str, str]:
    """Flags of the other commands that are shown to people -> the command to give them to."""
    root = ctx.find_root()
    own = _options(command.params)
    found: dict[str, str] = {}
    for path, other in _commands(root.command, root.command_path):
        if other is not command:
            found = {**dict.fromkeys(_options(other.params), path), **found}
    return {name: path for name, path in found.items() if name not in own}


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            yield f"{path} {name}", command
            yield from _commands(command, f"{path} {name}")


def _stray(value: str, args: list[str], own: list[str]) -> UsageError:
    """A value that belongs to no flag, most often behind a yes/no flag."""
    before = args[args.index(value) - 1] if value in args[1:] else ""
    if value.lower() in ("true", "false", "yes", "no", "1", "0") and before.startswith("--"):
        return _no_value(before, value, own)
    return UsageError(
        f"{value} belongs to no flag", hint="settings are given as --name value; a value with spaces in quotes"
    )


def _no_value(typed: str, value: str, own: list[str]) -> UsageError:
    """A yes/no flag that has got a value."""
    on = "--" + typed.removeprefix("--").replace("_", "-").removeprefix("no-")
    off = on.replace("--", "--no-", 1)
    ways = f"{on} or {off}" if off in own else f"{on}, or leave it out"
    return UsageError(f"{typed} takes no value, and {value} follows it", hint=f"write {ways}")


def _hint(hint: str, typed: str) -> str:
    """A hint for a script as one for the command line: `engine='vllm'` is `--engine vllm`."""
    names = "|".join(sorted((f.name for f in fields(Settings)), key=len, reverse=True))
    shown = re.sub(rf"\b({names})=\[?'?([^'\],; ]+)'?\]?", lambda m: f"{flag(m[1])} {m[2]}".removesuffix(" True"), hint)
    shown = re.sub(rf"\bset ({names})\b", lambda m: flag(m[1]), shown)
    shown = re.sub(rf"(?<![-\w])(?=\w*_)({names})\b", lambda m: flag(m[1]), shown)
    return f"in postrl: {shown}" if shown.startswith("--") else shown or f"leave {typed} out"
