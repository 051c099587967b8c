"""Shared by all tests. Its being here puts this folder on the path, so that any test can `from helpers import ...`."""

from __future__ import annotations

import signal

import pytest

# A suite that runs in the background of a script was started with SIGINT ignored, and so would be what it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes comes first: two processes that share the files out end at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
