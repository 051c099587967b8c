"""A reward process: one long-lived process for one reward function.

    python -m postrl.rewards.calling.serving FD PARENT      (started by `process.RewardProcess`)

It gets the function's spec, and then one request a call. Standard input is empty and standard output and error are a log file,
so that the function may print what it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import linecache
import math
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from postrl import user_code
from postrl.errors import PostrlError, UsageError
from postrl.host.python import as_the_user_gave_it
from postrl.rewards import registry
from postrl.rewards.calling import frames
from postrl.rewards.calling.child import Caller
from postrl.rewards.calling.log import Log
from postrl.rewards.calling.version import version_of
from postrl.rewards.declared import GIVEN
from postrl.rewards.registry import RewardSpec, load
from postrl.rewards.score import STATUSES, Score

LONGEST_TRACEBACK = 8000
DYNAMIC_CODE = "<dynamic-code>"
OURS = {__file__, registry.__file__, user_code.__file__}
CALLERS = {os.path.dirname(asyncio.__file__), os.path.dirname(importlib.__file__)}


def main() -> None:
    caller = Caller()
    as_the_user_gave_it(os.environ)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # printing any text must not raise
    serve(caller)


def serve(caller: Caller) -> None:
    """Load the function, say what it asks for and which version it is, then answer calls for ever."""
    try:
        request = frames.decode(caller.next())
        function, loaded = load_bound(RewardSpec.from_wire(request["spec"]), request["settings"])
    except BaseException as error:  # a module may call sys.exit
        caller.reply(refusal(error))
        return
    caller.reply(loaded)
    with asyncio.Runner() as runner:
        while True:
            caller.reply(answer(function, partial(frames.decode, caller.next()), runner))


def load_bound(spec: RewardSpec, settings: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function with its options bound, and what the one who calls it is told of it. Raises whatever its code raises."""
    _show_source(spec.origin)
    function = load(spec)
    constants = choose_constants(spec, function, settings)
    asks = describe(function, (*constants, *bound_in_order(function)))
    bound = partial(function, **constants)
    if spec.kind == "builtin":  # wrong options, and what keeps it from scoring at all, show before the first step
        bound(**{name: [] for name in asks["required"]})
    return bound, {"asks": asks, "version": version_of(spec, function, constants)}


def describe(function: Callable[..., Any], constants: Collection[str] = ()) -> dict[str, Any]:
    """What the data may fill: the names of the arguments it takes, those without a default, and whether it takes any other;
    and the constant arguments, which are left out of them.

    Raises:
        TypeError: an argument that cannot be given by name.
    """
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for p in named:
        if p.kind is p.POSITIONAL_ONLY:
            raise TypeError(f"the argument {p.name!r} is positional-only; reward functions get arguments by name")
    free = [p for p in named if p.name not in {*constants, *Log.ARGUMENTS}]
    return {
        "names": [p.name for p in free],
        "required": [p.name for p in free if p.default is p.empty],
        "any": any(p.kind is p.VAR_KEYWORD for p in parameters),
        "constant": sorted(constants),
    }


