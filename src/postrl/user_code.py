"""Code of the user's, by file or module: found without being run, and run.

found = find_function("rewards.py:brevity", "reward")       in the launcher: every mistake that shows without running it
load_function(found)                                        where it is to run: it may do anything
"""

from __future__ import annotations

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
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from postrl.errors import UsageError


@dataclass(frozen=True)
class Found:
    """Where a function is."""

    kind: Literal["file", "module"]
    target: str
    """file: `absolute/path.py:function`; module: `package.module:function`."""
    search: tuple[str, ...] = ()
    """module: where it and what it imports are looked for."""


def find_function(text: str, what: str) -> Found | None:
    """Where `file.py:function` or `package.module:function` is; None: the text has no such form. Runs nothing.

    Args:
        what: names it in messages, such as "reward".

    Raises:
        UsageError: a missing file, module or function, a file that is no Python.
    """
    place, colon, function = text.rpartition(":")
    if not (colon and place and function):
        return None
    is_file = place.endswith(".py") or os.sep in place or Path(place).is_file()
    return _in_file(f"{what} {text}", place, function) if is_file else _in_module(f"{what} {text}", place, function)


def load_function(found: Found) -> Callable[..., Any]:
    """Run the code that defines the function and return it.

    Raises:
        TypeError: it is no function.
    """
    place, _, name = found.target.rpartition(":")
    look_in(found.search)
    module = run_file(Path(place)) if found.kind == "file" else import_from(place, found.search)
    function: Callable[..., Any] = operator.attrgetter(name)(module)
    if not callable(function):
        raise TypeError(f"{found.target} is a {type(function).__name__}, not a function")
    return function


def search_path() -> tuple[str, ...]:
    """This process's own search path, for a worker that may run elsewhere."""
    return tuple(os.path.abspath(entry) for entry in sys.path if os.path.exists(entry or "."))


def look_in(folders: Sequence[str], *, before_installed: bool = False) -> None:
    """Let this process find the modules in these folders. Python's own library comes first in any case, what is installed
    next."""
    library = [entry for entry in sys.path if entry in _LIBRARY]
    installed = [entry for entry in sys.path if entry not in _LIBRARY]
    user = [entry for entry in folders if entry not in library]
    order = [*library, *user, *installed] if before_installed else [*library, *installed, *user]
    sys.path[:] = list(dict.fromkeys(order))


_LIBRARY = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
_LIBRARY |= {os.path.join(folder, "lib-dynload") for folder in _LIBRARY}


def run_file(path: Path) -> Any:
    """Import a file by its path, whatever it is called. Its folder joins the end of the search path, and the working folder
    after it, so that it can import its neighbours and the user's modules, and cannot hide an installed package."""
    name = path.stem if _is_free(path.stem) else re.sub(r"\W", "_", f"user_{path.stem}")
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


def import_from(name: str, search: Sequence[str]) -> Any:
    """Import a module from where `resolve` has found it: in `search`, whose order need not be this process's."""
    top = name.partition(".")[0]
    found = importlib.machinery.PathFinder.find_spec(top, list(search))
    if top not in sys.modules and found is not None and found.loader is not None:
        sys.modules[top] = module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    return importlib.import_module(name)


# -- found without being run ---------------------------------------------------------------------------------------------


def _in_file(named: str, place: str, function: str) -> Found:
    path = Path(place).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"{named}: there is no file {path}", hint="paths start from the current folder")
    _check_defines(named, path, function, alone=True)
    return Found("file", f"{path}:{function}")


def _in_module(named: str, place: str, function: str) -> Found:
    if (top := place.partition(".")[0]) in sys.stdlib_module_names and Path(f"{top}.py").is_file():
        raise UsageError(
            f"{named}: {top} is a module of Python's own library, which {top}.py in the current folder cannot replace",
            hint=f"give the file: {top}.py:{function}",
        )
    search = (os.getcwd(), *search_path())  # as `python -m` would
    found = _find_module(place, search)
    if found is None:
        raise UsageError(
            f"{named}: there is no module {place}",
            hint="it must be installed or lie in the current folder; a file is written as file.py:function",
        )
    if found.origin and found.origin.endswith(".py"):
        _check_defines(named, Path(found.origin), function)
    return Found("module", f"{place}:{function}", search)


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


def _check_defines(named: str, path: Path, function: str, *, alone: bool = False) -> None:
    """The file compiles and binds the name at its top level; one that is loaded alone imports nothing from a package."""
    import ast
    import symtable

    try:
        source = path.read_bytes()
        compile(source, str(path), "exec", dont_inherit=True)
        text = importlib.util.decode_source(source)
    except OSError as error:
        raise UsageError(f"{named}: cannot read {path}: {error.strerror}", hint="may you read it?") from error
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes
        where = f"{path}:{getattr(error, 'lineno', None) or 1}"
        raise UsageError(
            f"{named}: {where} is not valid Python: {getattr(error, 'msg', error)}", hint=f"run `python {path}`"
        ) from error
    table = symtable.symtable(text, str(path), "exec")
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    body = ast.parse(text).body
    star = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in body)
    relative = next((node for node in body if isinstance(node, ast.ImportFrom) and node.level), None)
    if alone and relative is not None:
        raise UsageError(
            f"{named}: {path}:{relative.lineno} imports from a package (`{ast.unparse(relative)}`), and a file is loaded "
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
        raise UsageError(f"{named}: {path} has no function {function!r}", hint=hint)
