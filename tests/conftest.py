"""Shared by all tests. Its being here puts this folder on the path, so that any test can `from helpers import ...`."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import settings

from live_servers import adapter_server, bfloat16_server, float32_server, live  # noqa: F401 - fixtures of all folders
from units import order, scheduler

# A suite in the background of a script was started with SIGINT ignored, under nohup with SIGHUP, and so would be what it starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Before torch is loaded, here and in what tests start. Two threads on a model of a few thousand weights wait for each other on
# a busy machine: a run took five times the CPU. Servers take the limit out of their environment.
os.environ["OMP_THREAD_LIMIT"] = "1"

settings.register_profile("suite", deadline=None)  # how long an example takes is the machine's business
settings.load_profile("suite")


DEAR = {"live", "whole"}
"""Fixtures that start vLLM servers or a whole run: a test that takes one is slow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in which something takes minutes come first (two processes that share the files out end at about the same time),
    and each stays in one piece, or what it has for all its tests would be made twice. What takes minutes may take many of
    them on a busy machine."""
    for item in items:
        if not DEAR.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: order(item.nodeid.partition("::")[0], item.path in slow))
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduler(config, log) if config.getoption("dist") == "loadfile" else None
