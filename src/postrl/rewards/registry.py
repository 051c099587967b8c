"""From what the user wrote to a reward function: names, files, modules and Python callables.

    resolve("math")  resolve("reward_model:org/model")  resolve("rewards.py:brevity")  resolve("pkg.rewards:brevity")  resolve(lambda completions: ...)
    with_options(specs, ["soft_overlong.cache=64"])

`resolve` runs in the launcher: it finds every mistake that can be found without running the user's code. `load` runs
in the reward worker and runs that code. Between them a spec travels as plain JSON (`to_wire`, `from_wire`), from
parent to child on one host only, because a pickled callable is code.
"""

from __future__ import annotations

import base64
import importlib
import importlib.machinery
import importlib.util
import operator
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal

from postrl.errors import UsageError
from postrl.rewards.builtin import BUILTINS

EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")
FORMS = f"give a built-in name ({', '.join(BUILTINS)}), file.py:function or package.module:function"


@dataclass(frozen=True)
class RewardSpec:
    """A reward function that can be sent to a worker process."""

    name: str
    """Names its metrics, its column in the rollouts and, in a data set's `rewards`, the function itself."""
    kind: Literal["builtin", "file", "module", "pickle"]
    payload: str | bytes
    """builtin: its name; file: `absolute/path.py:function`; module: `package.module:function`; pickle: the bytes."""
    sys_path: tuple[str, ...] = ()
    """Where the worker looks for the modules that the function was found in or refers to."""
    origin: str = ""
    """pickle: the file the callable was written in, which pickled code does not remember and a traceback needs."""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Constant keyword arguments, plain values (`--reward-arg`)."""

    def to_wire(self) -> dict[str, Any]:
        """The spec as JSON values."""
        payload = base64.b64encode(self.payload).decode() if isinstance(self.payload, bytes) else self.payload
        return {**asdict(self), "payload": payload, "sys_path": list(self.sys_path)}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> RewardSpec:
        """The inverse of `to_wire`. Only for specs that a parent process sent: `load` runs what they hold."""
        payload = base64.b64decode(wire["payload"]) if wire["kind"] == "pickle" else wire["payload"]
        return cls(**{**wire, "payload": payload, "sys_path": tuple(wire["sys_path"])})


def resolve(spec: str | Callable[..., Any] | RewardSpec) -> RewardSpec:
    """Find a reward function without running its code.

    Args:
        spec: a built-in name, `reward_model:MODEL`, `file.py:function`, `package.module:function`, or a callable (function, lambda, closure,
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
    place, colon, function = spec.rpartition(":")
    if colon and place and function:
        is_file = place.endswith(".py") or os.sep in place or Path(place).is_file()
        return _from_file(spec, place, function) if is_file else _from_module(spec, place, function)
    return _from_name(spec)


def load(spec: RewardSpec) -> Callable[..., Any]:
    """Run the code that defines the function and return it. For reward workers: it may do anything."""
    _search(spec)
    if isinstance(spec.payload, bytes):
        import cloudpickle

        function: Callable[..., Any] = cloudpickle.loads(spec.payload)
        return function
    target = BUILTINS[spec.payload].target if spec.kind == "builtin" else spec.payload
    place, _, name = target.rpartition(":")
    module = _run_file(Path(place)) if spec.kind == "file" else _import(place, spec.sys_path)
    found: Callable[..., Any] = operator.attrgetter(name)(module)
    if not callable(found):
        raise TypeError(f"{target} is a {type(found).__name__}, not a function")
    return found


def with_options(specs: Sequence[RewardSpec], args: Sequence[str]) -> list[RewardSpec]:
    """The specs with the options of `--reward-arg NAME.KEY=VALUE`; values are YAML scalars. Of two rewards of one name the
    second is NAME_2.

    Whether a function has such an argument shows when its worker starts.

    Raises:
        UsageError: an argument that is not of this form, or whose NAME is none of the rewards; a wrong URL.
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
    if EXPONENT.fullmatch(text):  # YAML 1.1 wants a point in it
        return name, key, float(text)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    scalar = isinstance(value, bool | int | float | str) or text.strip() in ("", "null", "~")
    return name, key, value if scalar else text


def _search(spec: RewardSpec) -> None:
    """Let this process find what the function refers to. Python's own library comes first in any case; the modules of a
    script then come in the script's order, those beside a named module last."""
    library = [entry for entry in sys.path if entry in _LIBRARY]
    installed = [entry for entry in sys.path if entry not in _LIBRARY]
    user = [entry for entry in spec.sys_path if entry not in library]
    order = [*library, *user, *installed] if spec.kind == "pickle" else [*library, *installed, *user]
    sys.path[:] = list(dict.fromkeys(order))


_LIBRARY = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
_LIBRARY |= {os.path.join(folder, "lib-dynload") for folder in _LIBRARY}


def _run_file(path: Path) -> Any:
    """Import a file by its path, whatever it is called. Its folder joins the end of the search path, and the working folder
    after it, so that it can import its neighbours and the user's modules, and cannot hide an installed package."""
    name = path.stem if _is_free(path.stem) else re.sub(r"\W", "_", f"reward_{path.stem}")
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module_spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert module_spec is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    sys.path.append(str(path.parent))
    with suppress(FileNotFoundError):  # removed meanwhile
        sys.path.append(os.getcwd())
    loader.exec_module(module)
    return module


def _is_free(name: str) -> bool:
    """Whether a module may be called so, and none is: loaded, of Python's library or installed."""
    taken = name in sys.modules or name in sys.stdlib_module_names
    return name.isidentifier() and not taken and _find_installed(name) is None


def _import(name: str, search: Sequence[str]) -> Any:
    """Import a module from where `resolve` has found it: in `search`, whose order need not be this process's."""
    top = name.partition(".")[0]
    found = importlib.machinery.PathFinder.find_spec(top, list(search))
    if top not in sys.modules and found is not None and found.loader is not None:
        sys.modules[top] = module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    return importlib.import_module(name)


# -- one finder per form -----------------------------------------------------------------------------------------------


def _from_name(name: str) -> RewardSpec:
    if name in BUILTINS:
        return RewardSpec(name, "builtin", name)
    if name.endswith(".py"):
        raise UsageError(f"reward {name} names a file and no function", hint=f"write it as {name}:function")
    if "/" in name:  # what TRL takes for the id or the folder of a reward model
        raise UsageError(
            f"there is no built-in reward {name!r}", hint=f"a reward model is written as reward_model:{name}"
        )
    close = get_close_matches(name, BUILTINS, n=1, cutoff=0.0)[0]
    raise UsageError(f"there is no built-in reward {name!r}", hint=f"did you mean {close}? {FORMS}")


def _from_file(spec: str, place: str, function: str) -> RewardSpec:
    path = Path(place).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"reward {spec}: there is no file {path}", hint="paths start from the current folder")
    _check_defines(spec, path, function, alone=True)
    return RewardSpec(function, "file", f"{path}:{function}")


