"""From what the user wrote to a reward function: names, files, modules and Python callables.

    resolve("math")  resolve("reward_model:org/model")  resolve("rewards.py:brevity")  resolve("pkg.rewards:brevity")  resolve(lambda completions: ...)
    with_options(specs, ["soft_overlong.cache=64"])

`resolve` runs in the launcher: it finds every mistake that can be found without running the user's code. `load` runs
in the reward process and runs that code. Between them a spec travels as plain JSON (`to_wire`, `from_wire`), from
parent to child on one host only, because a pickled callable is code.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal

from postrl.config.values import parse_yaml
from postrl.errors import UsageError
from postrl.rewards.builtin import BUILTINS
from postrl.user_code import Found, find_function, load_function, look_in, search_path

FORMS = f"give a built-in name ({', '.join(BUILTINS)}), file.py:function or package.module:function"


@dataclass(frozen=True)
class RewardSpec:
    """A reward function that can be sent to a process of its own."""

    name: str
    """Names its metrics, its column in the rollouts and, in a data set's `rewards`, the function itself."""
    kind: Literal["builtin", "file", "module", "pickle"]
    payload: str | bytes
    """builtin: its name; file: `absolute/path.py:function`; module: `package.module:function`; pickle: the bytes."""
    sys_path: tuple[str, ...] = ()
    """Where its process looks for the modules that the function was found in or refers to."""
    origin: str = ""
    """pickle: the file the callable was written in, which pickled code does not remember and a traceback needs."""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Constant keyword arguments, plain values (`--reward-arg`)."""
    live: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    """pickle: the callable itself, which stays in the process that has it."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "live": None}

    def to_wire(self) -> dict[str, Any]:
        """The spec as JSON values."""
        payload = base64.b64encode(self.payload).decode() if isinstance(self.payload, bytes) else self.payload
        return {
            "name": self.name, "kind": self.kind, "payload": payload, "sys_path": list(self.sys_path),
            "origin": self.origin, "options": self.options,
        }  # fmt: skip

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> RewardSpec:
        """The inverse of `to_wire`. Only for specs that a parent process sent: `load` runs what they hold."""
        payload = base64.b64decode(wire["payload"]) if wire["kind"] == "pickle" else wire["payload"]
        return cls(**{**wire, "payload": payload, "sys_path": tuple(wire["sys_path"])})


def resolve(spec: str | Callable[..., Any] | RewardSpec) -> RewardSpec:
    """Find a reward function without running its code.

    Args:
        spec: a built-in name, `reward_model:MODEL` or MODEL (hub id or folder), `file.py:function`, `package.module:function`, or a callable (function, lambda, closure,
            partial, callable object).

    Raises:
        UsageError: an unknown name, a missing file or function, a syntax error, a callable that cannot be pickled.
    """
    if isinstance(spec, RewardSpec):
        return spec
    if callable(spec):
        return _from_callable(spec)
    if not isinstance(spec, str):
        raise UsageError(f"a reward is a {type(spec).__name__}: {spec!r}", hint=f"{FORMS}, or a Python function")
    name, _, value = spec.partition(":")
    if value and name in BUILTINS and BUILTINS[name].short:
        return RewardSpec(name, "builtin", name, options={BUILTINS[name].short: value})
    found = find_function(spec, "reward")
    if found is None:
        return _from_name(spec)
    return RewardSpec(found.target.rpartition(":")[2], found.kind, found.target, found.search)


def load(spec: RewardSpec) -> Callable[..., Any]:
    """Run the code that defines the function and return it. For reward processes: it may do anything."""
    if spec.live is not None:
        return spec.live
    if isinstance(spec.payload, bytes):  # the modules of a script come in the script's order
        import cloudpickle

        look_in(spec.sys_path, before_installed=True)
        function: Callable[..., Any] = cloudpickle.loads(spec.payload)
        return function
    target = BUILTINS[spec.payload].target if spec.kind == "builtin" else spec.payload
    return load_function(Found("file" if spec.kind == "file" else "module", target, spec.sys_path))


def with_options(specs: Sequence[RewardSpec], args: Sequence[str]) -> list[RewardSpec]:
    """The specs with the options of `--reward-arg NAME.KEY=VALUE`; values are YAML scalars. Of two rewards of one name the
    second is NAME_2.

    Whether a function has such an argument shows when its process starts.

    Raises:
        UsageError: an argument that is not of this form, or whose NAME is not one of the rewards; a wrong URL.
    """
    given: dict[str, dict[str, Any]] = {}
    for arg in args:
        name, key, value = parse_option(arg)
        given.setdefault(name, {})[key] = value
    names = distinct([spec.name for spec in specs])
    if unknown := next((name for name in given if name not in names), None):
        raise UsageError(
            f"reward_arg names the reward {unknown!r}; this run has {', '.join(names) or 'none'}",
            hint="write it as NAME.KEY=VALUE, such as --reward-arg soft_overlong.cache=64",
        )
    found = [
        replace(spec, options={**spec.options, **given.get(name, {})}) for spec, name in zip(specs, names, strict=True)
    ]
    for spec in found:
        if spec.kind == "builtin" and "url" in spec.options:
            from postrl.rewards.endpoint import check_url

            check_url(str(spec.options["url"]))  # before the settings are stored
    return found


