"""Objects of the candidate, as the tests see them: everything that they do with one is asked of its process.

The rule is that no value of the tests reaches an object which could stand for the result that they compare it with.

  - A handle never equals a value of the tests, and none is less or greater than it.
  - An object is *own* to the tests when they made it by calling a class under test and nothing has given it back since:
    no call, attribute, item or callback. What its class defines is asked with values of the tests (`2 in stack`). All
    else is a result, also an own object that its method returned: it is asked for what it holds (attributes, items,
    length, text), not whether a value is in it.
  - Arithmetic with a value of the tests gives an object again, which has learned that value (`Learned`). Of an own
    object that may still be shown, but is no number; scaling one (`vector * 2`) gives another own object. Of a result
    nothing is left but what no built-in value has: its own attributes, and to be equal to another object.
"""

from __future__ import annotations

import builtins
import enum

from postrl.rewards.code import prelude

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from typing import Any, Protocol

    class Side(Protocol):
        """The tests' end of the connection, `tester.Tests`."""

        subjects: set[int]

        def ask(self, operation: str, handle: Handle, *operands: Any) -> Any: ...


READABLE = {
    "__name__", "__qualname__", "__dict__", "__annotations__", "__defaults__", "__wrapped__", "__members__",
    "__bases__", "__mro__", "__args__", "__origin__", "__match_args__", "__cause__", "__version__",
}  # fmt: skip
"""Special attributes that the tests may read. Not those by which libraries find buffers and arrays."""
COMPARING = {
    "startswith", "endswith", "issubset", "issuperset", "isdisjoint", "count", "index", "find", "rindex", "rfind",
    "union", "intersection", "difference", "symmetric_difference", "intersection_update", "difference_update",
    "symmetric_difference_update", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "partition",
    "rpartition", "compare",
}  # fmt: skip
"""Methods of built-in classes whose argument is often the expected value."""
VALUES = {name for kind in (int, float, complex, str, bytes, tuple, list, set, dict, slice) for name in dir(kind)} | {
    "all", "any", "argmax", "argmin", "astype", "days", "flat", "flatten", "item", "max", "mean", "microseconds", "min",
    "ndim", "nonzero", "prod", "ravel", "round", "seconds", "shape", "size", "std", "sum", "tolist", "total_seconds",
}  # fmt: skip
"""Attributes that values have, those of arrays and times included."""
SCALING = {"__mul__", "__rmul__", "__matmul__", "__rmatmul__"}
"""Operations whose operand nobody expects as a result."""
IN_PLACE = {name for name in prelude.ARITHMETIC if name.startswith("__i")}
OF_SETS = {"__sub__", "__rsub__", "__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__"}


class Learned(enum.IntEnum):
    """What an object knows of the values of the tests."""

    NOTHING = 0
    OPERAND = 1
    """It came out of an operation of an own object with a value."""
    EXPECTED = 2
    """It came out of an operation of a result with a value, which may be the expected one."""


