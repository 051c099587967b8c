"""Shared by all tests. Its being here puts this folder on the path, so that any test can `from helpers import ...`."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

# A suite in the background of a script was started with SIGINT ignored, under nohup with SIGHUP, and so would be what it starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

settings.register_profile("suite", deadline=None)  # how long an example takes is the machine's business
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes comes first (two processes that share the files out end at about the same time), and may take
    many of them on a busy machine."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))