def with_tokenizers(specs: Sequence[RewardSpec], classes: Any) -> list[RewardSpec]:
    """The specs with the tokenizers that TRL's `reward_processing_classes` gives to reward models.

    Args:
        classes: one for each reward, or a single one; None: the reward model's own. Those of functions count for nothing.

    Raises:
        UsageError: another number of them, or one that is not in a folder or on the hub, where the reward's process finds it.
    """
    given = (
        list(classes) if isinstance(classes, list | tuple) else [classes] * len(specs) if classes is None else [classes]
    )
    if len(given) != len(specs):
        raise UsageError(
            f"{len(given)} reward_processing_classes for {len(specs)} rewards",
            hint="give one for each reward, None for functions",
        )
    return [_with_tokenizer(spec, tokenizer) for spec, tokenizer in zip(specs, given, strict=True)]


def _with_tokenizer(spec: RewardSpec, tokenizer: Any) -> RewardSpec:
    if tokenizer is None or spec.payload != "reward_model":
        return spec
    if not (place := getattr(tokenizer, "name_or_path", "")):
        raise UsageError(
            f"the {type(tokenizer).__name__} of reward_processing_classes has no name_or_path, and the reward model runs in a "
            "process of its own",
            hint="save it with save_pretrained(FOLDER), and give AutoTokenizer.from_pretrained(FOLDER)",
        )
    return replace(spec, options={**spec.options, "tokenizer": str(place)})


def distinct(names: Sequence[str]) -> list[str]:
    """Two lambdas have one name; metrics, columns and options need two: the second is NAME_2."""
    found: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in found:
            number += 1
            candidate = f"{name}_{number}"
        found.append(candidate)
    return found


def parse_option(arg: str) -> tuple[str, str, Any]:
    """NAME.KEY=VALUE in its parts. The value is what YAML reads (and 1e-6 a number); what is no scalar there is text.

    Raises:
        UsageError: it is not of this form.
    """
    import yaml

    place, equals, text = arg.partition("=")
    name, _, key = place.strip().rpartition(".")
    if not (equals and name and key.isidentifier()):
        raise UsageError(
            f"reward_arg is {arg!r}", hint="write it as NAME.KEY=VALUE, such as --reward-arg soft_overlong.cache=64"
        )
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        value = text
    if isinstance(value, float):
        return name, key, float(value)  # without the text that a config file keeps beside it
    scalar = isinstance(value, bool | int | str) or text.strip() in ("", "null", "~")
    return name, key, value if scalar else text


# -- one finder per form -----------------------------------------------------------------------------------------------


def _from_name(name: str) -> RewardSpec:
    if name in BUILTINS:
        return RewardSpec(name, "builtin", name)
    if name.endswith(".py"):
        raise UsageError(f"reward {name} names a file and no function", hint=f"write it as {name}:function")
    if "/" in name or (Path(name).expanduser() / "config.json").is_file():  # the id or the folder of a reward model
        return RewardSpec("reward_model", "builtin", "reward_model", options={"model": name})
    close = get_close_matches(name, BUILTINS, n=1, cutoff=0.0)[0]
    raise UsageError(f"there is no built-in reward {name!r}", hint=f"did you mean {close}? {FORMS}")


def _from_callable(function: Callable[..., Any]) -> RewardSpec:
    import cloudpickle

    if (builtin := _as_builtin(function)) is not None:
        return builtin
    inner: Any = function
    while isinstance(inner, partial):  # what gives a callable its name
        inner = inner.func
    name = getattr(inner, "__name__", type(inner).__name__)
    if hasattr(function, "forward") and hasattr(function, "save_pretrained"):
        raise UsageError(
            f"reward {name} is a model, and models are not reward functions here",
            hint="save it and give reward_model:FOLDER; or a function that loads it once and returns a list of floats",
        )
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    origin = code.co_filename if code is not None else ""
    try:
        return RewardSpec(name, "pickle", cloudpickle.dumps(function), search_path(), origin, live=function)
    except Exception as error:
        raise UsageError(
            f"reward function {name} cannot be sent to its process: {error}",
            hint="it refers to something that cannot be pickled (a lock, an open file, a client); create that inside "
            "the function at its first call, or put the function into a file and give file.py:function",
        ) from error


def _as_builtin(function: Callable[..., Any]) -> RewardSpec | None:
    """A function of ours that a script imports, with the options that a partial gives it, is what its name is."""
    inner: Any = function
    options: dict[str, Any] = {}
    if isinstance(function, partial) and not function.args:
        inner, options = function.func, dict(function.keywords)
    if not str(getattr(inner, "__module__", "")).startswith("postrl.rewards."):
        return None
    plain = all(value is None or isinstance(value, bool | int | float | str) for value in options.values())
    names = [name for name, row in BUILTINS.items() if row.target.endswith(f":{getattr(inner, '__name__', '')}")]
    return RewardSpec(names[0], "builtin", names[0], options=options) if names and plain else None
