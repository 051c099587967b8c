"""Who writes in a run's folder: one process, for as long as it lives, and the trainer ranks that it starts.

RUN/logs/owner.lock is locked by the launcher, or by the script that trains, and says who that is. The system takes the lock
away when that process ends, however it does; children do not inherit it. RUN/logs/ranks.lock is shared by the ranks: of a
launcher that was killed they live some seconds longer, and the next one waits for their end.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil

from postrl.config import GRPOConfig
from postrl.console import note
from postrl.errors import UsageError, WaitTimeout
from postrl.host.files import read_json, take_lock
from postrl.run.folder import RunFolder, with_run_folder

OWNER, RANKS = "owner.lock", "ranks.lock"
PATIENCE = 1.0
"""Seconds in which another one's look at the lock, or the writing of its owner's name, is over."""
RANKS_TIMEOUT = 60.0
"""Seconds that the ranks of a killed launcher may take to end; their reapers need some ten."""

_held: set[int] = set()


def _let_go() -> None:
    """In a forked child, which would keep the lock beyond its parent's end."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


def _close(lock: int) -> None:
    """In a forked child that leaves our block it is closed, and its number may be another file's."""
    if lock in _held:
        _held.discard(lock)
        os.close(lock)


@contextmanager
def run_folder_of(config: GRPOConfig, checkpoint: Path | None = None) -> Iterator[tuple[GRPOConfig, RunFolder]]:
    """The run's folder, checked, made and owned by this process for the block, and the settings with its name.

    Args:
        checkpoint: see `RunFolder.check`.

    Raises:
        UsageError: see `RunFolder.check`; or it has an owner.
        PostrlError: it cannot be written.
    """
    config = with_own_folder(config) if unnamed(config) else with_run_folder(config)
    folder = RunFolder(config.output_dir or "")
    refuse_if_owned(folder)
    folder.check(config, checkpoint)
    with owning(folder):
        folder.prepare(config, checkpoint)
        if config.resume and checkpoint is None and not folder.saved():
            note(f"{folder.path} holds no checkpoint yet: starting from step 1")
        yield config, folder


def unnamed(config: GRPOConfig) -> bool:
    """Whether the run's folder is called after model, data set and time."""
    return config.output_dir is None and config.run_name is None


def with_own_folder(config: GRPOConfig) -> GRPOConfig:
    """The settings with a folder that was made now: runs that start in the same second get one each.

    Raises:
        PostrlError: it cannot be made.
    """
    named = with_run_folder(config)
    path, number = Path(named.output_dir or ""), 1
    with RunFolder(path).writing("the run"):
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            own = path if number == 1 else path.with_name(f"{path.name}-{number}")
            with suppress(FileExistsError):
                own.mkdir()
                return replace(named, run_name=own.name, output_dir=str(own))
            number += 1


# -- the owner -----------------------------------------------------------------------------------------------------------


@contextmanager
def owning(folder: RunFolder) -> Iterator[None]:
    """This process owns the folder for the block.

    Raises:
        UsageError: another one does.
        WaitTimeout: ranks of an owner that was killed do not end.
        PostrlError: the folder cannot be written.
    """
    with folder.writing("the run"):
        folder.logs.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder.logs / OWNER, os.O_RDWR | os.O_CREAT, 0o666)
    _held.add(lock)
    try:
        _take(folder, lock)
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat(" ", "seconds")}
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(me).encode(), 0)
        try:
            _wait_for_ranks(folder)
            yield
        finally:
            if lock in _held:
                os.ftruncate(lock, 0)
    finally:
        _close(lock)


def refuse_if_owned(folder: RunFolder) -> None:
    """Raises UsageError when a run goes on in the folder. Writes nothing."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        lock = os.open(folder.logs / OWNER, os.O_RDONLY)
        try:
            if take_lock(lock, fcntl.LOCK_SH) is False:
                raise _owned(folder)
        finally:
            os.close(lock)


def _take(folder: RunFolder, lock: int) -> None:
    taken = take_lock(lock, seconds=PATIENCE, waiting=gc.collect)  # of a trainer that nobody here holds any more
    if taken is False:
        raise _owned(folder)
    if taken is None:
        _take_without_locks(folder)


def _take_without_locks(folder: RunFolder) -> None:
    """Where files cannot be locked, an owner of this machine is known by its pid; others have to be believed gone."""
    owner = read_json(folder.logs / OWNER)
    elsewhere = bool(owner) and owner.get("host") != socket.gethostname()
    if owner and not elsewhere and owner.get("pid") != os.getpid() and psutil.pid_exists(int(owner["pid"])):
        raise _owned(folder)
    also = f"; the last one was pid {owner['pid']} on {owner['host']}" if elsewhere else ""
    note(
        f"files in {folder.path} cannot be locked: nothing keeps a run on another machine from writing there too{also}"
    )


def _owned(folder: RunFolder) -> UsageError:
    end = time.monotonic() + PATIENCE
    while not (owner := read_json(folder.logs / OWNER)) and time.monotonic() < end:
        time.sleep(0.05)
    who = f"pid {owner['pid']} on {owner['host']}, since {owner['since']}" if owner else "by a process that is starting"
    if owner.get("pid") == os.getpid() and owner.get("host") == socket.gethostname():
        return UsageError(
            f"another trainer of this process has its run in {folder.path}",
            hint="end it with trainer.close(), or choose another output_dir",
        )
    return UsageError(
        f"a run goes on in {folder.path}: {who}",
        hint=f"wait for its end, have it save and stop (touch {folder.path / 'stop'}), or choose another --output-dir",
    )


# -- the ranks -----------------------------------------------------------------------------------------------------------


@contextmanager
def writing_as_rank(folder: RunFolder) -> Iterator[None]:
    """This process is a trainer rank of the folder's owner for the block."""
    folder.logs.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder.logs / RANKS, os.O_RDWR | os.O_CREAT, 0o666)
    _held.add(lock)
    try:
        take_lock(lock, fcntl.LOCK_SH)  # only the owner's look at it could be in the way, and that is over
        yield
    finally:
        _close(lock)


def _wait_for_ranks(folder: RunFolder) -> None:
    with open(folder.logs / RANKS, "wb") as lock:
        say = partial(note, f"waiting for the processes of the run in {folder.path} whose launcher is gone")
        if take_lock(lock.fileno(), seconds=RANKS_TIMEOUT, waiting=say) is False:
            raise WaitTimeout(
                f"trainer ranks of an earlier run in {folder.path} have not ended within {RANKS_TIMEOUT:g} s",
                hint=f"end the processes `postrl learner {folder.path}`, or choose another --output-dir",
            )
