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

LONG = (
    "worker/test_worker.py", "rewards/code/test_cases.py", "rewards/code/test_sandbox.py", "rewards/code/test_hacks.py",
    "rewards/code/test_hygiene.py", "worker/test_informative.py", "worker/test_overlap.py", "scoring/test_rescore.py",
    "launch/test_adapters.py", "launch/test_siblings.py", "launch/test_pool.py", "cli/test_help.py", "e2e/test_presets.py",
    "e2e/test_bad_input.py",
)  # fmt: skip
"""Files that take long though nothing in them is slow. They come before the other ones, of which two processes that share them
out have the last at about the same time."""


def order(file: str, slow: bool) -> int:
    """What takes minutes comes first, then what takes long."""
    return 0 if slow else 1 if file.removeprefix("tests/") in LONG else 2


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