class Handle:
    """An object of the candidate. Its subclasses, one for each class over there, add the special methods it has."""

    __array_ufunc__ = None  # numpy leaves operations to it
    __slots__ = ("__weakref__", "_arrivals", "_kind", "_learned", "_made", "_number", "_side")
    _class_number = -1
    _arrivals: int
    """How often the candidate has named it."""
    _kind: str
    _learned: Learned
    _made: bool
    """Whether it is one that the tests made."""
    _number: int
    _side: Side

    def __init__(self, side: Side, number: int, kind: str) -> None:
        _set(self, _side=side, _number=number, _kind=kind, _learned=Learned.NOTHING, _made=False, _arrivals=0)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in READABLE:
            raise AttributeError(name)
        if name in VALUES:
            _check_shown(self, name)
        found = self._side.ask("get", self, name)
        if name in COMPARING and isinstance(found, Handle) and not (is_own(self) or is_class_under_test(self)):
            raise TypeError(f"the method {name} of an object that is of no built-in class")
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        self._side.ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._side.ask("delete", self, name)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, type) and issubclass(other, Handle):  # type(x) == Class
            return self._number == other._class_number
        return isinstance(other, Handle) and self._side.ask("special", self, "__eq__", (other,))

    def __ne__(self, other: object) -> Any:
        if isinstance(other, type) and issubclass(other, Handle):
            return self._number != other._class_number
        return not isinstance(other, Handle) or self._side.ask("special", self, "__ne__", (other,))

    def __bool__(self) -> bool:
        """Where its class has no __bool__ of its own."""
        _check_shown(self, "__bool__")
        return len(self) > 0 if hasattr(type(self), "__len__") else True

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        """Numpy would take a result for an empty sequence, which is close to everything."""
        if not is_own(self):
            raise TypeError("an array of an object that is of no built-in class")
        return __import__("numpy").array(list(self), dtype=dtype)

    def __instancecheck__(self, other: object) -> bool:
        return isinstance(other, Handle) and bool(self._side.ask("is_instance", other, self))

    def __subclasscheck__(self, other: object) -> bool:
        return isinstance(other, Handle) and bool(self._side.ask("is_subclass", other, self))

    def __copy__(self) -> Any:
        return _kept(self, self._side.ask("copy", self, False))

    def __deepcopy__(self, memo: Any) -> Any:
        return _kept(self, self._side.ask("copy", self, True))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("objects of the candidate cannot be pickled")


