"""Hostile programs in the sandbox, as this user and, when that is root, as an ordinary one as well."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from postrl.errors import UsageError
from postrl.rewards.code.sandbox import LEVELS, Sandbox, choose
from rewards.code import hostile

TESTS = Path(__file__).parents[2]
SOURCES = TESTS.parent / "src"
ORDINARY = 65534


def available(level: str) -> None:
    try:
        choose(level)
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", hostile.CHECKS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_hostile_program_reaches_nothing_and_leaves_nothing(level, name):
    available(level)
    if level not in hostile.CHECKS[name][1]:
        pytest.skip(f"{level} is no boundary for this")
    assert hostile.check(name, level) == ""


@pytest.mark.parametrize("attack", [hostile.daemon, hostile.grandchild])
def test_without_a_system_call_filter_the_keeper_ends_what_was_left(attack):
    with hostile.surroundings() as arguments:
        assert attack(Sandbox("basic", "", filtered=False), arguments) == ""
        assert hostile.settled() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try it as another user")
@pytest.mark.parametrize(
    ("level", "user"), [*((level, ORDINARY) for level in LEVELS), ("landlock", 0)], ids=lambda value: f"{value}"
)
def test_the_same_holds_for_an_ordinary_user_and_for_root_with_an_interpreter_that_everybody_can_read(level, user):
    with tempfile.TemporaryDirectory(prefix="ordinary-") as folder:
        os.chown(folder, user, user)
        os.chmod(folder, 0o755)
        done = subprocess.run(
            [readable_interpreter(), "-m", "rewards.code.hostile", level],
            cwd=SOURCES.parent, user=user, group=user, extra_groups=[], capture_output=True, text=True,
            env={"PYTHONPATH": f"{SOURCES}:{TESTS}", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder, "PATH": os.environ["PATH"]},
            timeout=300,
        )  # fmt: skip
        left = os.listdir(folder)
    if done.stdout.startswith("unavailable"):
        pytest.skip(done.stdout)
    about, *verdicts = done.stdout.splitlines()
    assert about.startswith(level), done.stderr
    assert verdicts == [f"{name}: ok" for name in hostile.CHECKS], done.stderr
    assert left == []


def readable_interpreter() -> str:
    """This one, or the system's, if an ordinary user can run it from here."""
    for path in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin") or ""):
        probe = [
            path,
            "-c",
            "import sys; sys.path.append(sys.argv[1]); import postrl.errors; assert sys.version_info >= (3, 11)",
        ]
        try:
            done = subprocess.run(
                [*probe, str(SOURCES)], user=ORDINARY, group=ORDINARY, cwd="/", capture_output=True, timeout=60
            )
        except OSError:
            continue
        if done.returncode == 0:
            return path
    pytest.skip("an ordinary user can run no Python 3.11 here, or cannot read this checkout")
