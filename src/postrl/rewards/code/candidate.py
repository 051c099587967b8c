"""The untrusted process U: imports the candidate as the module `solution` and does what the tests ask of it.

It gets the candidate's source and the arguments of calls, never a test or an expected value. Whatever the candidate
does in here (patches built-ins, walks frames, writes to the descriptors) can only change what it answers.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import types

from postrl.rewards.code import hide, prelude, shared, wire
from postrl.rewards.code.standins import STANDINS, THEIRS, Given, Object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LONGEST_TEXT = 2000
OPERATIONS: dict[str, Callable[..., Any]] = {}


def main(incoming: str, outgoing: str) -> None:
    del sys.meta_path[0]  # that of `entry`
    side = Candidate(int(incoming), int(outgoing))
    try:
        while True:
            side.answer(side.receive())
    except wire.Broken:  # the tests are done
        return


def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    OPERATIONS[function.__name__.strip("_")] = function
    return function


class Candidate(wire.Peer):
    """The candidate's end of the connection."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        super().__init__(incoming, outgoing)
        self.module = types.ModuleType("solution")
        self.module.__file__ = "solution.py"
        self.given: dict[str, Given] = {}
        """Classes of the tests that the candidate may make instances of."""
        self.borrower: shared.Borrower | None = None
        self._adopted: dict[int, Any] = {}
        self._loop: Any = None

    def perform(self, operation: str, operands: tuple[Any, ...]) -> Any:
        if self.borrower is None or operation == "files":
            return OPERATIONS[operation](self, *operands)
        try:
            return OPERATIONS[operation](self, *operands)
        finally:
            self.borrower.give()

    def export(self, x: Any) -> list[Any]:
        """Objects of the tests go home under their number; the candidate's own get one, and their class another."""
        if type(x) in THEIRS or type(x) in self.given.values():
            return ["yours", x._number]
        return ["theirs", self.export_id(x), self.export_id(type(x)), _special(x)]

    def adopt(self, x: list[Any]) -> Any:
        _, number, kind, name = x
        if kind == "builtin":
            return getattr(builtins, name)
        if number not in self._adopted:
            standin = self.given.get(name, Object) if kind == "object" else STANDINS[kind]
            self._adopted[number] = type.__call__(standin, self, number, name)
        return self._adopted[number]

    def raised(self, error: BaseException) -> tuple[Any, ...]:
        """The first built-in class of the exception, its own classes above that, and what it holds."""
        name, custom = ancestry(self, self.export_id(type(error)))
        held = {name: value for name, value in getattr(error, "__dict__", {}).items() if not name.startswith("_")}
        return name, custom, error.args, _text(error), held, getattr(error, "_postrl_origin", None)

    def error(self, operation: str, unpacked: Any) -> BaseException:
        """An exception of the tests. It keeps its number, so that it is itself when it comes home."""
        name, arguments, origin = unpacked
        try:
            error: BaseException = getattr(builtins, name)(*arguments)
        except (AttributeError, TypeError):
            error = Exception(*arguments)
        error._postrl_origin = origin  # type: ignore[attr-defined]
        return error


def _text(error: BaseException) -> str:
    try:
        return str(error)[:LONGEST_TEXT]
    except Exception:
        return ""


def _special(x: Any) -> str:
    """Kinds of objects that the tests get a real counterpart of."""
    if type(x) is types.GeneratorType:
        return "generator"
    if type(x) is types.CoroutineType:
        return "coroutine"
    if type(x) is types.AsyncGeneratorType:
        return "async generator"
    if isinstance(x, type):
        return "exception class" if issubclass(x, BaseException) else "class"
    return "function" if callable(x) else ""


# -- what the tests may ask for ------------------------------------------------------------------------------------------


@operation
def folder(side: Candidate) -> str:
    return os.getcwd()


@operation
def load(
    side: Candidate, alternatives: list[list[str]], readable: list[str], given: list[str], needs: list[str]
) -> None:
    """Run the candidate: the first alternative that compiles.

    Args:
        readable: see `hide`.
        given: classes of the tests, for where the candidate mentions them.
        needs: see `shared`.
    """
    hide.read_only_from(readable)
    sys.modules["solution"] = side.module
    namespace = vars(side.module)
    side.borrower = shared.Borrower(side, needs) if needs else None
    for code in prelude.compile_first(alternatives):
        for name in prelude.mentioned(code) & {*given} - namespace.keys():
            side.given[name] = namespace[name] = Given(name, (Object,), {"_side": side, "__module__": "solution"})
        prelude.provide(code, namespace)
        exec(code, namespace)
    if side.borrower:
        side.borrower.forget()


