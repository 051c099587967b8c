"""Who may import whom, read from the source; and what the command line loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import postrl

SOURCE = Path(postrl.__file__).parent
VERBS = ("algorithms", "rollout", "rewards", "learning", "weights")
LAYERS = (
    "version types errors",
    "user_code host console algorithms rows",
    "models",
    "config",
    "run data",
    "servers",
    "rollout rewards learning weights",
    "given",
    "worker scripts",
    "session scoring",
    "report launch",
    "simulation trainer",
    "cli",
    "__init__ __main__",
)
"""The files and packages of src/postrl: each may import those in lines above its own, and itself."""
LEVEL = {name: level for level, line in enumerate(LAYERS) for name in line.split()}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in SOURCE.rglob("*.py")}


def imported(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports, anywhere in it, for type checkers too."""
    package = name_of(path).split(".") if path.stem == "__init__" else name_of(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = (above + (node.module or "")).rstrip(".")
            names = [f"{module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else module for name in names)


@cache
def imports() -> dict[str, list[str]]:
    return {name: sorted(set(imported(path)) & MODULES.keys() - {name}) for name, path in MODULES.items()}


def top_of(module: str) -> str:
    """The file or package of src/postrl in which a module is."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def files(package: str) -> list[Path]:
    found = sorted((SOURCE / package).rglob("*.py"))
    assert found
    return found


def circles(graph: dict[str, list[str]]) -> list[list[str]]:
    """Modules that import each other, on whatever way: what is left of a graph whose ends were taken off."""
    left = {name: set(names) for name, names in graph.items()}
    while ends := [name for name, names in left.items() if not names & left.keys()]:
        for name in ends:
            del left[name]
    while starts := left.keys() - set().union(*left.values()):
        for name in starts:
            del left[name]
    return sorted(sorted({name, *names & left.keys()}) for name, names in left.items())


def test_no_module_imports_itself_on_any_way():
    assert circles(imports()) == []


def test_circles_are_found():
    graph = {"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": []}
    assert circles(graph) == [["b", "c"], ["b", "c"]]


def test_every_file_and_package_has_its_layer():
    assert {top_of(module) for module in MODULES} == LEVEL.keys()


def test_at_most_twelve_files_lie_loose():
    assert len(list(SOURCE.glob("*.py"))) <= 12


def test_imports_go_down_the_layers():
    wrong = [
        f"{module} imports {name}"
        for module, names in imports().items()
        for name in names
        if top_of(name) != top_of(module) and LEVEL[top_of(name)] >= LEVEL[top_of(module)]
    ]
    assert wrong == []


def test_algorithms_import_torch_and_the_types_alone():
    allowed = {"torch", "__future__", *sys.stdlib_module_names}
    wrong = [
        f"{path.name} imports {name}"
        for path in files("algorithms")
        for name in imported(path)
        if name.split(".")[0] not in allowed and not name.startswith(("postrl.algorithms", "postrl.types"))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "module", ["postrl.cli", "postrl.launch.run", "postrl.worker.worker", "postrl.simulation.engine"]
)
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
