"""Objects of the candidate, as the tests see them: everything that they do with one is asked of its process.

A handle never equals a value of the tests. What could turn a tolerance check, a search or an order into the candidate's
own decision is refused with a TypeError, which fails the test:

  - a value of the tests in an operation (`result - 1.5`, `result < 5`), except on objects of a class under test, and
    there the outcome must be an object again that is no number of any kind (`abs(result - 1.5)`)
  - methods of strings and sets that compare with a value (`result.startswith("a")`), with the same exception
"""

from __future__ import annotations

import builtins

from postrl.rewards.code import prelude

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from typing import Any

    from postrl.rewards.code.tester import Tests

READABLE = {
    "__name__", "__qualname__", "__dict__", "__annotations__", "__defaults__", "__wrapped__", "__members__",
    "__bases__", "__mro__", "__args__", "__origin__", "__match_args__", "__cause__", "__version__",
}  # fmt: skip
"""Special attributes that the tests may read. Not those by which libraries find buffers and arrays."""
COMPARING = {
    "startswith", "endswith", "issubset", "issuperset", "isdisjoint", "count", "index", "find", "rindex", "rfind",
    "union", "intersection", "difference", "symmetric_difference",
}  # fmt: skip
"""Methods of built-in classes whose argument is often the expected value."""


class Handle:
    """An object of the candidate. Its subclasses, one for each class over there, add the special methods it has."""

    __slots__ = ("__weakref__", "_kind", "_number", "_side", "_tainted")
    _class_number = -1
    _kind: str
    _number: int
    _side: Tests
    _tainted: bool

    def __init__(self, side: Tests, number: int, kind: str) -> None:
        for name, value in (("_side", side), ("_number", number), ("_kind", kind), ("_tainted", False)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in READABLE:
            raise AttributeError(name)
        if name in COMPARING and not self._side.under_test(self):
            raise TypeError(f"{name} of an object that is of no built-in class")
        return self._side.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._side.ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._side.ask("delete", self, name)

    def __eq__(self, other: object) -> Any:
        return isinstance(other, Handle) and self._side.ask("special", self, "__eq__", (other,))

    def __ne__(self, other: object) -> Any:
        return not isinstance(other, Handle) or self._side.ask("special", self, "__ne__", (other,))

    def __instancecheck__(self, other: object) -> bool:
        return isinstance(other, Handle) and bool(self._side.ask("is_instance", other, self))

    def __subclasscheck__(self, other: object) -> bool:
        return isinstance(other, Handle) and bool(self._side.ask("is_subclass", other, self))

    def __copy__(self) -> Any:
        return self._side.ask("copy", self, False)

    def __deepcopy__(self, memo: Any) -> Any:
        return self._side.ask("copy", self, True)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("objects of the candidate cannot be pickled")


DOCSTRING = property(lambda handle: handle._side.ask("get", handle, "__doc__"))


def handle_class(name: str, special: list[str], number: int) -> type[Handle]:
    """The class of handles for one class of the candidate."""
    namespace: dict[str, Any] = {method: METHODS[method] for method in special if method in METHODS}
    namespace.setdefault("__hash__", None)
    namespace.update(__slots__=(), _class_number=number, __module__="solution", __doc__=DOCSTRING)
    plain = name.isidentifier() and not hasattr(builtins, name)  # a class named "int" is none
    return type(name if plain else "Handle", (Handle,), namespace)


# -- special methods -----------------------------------------------------------------------------------------------------


def _ask(name: str) -> Callable[..., Any]:
    def method(self: Handle, *operands: Any) -> Any:
        return self._side.ask("special", self, name, operands)

    return method


def _number(name: str) -> Callable[..., Any]:
    def method(self: Handle, *operands: Any) -> Any:
        if self._tainted:
            raise TypeError(f"{name} of what an operation with a value of the tests gave")
        return self._side.ask("special", self, name, operands)

    return method


def _arithmetic(name: str) -> Callable[..., Any]:
    def method(self: Handle, other: Any, *more: Any) -> Any:
        theirs = isinstance(other, Handle)
        if not theirs and not self._side.under_test(self):
            raise TypeError(f"{name} of an object that is no number and a {type(other).__name__}")
        tainted = self._tainted or (other._tainted if theirs else True)
        result = self._side.ask("special", self, name, (other, *more))
        if tainted and result is not NotImplemented:
            if not isinstance(result, Handle):
                raise TypeError(f"{name} with a value of the tests gave a {type(result).__name__}")
            if result is not self:  # `x += 1`
                object.__setattr__(result, "_tainted", True)
        return result

    return method


def _order(name: str) -> Callable[..., Any]:
    def method(self: Handle, other: Any) -> Any:
        if not isinstance(other, Handle) or self._tainted or other._tainted:
            return NotImplemented
        return self._side.ask("special", self, name, (other,))

    return method


def _next(self: Handle) -> Any:
    return self._side.ask("next", self)


def _contains(self: Handle, item: Any) -> bool:
    if isinstance(item, Handle) or self._side.under_test(self):
        return bool(self._side.ask("special", self, "__contains__", (item,)))
    return any(item is x or item == x for x in iter(self))


def _call(self: Handle, *arguments: Any, **named: Any) -> Any:
    return self._side.ask("call", self, arguments, named)


def _enter(self: Handle) -> Any:
    return self._side.ask("special", self, "__enter__", ())


def _leave(self: Handle, kind: type[BaseException] | None, error: Any, trace: Any) -> bool:
    """The candidate may swallow an error, as contextlib.suppress does, but not a failed assertion."""
    name = None if kind is None else next(k.__name__ for k in kind.__mro__ if k.__module__ == "builtins")
    swallowed = bool(self._side.ask("leave", self, name))
    return swallowed and kind is not None and issubclass(kind, Exception) and not issubclass(kind, AssertionError)


METHODS: dict[str, Callable[..., Any]] = {
    **{name: _arithmetic(name) for name in prelude.ARITHMETIC},
    **{name: _number(name) for name in prelude.NUMERIC},
    **{name: _order(name) for name in prelude.ORDER},
    **{name: _ask(name) for name in (*prelude.CONTAINER, *prelude.TEXT, "__hash__")},
    "__next__": _next,
    "__contains__": _contains,
    "__call__": _call,
    "__enter__": _enter,
    "__exit__": _leave,
}

# -- objects that the tests get a real counterpart of --------------------------------------------------------------------


def generator(handle: Handle) -> Generator[Any, Any, Any]:
    sent = None
    while True:
        try:
            item = handle._side.ask("send", handle, sent)
        except StopIteration as end:
            return end.value
        sent = yield item


async def coroutine(handle: Handle) -> Any:
    return handle._side.ask("wait", handle)


async def async_generator(handle: Handle) -> AsyncGenerator[Any, None]:
    while found := handle._side.ask("wait_next", handle):
        yield found[0]


COUNTERPARTS: dict[
    str, Callable[[Handle], Generator[Any, Any, Any] | Coroutine[Any, Any, Any] | AsyncGenerator[Any, None]]
]
COUNTERPARTS = {"generator": generator, "coroutine": coroutine, "async generator": async_generator}
