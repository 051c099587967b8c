"""Files that share servers or runs are one unit of work: two processes would start them twice."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from live_servers import STARTS
from units import LONG, TOGETHER, scheduler, unit_of

TESTS = Path(__file__).parent
OTHERS = {"conftest.py", "live_servers.py", Path(__file__).name}


def test_every_file_that_shares_is_there():
    assert [file for files in (*TOGETHER.values(), LONG) for file in files if not (TESTS / file).is_file()] == []


@pytest.mark.parametrize(("name", "folder"), [*((name, "") for name in STARTS), ("whole", "e2e")])
def test_files_that_look_at_the_same_servers_or_run_are_one_unit(name, folder):
    using = [path for path in (TESTS / folder).rglob("*.py") if path.name not in OTHERS and name in words(path)]
    assert using and len({unit_of(path.relative_to(TESTS.parent).as_posix()) for path in using}) == 1


def words(path: Path) -> set[str]:
    """Arguments of a file's functions, thus the fixtures they take, and strings (`request.getfixturevalue`)."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return strings | {node.arg for node in nodes if isinstance(node, ast.arg)}


def test_the_processes_are_given_units(request, monkeypatch):
    monkeypatch.setattr(request.config.option, "tx", ["2*popen"], raising=False)
    units, shared, other = (
        scheduler(request.config, None),
        f"tests/{TOGETHER['servers'][0]}",
        "tests/config/test_values.py",
    )
    assert [units._split_scope(f"{file}::test_it[a::b]") for file in (shared, other)] == ["servers", other]
