"""What stands in the candidate's process for objects of the tests: each use of one is a request."""

from __future__ import annotations

import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from postrl.rewards.code.wire import Peer


class Function:
    """A callable of the tests."""

    def __init__(self, side: Peer, number: int, name: str) -> None:
        self._side, self._number = side, number
        self.__name__ = self.__qualname__ = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._side.request("call", self, arguments, named)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else types.MethodType(self, instance)


class Iterator:
    """An iterator of the tests."""

    def __init__(self, side: Peer, number: int, name: str) -> None:
        self._side, self._number = side, number

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        return self._side.request("next", self)


class File(Iterator):
    """A file of the tests, in memory or on disk."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._side.request("get", self, name)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Object:
    """An instance of a class that the tests define: its public attributes."""

    def __init__(self, side: Peer, number: int, name: str) -> None:
        vars(self).update(_side=side, _number=number)

    def __getattr__(self, name: str) -> Any:
        return self._side.request("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._side.request("set", self, name, value)


class Given(type):
    """A class of the tests, which makes its instances there."""

    _side: Peer

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return cls._side.request("make", cls.__name__, arguments, named)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return cls._side.request("part", cls.__name__, name)


STANDINS = {"function": Function, "iterator": Iterator, "file": File, "object": Object}
THEIRS = {Function, Iterator, File, Object}