def bound_in_order(function: Callable[..., Any]) -> list[str]:
    """The arguments that a partial has given their values by position: its signature does not show them, and `**columns`
    must not bring them again."""
    if not isinstance(function, partial):
        return []
    names = [p.name for p in inspect.signature(function.func).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return names[: len(function.args)]


def choose_constants(spec: RewardSpec, function: Callable[..., Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The constant arguments, which no column of the data is taken for: the spec's options; of a partial what it binds; of a
    built-in its other options too, from the settings of the run or by default.

    Raises:
        UsageError: an option that the function does not have, or one that a built-in needs and nobody gives.
    """
    parameters = inspect.signature(function).parameters.values()
    if spec.kind == "builtin":
        known = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in GIVEN]
        constants = {**{p.name: settings.get(p.name, p.default) for p in known}, **spec.options}
        takes_any = False
    else:
        known = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in GIVEN]
        given = function.keywords if isinstance(function, partial) else {}
        constants = {**given, **spec.options}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in known]
    unknown = next((name for name in spec.options if name not in names and not takes_any), None)
    if unknown:
        raise UsageError(
            f"it has no option {unknown!r}; it has {', '.join(names) or 'none'}",
            hint=f"correct or remove --reward-arg {spec.name}.{unknown}",
        )
    needed = next((name for name, value in constants.items() if value is inspect.Parameter.empty), None)
    if needed:
        raise UsageError(f"it needs the option {needed}", hint=f"give it: --reward-arg {spec.name}.{needed}=VALUE")
    return constants


def call(function: Callable[..., Any], inputs: dict[str, Any], count: int, runner: asyncio.Runner) -> list[Score | str]:
    """Call the function; each score, or what is wrong with it.

    An async function runs on one event loop for the life of the process, so that a client it keeps stays usable.

    Raises:
        TypeError, ValueError: it did not return one score for each of `count` completions.
        BaseException: whatever the function raises, sys.exit included.
    """
    result = function(**inputs)
    if inspect.isawaitable(result):
        result = runner.run(_wait_for(result))
    if isinstance(result, str | bytes | dict | set) or not hasattr(result, "__iter__"):
        raise TypeError(f"it returned a {type(result).__name__}, expected a list of {count} numbers or Nones")
    items = list(islice(result, count + 1)) if not hasattr(result, "__len__") else list(result)
    if len(items) != count:
        more = "" if hasattr(result, "__len__") or len(items) < count else " or more"
        raise ValueError(f"it returned {len(items)}{more} scores for {count} completions")
    return [to_score(item) for item in items]


def to_score(item: Any) -> Score | str:
    """One returned value as a Score, or what is wrong with it. Numbers are bools, ints, floats and what `float` takes:
    numpy scalars, tensors of one element, Decimals."""
    status = item.status if isinstance(item, Score) else "none" if item is None else "scored"
    value = item.value if isinstance(item, Score) else item
    if status not in STATUSES:
        return f"the status {status!r}, expected one of {', '.join(sorted(STATUSES))}"
    if value is None:
        return Score(None, status)
    try:
        number = None if isinstance(value, str | bytes | bytearray) else float(value)  # float("1") would read text
    except Exception:
        number = None
    if number is None:
        return f"{value!r:.200} ({type(value).__name__}), expected a number or None"
    return Score(number, status) if math.isfinite(number) else f"{number}, expected a finite number"


async def _wait_for(result: Awaitable[Any]) -> Any:
    return await result


def refusal(error: BaseException) -> dict[str, Any]:
    """What is told in place of a function that cannot be loaded."""
    return {"error": _explained(error), "hint": error.hint if isinstance(error, PostrlError) else ""}


def answer(
    function: Callable[..., Any], request: Callable[[], dict[str, Any]], runner: asyncio.Runner
) -> dict[str, Any]:
    """The reply to one call: values and statuses, what it logged, and what went wrong if anything did, getting the request
    included."""
    try:
        asked = request()
        count = asked["count"]
        log = Log(count)
        scores = call(function, {**asked["inputs"], **log.asked_for(function)}, count, runner)
    except BaseException as error:  # user code: SystemExit and KeyboardInterrupt are its failures, not our end
        return {"error": _explained(error)}
    wrong = [f"completion {i} scored {score}" for i, score in enumerate(scores) if isinstance(score, str)]
    kept = [Score(None, "infra_error") if isinstance(score, str) else score for score in scores]
    error_text = f"{wrong[0]} ({len(wrong)} of {count} scores are unusable)" if wrong else None
    return {
        "values": [s.value for s in kept],
        "statuses": [s.status for s in kept],
        "error": error_text,
        "extra": log.columns,
        "metrics": log.metrics,
        "notes": log.notes,
        "memory": _resident_bytes(),
    }


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _show_source(origin: str) -> None:
    """Pickled code is from "<dynamic-code>"; with its file's lines under that name, tracebacks show the source."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        lines = Path(origin).read_text(encoding="utf-8").splitlines(keepends=True)
        linecache.cache[DYNAMIC_CODE] = (sum(map(len, lines)), None, lines, origin)


def _explained(error: BaseException) -> str:
    """An error of ours as its message; any other as the traceback from the user's first frame on, its end if it is
    long."""
    if isinstance(error, PostrlError):
        return error.message
    frame = error.__traceback__
    while frame and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    text = "".join(traceback.format_exception(type(error), error, frame)).rstrip()
    if DYNAMIC_CODE in linecache.cache:
        text = text.replace(DYNAMIC_CODE, str(linecache.cache[DYNAMIC_CODE][-1]))
    return text if len(text) <= LONGEST_TRACEBACK else "... " + text[-LONGEST_TRACEBACK:]


def _is_ours(filename: str) -> bool:
    """Whether a frame at the head of a traceback is of what called the user's code."""
    return filename in OURS or filename.startswith("<frozen importlib") or os.path.dirname(filename) in CALLERS


if __name__ == "__main__":
    main()
