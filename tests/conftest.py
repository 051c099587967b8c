"""Shared by all tests. Its being here puts this folder on the path, so that any test can `from helpers import ...`."""

from __future__ import annotations

import signal

import pytest

# A suite that runs in the background of a script was started with SIGINT ignored, and so would be what it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What two processes share out (make test): a file is for one of them, and so is all that asks the servers of a folder,
    which start once. What takes minutes comes first."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        if any(name.endswith("_server") for name in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
            file = f"{file.rpartition('/')[0]}/servers"
        item.add_marker(pytest.mark.xdist_group(file))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
