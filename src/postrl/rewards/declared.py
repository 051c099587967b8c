"""What a reward function asks for, read from its source: mistakes show before anything starts, and no code is run."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from postrl.errors import UsageError
from postrl.host.text import read_text
from postrl.rewards.builtin import BUILTINS
from postrl.rewards.calling.log import Log
from postrl.rewards.registry import RewardSpec

GIVEN = {"prompts", "completions", "completion_ids", *Log.ARGUMENTS}
"""Arguments that every call has; they are no options."""
FILES = {"rubric": "the judge's rubric", "chat_template": "reward_model's chat template"}
"""Options of built-in rewards that are text files."""


@dataclass(frozen=True)
class Declared:
    """The arguments of a function."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    """Those without a default."""
    options: tuple[str, ...]
    """Those that are given by keyword only."""
    any: bool
    """Whether it takes all others, too."""


def declared(spec: RewardSpec) -> Declared | None:
    """What the source says; None where it does not say it plainly: a decorated function, a class, a pickle."""
    target = BUILTINS[str(spec.payload)].target if spec.kind == "builtin" else spec.payload
    if isinstance(target, bytes):
        return None
    place, _, name = target.rpartition(":")
    if spec.kind == "builtin":
        found = importlib.util.find_spec(place)
        place = found.origin if found and found.origin else ""
    if spec.kind == "module":
        return None
    try:
        body = ast.parse(Path(place).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    for node in reversed(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return None if node.decorator_list else _of(node.args)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and name in _bound(node):
            return None  # such as score = partial(score, k=3) below the function
    return None


def _bound(node: ast.AST) -> set[str]:
    """The names that a statement may give a value."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            found.add(inner.id)
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(inner.name)
        elif isinstance(inner, ast.alias):
            found.add(inner.asname or inner.name)
    return found


def _of(args: ast.arguments) -> Declared:
    plain = [*args.posonlyargs, *args.args]
    without = plain[: len(plain) - len(args.defaults)]
    without += [arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    return Declared(
        names=tuple(arg.arg for arg in [*plain, *args.kwonlyargs]),
        required=tuple(arg.arg for arg in without),
        options=tuple(arg.arg for arg in args.kwonlyargs),
        any=args.kwarg is not None,
    )


def check_options(spec: RewardSpec, settings: Collection[str] = ()) -> None:
    """Refuse options that the function does not have, and a built-in without what it cannot do without: an address.

    Args:
        settings: names of the run's settings that built-ins take as options.

    Raises:
        UsageError: one of them; a file that cannot be read; a variable for a key that is not set.
    """
    asks = declared(spec)
    if asks is None:
        return
    own = spec.kind == "builtin"
    known = [name for name in (asks.options if own else asks.names) if name not in GIVEN]
    unknown = next((name for name in spec.options if name not in known and (own or not asks.any)), None)
    if unknown:
        raise UsageError(
            f"reward {spec.name} has no option {unknown!r}; it has {', '.join(known) or 'none'}",
            hint=f"correct or remove --reward-arg {spec.name}.{unknown}",
        )
    if not own:
        return
    missing = [name for name in asks.required if name in asks.options and name not in {*spec.options, *settings}]
    if missing:
        raise UsageError(
            f"reward {spec.name} needs the option {' and '.join(missing)}",
            hint=" ".join(f"--reward-arg {spec.name}.{name}={_example(name)}" for name in missing),
        )
    for name, what in FILES.items():
        if path := spec.options.get(name):
            read_text(str(path), what, f"correct --reward-arg {spec.name}.{name}")
    if variable := spec.options.get("api_key_env"):
        from postrl.rewards.endpoint import key_from

        key_from(str(variable), f"{spec.name}.api_key_env")


def _example(option: str) -> str:
    return "http://HOST:PORT/v1" if option == "url" else option.upper()


def check_columns(specs: Sequence[RewardSpec], data: str, columns: Collection[str]) -> None:
    """Refuse functions of the user's that cannot be called without what the data set `data` does not have.

    Raises:
        UsageError: one asks for more than calls, its options and the columns give.
    """
    for spec in specs:
        asks = declared(spec) if spec.kind == "file" else None
        missing = [name for name in (asks.required if asks else ()) if name not in {*GIVEN, *spec.options, *columns}]
        if missing:
            raise missing_columns(spec.name, missing, data, columns)


def missing_columns(name: str, missing: Sequence[str], data: str, columns: Collection[str]) -> UsageError:
    """The error about a reward function whose columns a data set does not have."""
    return UsageError(
        f"reward function {name} asks for {', '.join(missing)}, and {data} has no such column; it has "
        f"{', '.join(columns) or 'nothing but the prompt'}",
        hint=f"rename the argument or the column, give the argument a default ({missing[0]}=None), or a constant with "
        f"--reward-arg {name}.{missing[0]}=VALUE",
    )