def _from_module(spec: str, place: str, function: str) -> RewardSpec:
    if (top := place.partition(".")[0]) in sys.stdlib_module_names and Path(f"{top}.py").is_file():
        raise UsageError(
            f"reward {spec}: {top} is a module of Python's own library, which {top}.py in the current folder cannot replace",
            hint=f"give the file: {top}.py:{function}",
        )
    search = (os.getcwd(), *search_path())  # as `python -m` would
    found = _find_module(place, search)
    if found is None:
        raise UsageError(
            f"reward {spec}: there is no module {place}",
            hint="it must be installed or lie in the current folder; a file is written as file.py:function",
        )
    if found.origin and found.origin.endswith(".py"):
        _check_defines(spec, Path(found.origin), function)
    return RewardSpec(function, "module", f"{place}:{function}", search)


def _from_callable(function: Callable[..., Any]) -> RewardSpec:
    import cloudpickle

    if (builtin := _as_builtin(function)) is not None:
        return builtin
    inner = _unwrapped(function)
    name = getattr(inner, "__name__", type(inner).__name__)
    if hasattr(function, "forward") and hasattr(function, "save_pretrained"):
        raise UsageError(
            f"reward {name} is a model, and models are not reward functions here",
            hint="save it and give reward_model:FOLDER; or a function that loads it once and returns a list of floats",
        )
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    origin = code.co_filename if code is not None else ""
    try:
        return RewardSpec(name, "pickle", cloudpickle.dumps(function), search_path(), origin)
    except Exception as error:
        raise UsageError(
            f"reward function {name} cannot be sent to its worker process: {error}",
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


# -- checks that run no user code --------------------------------------------------------------------------------------


def _unwrapped(function: Any) -> Any:
    """What gives a callable its name: itself, or the function inside a partial."""
    while isinstance(function, partial):
        function = function.func
    return function


def search_path() -> tuple[str, ...]:
    """This process's own search path, for a worker that may run elsewhere."""
    return tuple(os.path.abspath(entry) for entry in sys.path if os.path.exists(entry or "."))


def _find_module(name: str, search: tuple[str, ...]) -> importlib.machinery.ModuleSpec | None:
    """Where a module is, without importing its parent packages as `importlib.util.find_spec` would."""
    top, *rest = name.split(".")
    found = importlib.machinery.PathFinder.find_spec(top, list(search)) or _find_installed(top)
    for depth in range(len(rest)):
        if found is None or found.submodule_search_locations is None:
            return None
        whole = ".".join([top, *rest[: depth + 1]])
        found = importlib.machinery.PathFinder.find_spec(whole, list(found.submodule_search_locations))
    return found


def _find_installed(top: str) -> importlib.machinery.ModuleSpec | None:
    """Editable installs have finders of their own."""
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: not a module name, or a module without a spec such as __main__
        return None


def _check_defines(spec: str, path: Path, function: str, *, alone: bool = False) -> None:
    """The file compiles and binds the name at its top level; one that is loaded alone imports nothing from a package."""
    import ast
    import symtable

    try:
        source = path.read_bytes()
        compile(source, str(path), "exec", dont_inherit=True)
        text = importlib.util.decode_source(source)
    except OSError as error:
        raise UsageError(f"reward {spec}: cannot read {path}: {error.strerror}", hint="may you read it?") from error
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes
        where = f"{path}:{getattr(error, 'lineno', None) or 1}"
        raise UsageError(
            f"reward {spec}: {where} is not valid Python: {getattr(error, 'msg', error)}", hint=f"run `python {path}`"
        ) from error
    table = symtable.symtable(text, str(path), "exec")
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    body = ast.parse(text).body
    star = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in body)
    relative = next((node for node in body if isinstance(node, ast.ImportFrom) and node.level), None)
    if alone and relative is not None:
        raise UsageError(
            f"reward {spec}: {path}:{relative.lineno} imports from a package (`{ast.unparse(relative)}`), and a file is loaded "
            "alone",
            hint=f"write `{ast.unparse(relative).replace('from .', 'from ', 1)}` for a file beside it, or give "
            "package.module:function",
        )
    if function.split(".")[0] not in bound and not star:
        defined = {child.get_name() for child in table.get_children() if child.get_type() == "function"}
        functions = sorted(name for name in defined if name != "lambda" and not name.startswith("_"))
        close = get_close_matches(function, functions, n=1)
        known = f"it defines {', '.join(functions)}" if functions else "it defines no function"
        hint = f"did you mean {close[0]}? {known}" if close else known
        raise UsageError(f"reward {spec}: {path} has no function {function!r}", hint=hint)
