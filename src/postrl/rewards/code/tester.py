"""The trusted process T: runs the tests, with handles and values of the candidate under the names that they use.

It reads one JSON object from standard input (see `asserts.Job`) and writes one to standard output: for each test that
counts whether it passed, a status and why. Nothing that the candidate sends decides more than the value of a call, an
item, an attribute; a message that makes no sense ends the connection, and then no test passes any more.
"""

from __future__ import annotations

import builtins
import json
import os
import signal
import sys
import types

from postrl.rewards.code import prelude, shared, wire
from postrl.rewards.code.emptiness import guard_numpy
from postrl.rewards.code.expect import expect
from postrl.rewards.code.handles import COUNTERPARTS, Handle, handle_class

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

REACHED, RAN = "_postrl_reached", "_postrl_ran"
"""Sets in the namespace of the tests, filled by statements that `suite` puts beside the assertions in loops."""
EXPECT, RUN = "_postrl_expect", "_postrl_run"
"""What the statements of `calls` and `collect` call."""
TESTS = "tests"
"""The module name of the tests' own classes."""
OF_FILES = {
    "close", "closed", "encoding", "flush", "getvalue", "mode", "name", "read", "readable", "readline", "readlines", "seek",
    "tell", "truncate", "writable", "write", "writelines",
}  # fmt: skip
"""What the candidate may use of files that the tests hand over."""
LONGEST_TEXT = 500
NEVER_OURS = (AssertionError, StopIteration, StopAsyncIteration)
"""Exceptions that mean something to the tests when they are their own."""
ENDINGS = ("SystemExit", "KeyboardInterrupt", "GeneratorExit")
ERRORS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, NEVER_OURS)
}


class Late(BaseException):
    """A test took longer than it may. The candidate may still be at it, so no other can follow."""


class CandidateError(Exception):
    """An exception of the candidate that no test expects: its AssertionError, its StopIteration outside of an iterator."""


def main(incoming: str, outgoing: str) -> None:
    job = json.load(sys.stdin)
    verdict_fd = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the tests may print
    sys.setrecursionlimit(5000)  # calls that go to and fro take several frames each
    verdict = run(Tests(int(incoming), int(outgoing)), job)
    os.write(verdict_fd, json.dumps(verdict).encode())
    os._exit(0)