@operation
def files(side: Candidate, changes: dict[str, Any]) -> None:
    """What the tests changed in their folder."""
    if side.borrower and side.borrower.folder:
        side.borrower.folder.apply(changes)


@operation
def both(side: Candidate, name: str, values: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Call a function that the tests have called, too: `random.seed`."""
    shared.do(name, values, named)


@operation
def resolve(side: Candidate, names: list[str]) -> list[Any]:
    """For each name of the module a tuple with its value, an empty one if there is none.

    A function that is not there may be a method of `class Solution`.
    """
    namespace = vars(side.module)
    solution = namespace.get("Solution")
    found: list[tuple[Any, ...]] = []
    for name in names:
        if name in namespace:
            found.append((namespace[name],))
        elif isinstance(solution, type) and callable(getattr(solution, name, None)):
            found.append((_method_of(solution, name),))
        else:
            found.append(())
    return found


def _method_of(solution: type, name: str) -> Callable[..., Any]:
    return lambda *arguments, **named: getattr(solution(), name)(*arguments, **named)


@operation
def describe(side: Candidate, number: int) -> tuple[str, list[str]]:
    """A class: its name, and which of the special methods in question it has."""
    kind = side.exported(number)
    return kind.__name__, [name for name in prelude.DUNDERS if _has(kind, name)]


def _has(kind: type, name: str) -> bool:
    """Whether instances have the special method; the class itself may have it from its own class."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None) is not None


@operation
def ancestry(side: Candidate, number: int) -> tuple[str, list[tuple[int, str]]]:
    """An exception class: its first built-in class, and the candidate's own ones below that."""
    custom = []
    for kind in side.exported(number).__mro__:
        if kind.__module__ == "builtins":
            break
        custom.append((side.export_id(kind), kind.__name__))
    return kind.__name__, custom


@operation
def make_error(side: Candidate, number: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """An exception that the tests make, as `raised` describes it."""
    return side.raised(side.exported(number)(*arguments, **named))


@operation
def special(side: Candidate, x: Any, name: str, operands: tuple[Any, ...]) -> Any:
    """A special method, looked up on the class as Python does."""
    return getattr(type(x), name)(x, *operands)


@operation
def call(side: Candidate, x: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return x(*arguments, **named)


@operation
def next_(side: Candidate, x: Any) -> Any:
    return next(x)


@operation
def get(side: Candidate, x: Any, name: str) -> Any:
    return getattr(x, name)


@operation
def set_(side: Candidate, x: Any, name: str, value: Any) -> None:
    setattr(x, name, value)


@operation
def delete(side: Candidate, x: Any, name: str) -> None:
    delattr(x, name)


@operation
def leave(side: Candidate, x: Any, error: str | None) -> bool:
    """The end of a `with` block. Which exception ended it is known by its built-in class only."""
    kind = None if error is None else getattr(builtins, error)
    leaving = (kind, kind and kind(), None)
    return bool(x.__exit__(*leaving) if hasattr(type(x), "__exit__") else wait(side, x.__aexit__(*leaving)))


@operation
def is_instance(side: Candidate, x: Any, kind: Any) -> bool:
    return isinstance(x, kind)


@operation
def is_subclass(side: Candidate, x: Any, kind: Any) -> bool:
    return issubclass(x, kind)


@operation
def copy(side: Candidate, x: Any, deep: bool) -> Any:
    module = importlib.import_module("copy")
    return module.deepcopy(x) if deep else module.copy(x)


@operation
def send(side: Candidate, x: Any, value: Any) -> Any:
    """The next item of a generator."""
    return x.send(value)


@operation
def wait(side: Candidate, x: Any) -> Any:
    """Run a coroutine to its end."""
    if side._loop is None:
        side._loop = importlib.import_module("asyncio").new_event_loop()
    return side._loop.run_until_complete(x)


@operation
def wait_next(side: Candidate, x: Any) -> Any:
    """The next item of an asynchronous generator, in a tuple; an empty one at its end."""
    try:
        return (wait(side, x.__anext__()),)
    except StopAsyncIteration:
        return ()
