"""What tests and candidate share beyond values, where the tests ask for it (`features`): streams, seeds, files.

The candidate's end gives away what it prints and asks for what it reads; the tests' end does it, where the tests may
have replaced what does it. Nothing here decides a verdict: what comes from the candidate is text that the tests capture
and files that they read.
"""

from __future__ import annotations

import builtins
import importlib
import io
import json
import os
import sys

from postrl.rewards.code.folder import Folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from postrl.rewards.code.wire import Peer

LARGEST = 1 << 20
"""Bytes that a candidate may print; the rest is lost."""
RUNS_CODE = frozenset({"call", "special", "next", "send", "wait", "wait_next", "get", "set", "leave"})
"""Requests of the tests that may run code of the candidate."""

# -- the tests' end ------------------------------------------------------------------------------------------------------


class Lender:
    """Does in the process of the tests what the candidate asks for."""

    def __init__(self, side: Peer, needs: Sequence[str]) -> None:
        self.side = side
        self.folder = Folder() if "files" in needs else None
        self.operations: dict[str, Callable[..., Any]] = {}
        if "streams" in needs:
            self.operations |= {"write": _write, "read": _read, "input": lambda *prompt: builtins.input(*prompt)}
        if "print" in needs:
            self.operations["print"] = _print
        if self.folder:
            self.operations["files"] = self._take
            self.places = [json.dumps(path)[1:-1].encode() for path in (self.folder.path, side.request("folder"))]
        self.ours: set[str] = set()
        """Files that the tests wrote."""
        self.named: list[str] = []
        """Texts in the operands of the request that is being answered."""
        for name in _named("both", needs):
            self._do_both(name)
        self.lent = set(_named("lend", needs))
        if self.lent:
            self.operations["lend"] = self._lend

    def before(self, operation: str, operands: tuple[Any, ...]) -> None:
        """Hand over the files that the tests have changed."""
        if self.folder and operation in RUNS_CODE:
            self.named = list(_texts(operands))
            if changes := self.folder.changes():
                self.ours |= changes.keys()
                self.side.request("files", changes)

    def translated(self, data: bytes, home: bool) -> bytes:
        """A message with the folder of one process for that of the other, where they have different names."""
        if self.folder is None or len(self.places[0]) != len(self.places[1]):
            return data
        ours, theirs = self.places
        return data.replace(theirs, ours) if home else data.replace(ours, theirs)

    def _take(self, changes: dict[str, bytes | bool]) -> None:
        """The candidate's files. What the tests wrote may change only where they named it in their call: they may be about
        to compare with it."""
        assert self.folder is not None
        if type(changes) is not dict or not all(type(name) is str for name in changes):
            raise TypeError(
                "changes that are not a dict of files"
            )  # an object of the candidate would say one thing, then another
        for name in self.ours & changes.keys():
            path = os.path.join(self.folder.path, name)
            if not any(_is_beneath(path, os.path.join(self.folder.path, text)) for text in self.named):
                raise PermissionError(f"{name} is a file of the tests")
        self.folder.apply(changes)

    def _do_both(self, name: str) -> None:
        """Have a function such as `random.seed`, when the tests call it, do the same to the candidate."""
        module, attribute = _function(name)
        ours = getattr(module, attribute)

        def both(*values: Any, **named: Any) -> None:
            ours(*values, **named)
            self.side.request("both", name, values, named)

        setattr(module, attribute, both)

    def _lend(self, name: str, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A function that the tests may have patched, called for the candidate."""
        if name not in self.lent:
            raise PermissionError(name)
        return getattr(*_function(name))(*values, **named)


def _named(kind: str, needs: Sequence[str]) -> list[str]:
    """`lend random.randint` names `random.randint`."""
    return [need.removeprefix(f"{kind} ") for need in needs if need.startswith(f"{kind} ")]


def _function(name: str) -> tuple[Any, str]:
    module, _, attribute = name.rpartition(".")
    return importlib.import_module(module), attribute


def do(name: str, values: tuple[Any, ...], named: dict[str, Any]) -> None:
    getattr(*_function(name))(*values, **named)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple | set):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        yield from _texts(list(value.values()))
    elif isinstance(value, str) or type(value).__module__ == "pathlib":
        yield str(value)


def _is_beneath(path: str, folder: str) -> bool:
    folder = os.path.normpath(folder)
    return path == folder or path.startswith(folder + "/")


def _write(name: str, text: str) -> None:
    if name in ("stdout", "stderr") and type(text) is str:
        getattr(sys, name).write(text)


def _print(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    builtins.print(*values, **named)  # noqa: T201


def _read(method: str, size: int) -> str:
    text = getattr(sys.stdin, "readline" if method == "readline" else "read")(size)
    return str(text)


# -- the candidate's end -------------------------------------------------------------------------------------------------


class Borrower:
    """Has what the candidate does with streams, seeds and files done by the tests."""

    def __init__(self, side: Peer, needs: Sequence[str]) -> None:
        self.side = side
        self.folder = Folder() if "files" in needs else None
        self.printed = {name: Printed() for name in ("stdout", "stderr")} if "streams" in needs else {}
        for name, printed in self.printed.items():
            setattr(sys, name, io.TextIOWrapper(printed, "utf-8", "replace", newline="", write_through=True))
        if "streams" in needs:
            sys.stdin = Asked(self)
            builtins.input = self.input
        if "print" in needs:
            self._print, builtins.print = builtins.print, self.print
        for name in _named("lend", needs):
            setattr(*_function(name), self._borrowed(name))

    def forget(self) -> None:
        """What was printed before the tests began."""
        for printed in self.printed.values():
            printed.taken()

    def give(self) -> None:
        """Give away what was printed and written since the last time."""
        for name, printed in self.printed.items():
            if text := printed.taken():
                self.side.request("write", name, text)
        if self.folder and (changes := self.folder.changes()):
            self.side.request("files", changes)

    def ask(self, operation: str, *operands: Any) -> Any:
        self.give()
        return self.side.request(operation, *operands)

    def _borrowed(self, name: str) -> Callable[..., Any]:
        return lambda *values, **named: self.ask("lend", name, values, named)

    def input(self, prompt: object = "", /) -> str:
        return str(self.ask("input", str(prompt)))

    def print(self, *values: Any, **named: Any) -> None:
        if named.get("file") not in (None, sys.stdout):
            self._print(*values, **named)
        else:
            self.ask("print", values, {name: value for name, value in named.items() if name != "file"})


class Printed(io.RawIOBase):
    """The bytes that the candidate has printed."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.count = 0

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        size = len(piece)
        self.data += bytes(piece)[: max(0, LARGEST - self.count)]
        self.count += size
        return size

    def taken(self) -> str:
        text = self.data.decode("utf-8", "replace")
        self.data.clear()
        return text


class Asked(io.TextIOBase):
    """Standard input, asked of the tests."""

    def __init__(self, borrower: Borrower) -> None:
        super().__init__()
        self.borrower = borrower

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> str:
        return str(self.borrower.ask("read", "read", -1 if size is None else size))

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return str(self.borrower.ask("read", "readline", size))
