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

from typing import Any


class PostrlError(Exception):
    """An error with a way out. `message` says what was found and expected, `hint` what to type next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


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


def error_from_wire(data: dict[str, Any]) -> PostrlError:
    """The error again, as the class of postrl.errors that it was."""
    kind = globals().get(str(data.get("kind")), PostrlError)
    if not (isinstance(kind, type) and issubclass(kind, PostrlError)):
        kind = PostrlError
    error = kind(str(data.get("message", "")), hint=str(data.get("hint", "")))
    error.exit_code = int(data.get("exit_code", 1))
    return error
