"""Who may import whom, read from the source; and what the command line loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import postrl

SOURCE = Path(postrl.__file__).parent
VERBS = ("algorithms", "rollout", "rewards", "learning", "weights")


def imported(path: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, anywhere in it, for type checkers too."""
    package = path.relative_to(SOURCE.parent).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level]) + "." if node.level else ""
            module = above + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def files(package: str) -> list[Path]:
    found = sorted((SOURCE / package).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_the_verb_packages_do_not_import_each_other(verb):
    others = tuple(f"postrl.{other}" for other in VERBS if other != verb)
    wrong = [
        f"{path.name} imports {name}"
        for path in files(verb)
        for name in imported(path)
        if any(name == other or name.startswith(f"{other}.") for other in others)
    ]
    assert wrong == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_verb_packages_do_not_know_who_composes_them(verb):
    above = ("trainer", "session", "worker", "sources", "sync", "report", "cli", "launch")
    wrong = [
        f"{path.name} imports {name}"
        for path in files(verb)
        for name in imported(path)
        if name.startswith("postrl.") and name.split(".")[1] in above
    ]
    assert wrong == []


def test_algorithms_import_torch_and_the_types_alone():
    allowed = {"torch", "__future__", *sys.stdlib_module_names}
    wrong = [
        f"{path.name} imports {name}"
        for path in files("algorithms")
        for name in imported(path)
        if name.split(".")[0] not in allowed and not name.startswith(("postrl.algorithms", "postrl.types"))
        if name != "postrl"
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ["postrl.cli", "postrl.launch.run", "postrl.worker", "postrl.simulation.engine"])
def test_what_runs_beside_the_trainer_loads_no_torch(module):
    """Help in a moment, and a launcher and a rollout worker that take little memory."""
    code = f"import sys, {module}; sys.stdout.write(' '.join({{'torch', 'transformers', 'vllm', 'datasets'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""


def test_the_names_of_the_package_are_those_it_lists():
    assert sorted(postrl.__all__) == sorted({*postrl._HOMES, "__version__"})
    assert dir(postrl) == postrl.__all__
    with pytest.raises(AttributeError, match="no attribute 'SFTTrainer'"):
        _ = postrl.SFTTrainer