def _set(handle: Handle, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(handle, name, value)


def is_own(handle: Handle) -> bool:
    """Whether the tests made it and nothing gave it back."""
    return handle._made and handle._arrivals == 1


def is_under_test(handle: Handle) -> bool:
    return handle._class_number in handle._side.subjects


def is_class_under_test(handle: Handle) -> bool:
    """Whether it is such a class as the tests name it, not one that was given back."""
    return handle._number in handle._side.subjects and handle._arrivals == 1


def _check_shown(handle: Handle, name: str) -> None:
    if handle._learned == Learned.EXPECTED:
        raise TypeError(f"{name} of what an operation of a result with a value of the tests gave")


def _kept(handle: Handle, result: Any) -> Any:
    """What an object gives by itself: it, which has not become a result by that, or another one that is own as it is and
    knows what it knows."""
    if result is handle:
        _set(handle, _arrivals=handle._arrivals - 1)
    elif isinstance(result, Handle):
        _set(result, _learned=max(result._learned, handle._learned))
        if is_own(handle) and is_under_test(result):
            _set(result, _made=True)
    return result


DOCSTRING = property(lambda handle: handle._side.ask("get", handle, "__doc__"))


def handle_class(name: str, special: list[str], number: int) -> type[Handle]:
    """The class of handles for one class of the candidate."""
    namespace: dict[str, Any] = {method: METHODS[method] for method in special if method in METHODS}
    namespace.setdefault("__hash__", None)
    namespace.update(__slots__=(), _class_number=number, __module__="solution", __doc__=DOCSTRING)
    plain = name.isidentifier() and not hasattr(builtins, name)  # a class named "int" gets another name
    return type(name if plain else "Handle", (Handle,), namespace)


# -- special methods -----------------------------------------------------------------------------------------------------


def _ask(name: str) -> Callable[..., Any]:
    """What it holds."""

    def method(self: Handle, *operands: Any) -> Any:
        _check_shown(self, name)
        if name == "__format__" and self._learned and operands[0]:
            raise TypeError(f"the format {operands[0]!r} of what an operation with a value of the tests gave")
        return self._side.ask("special", self, name, operands)

    return method


def _number(name: str) -> Callable[..., Any]:
    """A conversion or an operation without an operand; what has learned a value becomes no number."""

    def method(self: Handle, *operands: Any) -> Any:
        result = _kept(self, self._side.ask("special", self, name, operands))
        if self._learned and not isinstance(result, Handle):
            raise TypeError(f"{name} of what an operation with a value of the tests gave")
        return result

    return method


def _arithmetic(name: str) -> Callable[..., Any]:
    def method(self: Handle, other: Any, *more: Any) -> Any:
        theirs = isinstance(other, Handle)
        if not theirs and not is_under_test(self):
            raise TypeError(f"{name} of an object that is not a number and a {type(other).__name__}")
        own, before = is_own(self), self._learned
        learned = max(before, other._learned) if theirs else max(before, _learns(own, name, other))
        result = self._side.ask("special", self, name, (other, *more))
        if learned and result is not NotImplemented and not isinstance(result, Handle):
            raise TypeError(f"{name} with a value of the tests gave a {type(result).__name__}")
        result = _kept(self, result)
        if isinstance(result, Handle) and not (result is self and own and name in IN_PLACE):
            _set(result, _learned=max(result._learned, learned))
        return result

    return method


def _learns(own: bool, name: str, value: Any) -> Learned:
    """What the outcome of an operation with a value of the tests knows."""
    if not own or (name in OF_SETS and isinstance(value, set | frozenset | dict)):
        return Learned.EXPECTED
    return Learned.NOTHING if name in SCALING else Learned.OPERAND


def _order(name: str) -> Callable[..., Any]:
    def method(self: Handle, other: Any) -> Any:
        if not isinstance(other, Handle) or self._learned or other._learned:
            return NotImplemented
        return self._side.ask("special", self, name, (other,))

    return method


def _itself(name: str) -> Callable[..., Any]:
    """What may well give the object itself."""

    def method(self: Handle) -> Any:
        _check_shown(self, name)
        return _kept(self, self._side.ask("special", self, name, ()))

    return method


def _next(self: Handle) -> Any:
    _check_shown(self, "__next__")
    return self._side.ask("next", self)


def _contains(self: Handle, item: Any) -> bool:
    _check_shown(self, "__contains__")
    if isinstance(item, Handle) or is_own(self):
        return bool(self._side.ask("special", self, "__contains__", (item,)))
    return any(item is x or item == x for x in iter(self))


def _call(self: Handle, *arguments: Any, **named: Any) -> Any:
    makes = is_class_under_test(self)
    result = self._side.ask("call", self, arguments, named)
    if makes and isinstance(result, Handle) and result._class_number == self._number and result._arrivals == 1:
        _set(result, _made=True)
    return result


def _leave(self: Handle, kind: type[BaseException] | None, error: Any, trace: Any) -> bool:
    """The candidate may swallow an error, as contextlib.suppress does, but not a failed assertion."""
    name = None if kind is None else next(k.__name__ for k in kind.__mro__ if k.__module__ == "builtins")
    swallowed = bool(self._side.ask("leave", self, name))
    return swallowed and kind is not None and issubclass(kind, Exception) and not issubclass(kind, AssertionError)


async def _leave_async(self: Handle, *error: Any) -> bool:
    return _leave(self, *error)


async def _enter_async(self: Handle) -> Any:
    return _kept(self, await self._side.ask("special", self, "__aenter__", ()))


async def _next_async(self: Handle) -> Any:
    _check_shown(self, "__anext__")
    found = self._side.ask("wait_next", self)
    if not found:
        raise StopAsyncIteration
    return found[0]


METHODS: dict[str, Callable[..., Any]] = {
    **{name: _arithmetic(name) for name in prelude.ARITHMETIC},
    **{name: _number(name) for name in prelude.NUMERIC},
    **{name: _order(name) for name in prelude.ORDER},
    **{name: _ask(name) for name in (*prelude.CONTAINER, *prelude.TEXT, "__hash__")},
    **{name: _itself(name) for name in ("__iter__", "__aiter__", "__enter__")},
    "__next__": _next,
    "__contains__": _contains,
    "__call__": _call,
    "__exit__": _leave,
    "__anext__": _next_async,
    "__aenter__": _enter_async,
    "__aexit__": _leave_async,
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
