"""What two processes that share out the suite are given: files, and files that belong together."""

from __future__ import annotations

from typing import Any

TOGETHER = {
    "servers": (
        "weights/test_vllm_server.py", "weights/test_in_flight.py", "weights/test_lora_server.py",
        "rewards/test_judge.py", "e2e/test_async_run.py", "e2e/test_lora_run.py", "e2e/test_faults.py",
    ),
    "whole": ("e2e/test_embedded_run.py", "e2e/test_resume.py", "e2e/test_bad_input.py"),
}  # fmt: skip
"""Files that one process runs, since they share what is dear: servers (live_servers.py) or a run (e2e/conftest.py). Any other
file goes to whichever process is free."""


def unit_of(file: str) -> str:
    """The unit of work that a file (tests/...) is of."""
    return next((name for name, files in TOGETHER.items() if file.removeprefix("tests/") in files), file)


def scheduler(config: Any, log: Any) -> Any:
    """xdist's --dist loadfile, with units in place of files."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(super()._split_scope(nodeid))

    return Scheduling(config, log)
