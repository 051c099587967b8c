"""Errors written to the person who reads them at night: what was found, what was expected, what to type next.

PostrlError                 anything postrl itself can explain; exit code 1
├── UsageError              the command line, a config file or an argument is wrong; exit code 2
├── DataError               a data set, a column or a row is not usable
├── RewardError             a reward function cannot be loaded, or fails beyond its budget
├── RolloutError            nothing that can be trained on comes any more
├── ServerError             a vLLM server cannot start, answers wrongly or went away
│   ├── WeightsLost         no server holds the weights any more: they must be published again
├── CanaryError             a server does not hold the weights that were pushed to it
├── ChildError              a child process of the run died
└── WaitTimeout             a wait passed its deadline
"""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from traceback import walk_tb
from types import TracebackType
from typing import Any

at_command_line = False
"""Whether a command of postrl runs in this process: hints name its flags then, and not the arguments of a script."""


class PostrlError(Exception):
    """An error with a way out. `message` says what was found and expected, `hint` what to type next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def advise(self, hint: str) -> None:
        """One thing more that can be done."""
        self.hint = f"{self.hint}; {hint}" if self.hint else hint


class UsageError(PostrlError, ValueError):
    """The user asked for something that cannot be: a wrong flag, an impossible combination."""

    exit_code = 2


class DataError(PostrlError, ValueError):
    """A data set, a column or a row is not usable."""


class RewardError(PostrlError):
    """A reward function cannot be loaded, or it fails more often than `reward_error_budget` allows."""


class RolloutError(PostrlError):
    """Nothing that can be trained on comes any more: everything is dropped, or has no reward."""


class ServerError(PostrlError):
    """A vLLM server cannot start, answers wrongly or went away."""


class RequestRefused(ServerError):
    """A vLLM server understood a request and refuses it (HTTP 4xx): asking again changes nothing."""


class WeightsLost(ServerError):
    """No server holds the weights any more, since all were started again: they must be published again."""


class CanaryError(ServerError):
    """A server does not hold the weights that were pushed to it."""


class ChildError(PostrlError):
    """A child process of the run died; the message carries the end of its log."""


class WaitTimeout(PostrlError, TimeoutError):
    """A wait passed its deadline; the message names what was waited for."""


def error_to_wire(error: BaseException) -> dict[str, Any]:
    """An error as plain data, for a message or for a child's error file."""
    if isinstance(error, PostrlError):
        known = next(kind for kind in type(error).__mro__ if kind.__module__ == __name__)
        return {
            "kind": known.__name__,
            "message": error.message,
            "hint": error.hint,
            "exit_code": error.exit_code,
        }
    return {"kind": type(error).__name__, "message": f"{type(error).__name__}: {error}", "hint": "", "exit_code": 1}


def origin_of(error: BaseException) -> dict[str, str]:
    """Whose code an error comes from, as plain data: `of` is "yours" (a reward, callback, algorithm or model of the user),
    "torch", "memory", "ranks" (the connection to the other ranks) or "postrl"; `at` is the deepest line that is no
    library's."""
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in _walk(error.__traceback__)]
    own = [(whose, *frame) for frame in frames if (whose := whose_file(frame[0])) in ("yours", "postrl")]
    whose, at = "postrl", ""
    if own:
        whose, path, line, function = own[-1]
        at = f"{path}:{line}, in {function}"
        if code := linecache.getline(path, line).strip():
            at += f": {code}"
    deepest = frames[-1][0] if frames else ""
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        whose = "memory"
    elif f"{os.sep}torch{os.sep}distributed{os.sep}" in deepest:
        whose = "ranks"
    elif whose == "postrl" and (type(error).__module__.startswith("torch") or _TORCH.search(deepest)):
        whose = "torch"
    return {"of": whose, "at": at}


def first_line(error: BaseException) -> str:
    """Of what an error says; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_INSTALLED = re.compile("/(site|dist)-packages/")
_TORCH = re.compile("/(site|dist)-packages/torch/")


def whose_file(path: str) -> str:
    """Whose a source file is: "postrl", "library" (Python's own or installed) or "yours"."""
    if path.startswith(os.path.dirname(os.path.abspath(__file__)) + os.sep):
        return "postrl"
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    is_library = path.startswith("<") or any(path.startswith(folder + os.sep) for folder in installed)
    return "library" if is_library or _INSTALLED.search(path) else "yours"


def _walk(trace: TracebackType | None) -> list[Any]:
    return list(walk_tb(trace))


def error_from_wire(data: dict[str, Any]) -> PostrlError:
    """The error again, as the class of postrl.errors that it was."""
    kind = globals().get(str(data.get("kind")), PostrlError)
    if not (isinstance(kind, type) and issubclass(kind, PostrlError)):
        kind = PostrlError
    error = kind(str(data.get("message", "")), hint=str(data.get("hint", "")))
    error.exit_code = int(data.get("exit_code", 1))
    return error


def says_why(told: dict[str, Any]) -> bool:
    """Whether an error as plain data is one of ours, with a message for people."""
    return type(error_from_wire(told)).__name__ == told.get("kind")


def lost_connection(told: dict[str, Any]) -> bool:
    return _LOST.search(str(told.get("message"))) is not None


def is_consequence(told: dict[str, Any]) -> bool:
    """Whether a rank only lost the connection to another one."""
    of = (told.get("origin") or {}).get("of")
    return not says_why(told) and (of == "ranks" or (of != "yours" and lost_connection(told)))


_LOST = re.compile(
    r"(?i)connection (closed|reset|refused|aborted)|closed by (the )?peer|reset by peer|broken pipe|remote process exited"
)
