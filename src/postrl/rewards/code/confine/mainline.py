"""Run a program in this process as if an interpreter had been started with it."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import io
import os
import site  # the interpreter runs without it, which saves it from reading the .pth files of all packages
import sys
import threading
from collections.abc import Callable
from types import CodeType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .channel import Job

FLUSH_FAILED = 120
"""What the interpreter exits with then."""
_exit = os._exit  # a program may replace that of the module


def run(job: Job, code: CodeType) -> None:
    """Run the program as `__main__`, then end this process."""
    folder = os.path.dirname(os.path.dirname(__file__))
    sys.path[:] = [path for path in sys.path if path != folder] + job["packages"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "confine"]:
        del sys.modules[name]
    sys.prefix, sys.exec_prefix = job["prefixes"]
    sys.argv = [job["program"], *job["arguments"]]
    site.setquit()
    site.setcopyright()
    site.sethelper()
    names = vars(sys.modules["__main__"])
    names.clear()
    names.update(__name__="__main__", __file__=job["program"], __builtins__=builtins, __spec__=None, __doc__=None)
    _leave(_execute(code, names))


def _execute(code: CodeType, names: dict[str, object]) -> int:
    """The exit status of the program, whose code the caller vouches for."""
    try:
        exec(code, names)
    except SystemExit as end:
        said = end.code
        if said is None or isinstance(said, int):
            return said or 0
        _try(lambda: sys.stderr.write(f"{said}\n"))
        return 1
    except BaseException as error:
        _show(error)
        return 1
    return 0


def _show(error: BaseException) -> None:
    """The traceback from the program's first frame on: above it are `_execute` and what called it."""
    trace = error.__traceback__
    trace = trace and trace.tb_next
    with contextlib.suppress(BaseException):
        sys.excepthook(type(error), error.with_traceback(trace), trace)


def _leave(status: int) -> None:
    """End as the interpreter does, but without taking every module apart, which takes longer than most programs run."""
    _try(threading._shutdown)  # type: ignore[attr-defined]  # waits for threads
    _try(atexit._run_exitfuncs)
    if not (_try(lambda: _flush(sys.stdout)) and _try(lambda: _flush(sys.stderr))):
        status = FLUSH_FAILED
    for x in gc.get_objects():  # files that were never closed; what the fork server had loaded is not among these
        if isinstance(x, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with contextlib.suppress(Exception):
                _flush(x)
    _exit(status & 0xFF)


def _flush(stream: object) -> None:
    if stream is not None and not stream.closed:  # type: ignore[attr-defined]
        stream.flush()  # type: ignore[attr-defined]


def _try(step: Callable[[], object]) -> bool:
    try:
        step()
    except BaseException as error:
        _show(error)
        return False
    return True
