"""The shipped cases of the code verifier, each as it must be scored, at both levels that are a boundary and as an ordinary
user as well."""

from __future__ import annotations

import os
import subprocess
import tempfile

import pytest

from postrl.errors import UsageError
from postrl.rewards.code.sandbox import choose
from rewards.code.shipped import CASES, misjudged, of_the_sandbox
from rewards.code.test_hygiene import ORDINARY, SOURCES, TESTS, readable_interpreter


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    """What no program may find."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("WANDB_API_KEY", "secret")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case):
    assert misjudged([case]) == []


def test_at_landlock_too_where_strict_is_what_auto_takes():
    try:
        choose("landlock")
    except UsageError as error:
        pytest.skip(str(error))
    assert misjudged(of_the_sandbox(), "landlock") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try it as another user")
@pytest.mark.parametrize("level", ["strict", "landlock"])
def test_as_an_ordinary_user_too(level):
    with tempfile.TemporaryDirectory(prefix="ordinary-") as folder:
        os.chown(folder, ORDINARY, ORDINARY)
        done = subprocess.run(
            [readable_interpreter(), "-m", "rewards.code.shipped", level],
            cwd=SOURCES.parent, user=ORDINARY, group=ORDINARY, extra_groups=[], capture_output=True, encoding="utf-8",
            env={"PYTHONPATH": f"{SOURCES}:{TESTS}", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder, "PATH": os.environ["PATH"]},
            timeout=300,
        )  # fmt: skip
    if done.stderr.startswith("unavailable"):
        pytest.skip(done.stderr)
    about, *wrong = done.stdout.split("\n")
    assert about.startswith(level), done.stderr
    assert [line for line in wrong if line] == []