class Tests(wire.Peer):
    """The tests' end of the connection."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        super().__init__(incoming, outgoing)
        self.broken = ""
        """Why nothing can pass any more; empty while all is well."""
        self.failed = ""
        """An assertion that failed in a function that the candidate called: it must not be able to swallow it."""
        self.out_of_memory = False
        self.late = False
        """Whether a test took longer than it may."""
        self.touched: set[int] = set()
        """Numbers of the objects that were used, or handed to the candidate to be used."""
        self.subjects: set[int] = set()
        """Numbers of the classes under test."""
        self.namespace: dict[str, Any] = {}
        """That of the tests."""
        self.given: list[str] = []
        """Names of its classes that the candidate may make instances of."""
        self.lender: shared.Lender | None = None
        self._handles: dict[int, Any] = {}
        self._classes: dict[int, type[Handle]] = {}
        self._errors: dict[int, type[Exception]] = {}
        self._numbers: dict[int, int] = {}
        """id of a counterpart or exception class -> number of what it stands for."""

    # what the tests ask for

    def request(self, operation: str, *operands: Any) -> Any:
        if self.broken:
            raise wire.Broken(self.broken)
        try:
            if self.lender:
                self.lender.before(operation, operands)
            return super().request(operation, *operands)
        except wire.Broken as error:
            self.broken = self.broken or str(error)
            raise

    def ask(self, operation: str, handle: Handle, *operands: Any) -> Any:
        """A request about an object of the candidate."""
        known = handle._number in self.touched
        try:
            return self.request(operation, handle, *operands)
        finally:
            if operation == "get" and handle._kind == "function" and not known:
                self.touched.discard(handle._number)  # to read a function's name is not to call it

    # messages, where the two processes have folders of different names

    def _write(self, frame: bytes) -> None:
        super()._write(self.lender.translated(frame, home=False) if self.lender else frame)

    def _read(self, count: int) -> bytes:
        data = super()._read(count)
        return self.lender.translated(data, home=True) if self.lender else data

    # objects of the candidate

    def adopt(self, x: list[Any]) -> Any:
        _, number, class_number, special = x
        if number not in self._handles:
            self._handles[number] = self._adopted(number, class_number, special)
        if isinstance(handle := self._handles[number], Handle):
            object.__setattr__(handle, "_arrivals", handle._arrivals + 1)
        return handle

    def _adopted(self, number: int, class_number: int, special: str) -> Any:
        if type(number) is not int or type(class_number) is not int:
            raise wire.Malformed("a handle without a number")
        if special == "exception class":
            kind = self._error_class(*self.request("ancestry", number))
            return (
                CandidateError if issubclass(AssertionError, kind) else kind
            )  # `except Theirs` catches no failed test
        if class_number not in self._classes:
            name, methods = self.request("describe", class_number)
            self._classes[class_number] = handle_class(name, methods, class_number)
        handle = self._classes[class_number](self, number, special)
        if special not in COUNTERPARTS:
            return handle
        counterpart = COUNTERPARTS[special](handle)
        self._numbers[id(counterpart)] = number
        return counterpart

    def _error_class(self, name: str, custom: list[tuple[int, str]]) -> type[Exception]:
        kind: type[Exception] = ERRORS.get(name, CandidateError)
        for number, own_name in reversed(custom):
            if number not in self._errors:
                body = {"__module__": "solution", "__init__": self._maker(number), "__str__": lambda error: error._text}
                self._errors[number] = type(
                    own_name if own_name.isidentifier() else "Error", (kind,), body | {"_text": ""}
                )
                self._numbers[id(self._errors[number])] = number
            kind = self._errors[number]
        return kind

    def _maker(self, number: int) -> Callable[..., None]:
        """What makes an exception that the tests raise or look at: its class over there says what it holds."""

        def make(error: Any, *arguments: Any, **named: Any) -> None:
            _, _, error.args, text, held, _ = self.request("make_error", number, arguments, named)
            error.__dict__.update(held, _text=text)

        return make

    def error(self, operation: str, unpacked: Any) -> BaseException:
        name, custom, arguments, text, held, origin = unpacked
        if origin is not None:
            return self._own_error(origin)
        if name in ENDINGS:
            return wire.Broken(f"the candidate raised {name}")
        if name == "StopIteration" and operation in ("next", "send"):
            return StopIteration(*arguments[:1])
        self.out_of_memory |= name == "MemoryError"
        kind = self._error_class(name, custom)
        base = ERRORS.get(name, CandidateError)
        error = kind.__new__(kind, *arguments)
        try:
            base.__init__(error, *arguments)
        except Exception:  # UnicodeDecodeError and others take what only they know
            error = CandidateError(f"{name}: {text}") if not custom else error
        if custom:
            error.__dict__.update(held, _text=text)
        return error

    def _own_error(self, number: int) -> BaseException:
        error = self.exported(number)
        if not isinstance(error, Exception):
            raise wire.Broken("an exception of the tests that is not one")
        return error

    # objects of the tests

    def export(self, x: Any) -> list[Any]:
        if isinstance(x, Handle):
            self.touched.add(x._number)
            return ["yours", x._number]
        if id(x) in self._numbers:
            return ["yours", self._numbers[id(x)]]
        name = str(getattr(x, "__name__", type(x).__name__))
        if vars(builtins).get(name) is x:
            return ["theirs", -1, "builtin", name]
        kind = (
            "file"
            if type(x).__module__ == "_io"
            else "iterator"
            if hasattr(x, "__next__")
            else "function"
            if callable(x)
            else "object"
        )
        return ["theirs", self.export_id(x), kind, name]

    def raised(self, error: BaseException) -> tuple[Any, ...]:
        """An exception out of a function of the tests. A failed assertion stays one, whatever the candidate makes of it."""
        if isinstance(error, AssertionError):
            self.failed = f"AssertionError: {error} (in a function that the candidate called)"
        name = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return name, error.args, self.export_id(error)

    def perform(self, operation: str, operands: tuple[Any, ...]) -> Any:
        """What the candidate may do with objects that the tests handed to it."""
        if self.lender and operation in self.lender.operations:
            return self.lender.operations[operation](*operands)
        x, *rest = operands
        if operation == "make" and x in self.given:
            return self.namespace[x](*rest[0], **rest[1])
        if operation == "part" and x in self.given and not rest[0].startswith("_"):
            return getattr(self.namespace[x], rest[0])
        if id(x) not in self._export_ids or isinstance(x, BaseException):
            raise wire.Broken("a request about nothing that was handed out")
        if operation == "call" and callable(x):
            return x(*rest[0], **rest[1])
        if operation == "next":
            return next(x)
        if operation in ("get", "set") and type(x).__module__ == TESTS and not rest[0].startswith("_"):
            return getattr(x, rest[0]) if operation == "get" else setattr(x, rest[0], rest[1])
        if operation == "get" and type(x).__module__ == "_io" and rest[0] in OF_FILES:
            return getattr(x, rest[0])
        raise AttributeError(f"{type(x).__name__!r} object has no attribute {rest[0]!r}")


# -- a run -----------------------------------------------------------------------------------------------------------------


def run(side: Tests, job: dict[str, Any]) -> dict[str, Any]:
    """Load the candidate and run its tests.

    Returns {"passed": for each test that counts whether it did, "status", "detail"}.
    """
    passed: list[bool] = []
    module = sys.modules[TESTS] = types.ModuleType(TESTS)
    namespace = side.namespace = vars(module)
    namespace.update({"__builtins__": builtins, REACHED: set(), RAN: set(), EXPECT: expect})
    try:
        prepare(side, job)
        side.request("load", job["sources"], job["readable"], job["given"], job["needs"])
        exec(_compiled(job["helpers"], namespace), namespace)
        namespace.update(resolve(side, job))
    except BaseException as error:
        status = "syntax" if isinstance(error, SyntaxError) else "crashed"
        return {"passed": passed, "status": status, "detail": _say(error), "memory": side.out_of_memory}
    required = {name: namespace.get(name) for name in job["required"]}
    detail = "".join(f"the candidate does not define {name}" for name in required if name not in namespace)
    for code, counts in job["tests"] if not detail else ():
        problem = run_test(side, code, namespace, job["test_wall"])
        detail = detail or problem
        if counts or problem:
            passed.append(not problem)
        if problem and not job["partial"]:
            break
    vacuous = missed(side, required, namespace, job["constants"])
    if vacuous and not detail:
        passed, detail = [], vacuous
    status = "timeout" if side.late else "crashed" if side.broken else "wrong" if detail else "correct"
    return {"passed": passed, "status": status, "detail": detail, "memory": side.out_of_memory}


def prepare(side: Tests, job: dict[str, Any]) -> None:
    """What the tests need around them, before any of it runs."""
    side.given = job["given"]
    guard_numpy(code for code, _ in job["tests"])
    if "harness" in job["needs"]:
        from postrl.rewards.code.harness import Harness

        side.namespace[RUN] = Harness(side.namespace).run
    if job["needs"]:
        side.lender = shared.Lender(side, job["needs"])


def resolve(side: Tests, job: dict[str, Any]) -> dict[str, Any]:
    """What the tests use of the candidate, by name; what it does not define is missing."""
    found = zip(job["tested"], side.request("resolve", job["tested"]), strict=True)
    values = {name: value[0] for name, value in found if value}
    for name in job["modules"]:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(values)
    classes = [values[name] for name in job["classes"] if isinstance(values.get(name), Handle)]
    side.subjects = {handle._number for handle in classes if handle._kind == "class"}
    return values


def run_test(side: Tests, code: str, namespace: dict[str, Any], wall: float) -> str:
    """Run one test; what is wrong, empty when it passed.

    Args:
        wall: seconds that it may take; 0 for as long as all of them.
    """
    try:
        signal.signal(signal.SIGALRM, _too_late)
        signal.setitimer(signal.ITIMER_REAL, wall)
        exec(_compiled(code, namespace), namespace)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Late:
        side.late = True
        side.broken = side.broken or f"a test took more than {wall:.3g} s"
    except BaseException as error:  # sys.exit in a test is no pass either
        signal.setitimer(signal.ITIMER_REAL, 0)
        return _say(error)
    return side.broken or side.failed


def _too_late(*_: object) -> None:
    raise Late


def missed(side: Tests, required: dict[str, Any], namespace: dict[str, Any], constants: bool) -> str:
    """What the tests did not get to: names that they never called, assertions in loops that never ran."""
    for name, value in required.items():
        if value._number not in side.touched if isinstance(value, Handle) else not constants:
            return f"the tests never called {name}"
    return "" if namespace[REACHED] <= namespace[RAN] else "an assertion in a loop never ran"


def _compiled(code: str, namespace: dict[str, Any]) -> Any:
    compiled = compile(code, "<tests>", "exec", dont_inherit=True)
    prelude.provide(compiled, namespace)
    return compiled


def _say(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}"[:LONGEST_TEXT]
