"""Files of tests for pytest and unittest: which tests they define.

    collect(("def test_one():\\n    assert f(1) == 1",))       # [..., Statement("_postrl_run('test_one')")]

Nothing is run here. A statement behind the code that defines a test has `harness` run it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

SETUP = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
CASES = ("TestCase", "IsolatedAsyncioTestCase")
RUNNERS = ("unittest.main(", "pytest.main(", "sys.exit(pytest.main(", "exit(pytest.main(")
SKIPPED = {"unittest.skip", "skip", "pytest.mark.skip"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Statement:
    """A part of the tests, read once."""

    def __init__(self, code: str, tree: ast.Module | None = None, *, counts: bool = True) -> None:
        self.code = code
        self.tree = ast.parse(code) if tree is None else tree
        self.counts = counts
        """Whether it is a test: imports, definitions and assignments alone are not."""

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))


class Found(NamedTuple):
    """A test that a file defines."""

    name: str
    """`test_add`, or `TestAdd.test_small`."""
    node: Function
    owner: ast.ClassDef | None
    unittest: bool
    """Whether it is a method of a unittest.TestCase, and not pytest's."""


def collect(tests: Sequence[str]) -> list[Statement]:
    """The tests as they are, without what starts a test runner, and a statement for each test that they define."""
    read = [_without_runner(test) for test in tests]
    called = {name for each in read for name in called_at_top(each.tree)}
    cases = test_cases(each.tree for each in read)
    statements = []
    for each in read:
        names = dict.fromkeys(found.name for found in tests_of(each.tree, cases) if found.name not in called)
        statements += [each, *(Statement(f"_postrl_run({name!r})") for name in names)]
    return statements


def tests_of(tree: ast.Module | ast.ClassDef, cases: Iterable[str], prefix: str = "") -> Iterator[Found]:
    """The tests that code defines, in its order.

    Args:
        tree: a module; or a class, for the classes in it.
        cases: names of the classes that are unittest's, from `test_cases`.
        prefix: the name of the class, with a point.
    """
    own = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if _skipped(node):
            continue
        if isinstance(node, Function) and _named_test(node.name) and not prefix:
            yield Found(node.name, node, None, False)
        elif isinstance(node, ast.ClassDef):
            yield from _methods_of(node, own, node.name in cases, prefix)
            if node.name.startswith("Test") and node.name not in cases:
                yield from tests_of(node, cases, f"{prefix}{node.name}.")


def _methods_of(node: ast.ClassDef, own: dict[str, ast.ClassDef], unittest: bool, prefix: str) -> Iterator[Found]:
    if not unittest and not _of_pytest(node, own):
        return
    methods = {method.name: method for base in _with_bases(node, own) for method in _methods(base)}
    for name, method in methods.items():
        if not _skipped(method):
            yield Found(f"{prefix}{node.name}.{name}", method, node, unittest)


def test_cases(trees: Iterable[ast.Module]) -> set[str]:
    """Names of the classes that inherit from unittest.TestCase."""
    found: set[str] = set()
    for node in (node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)):
        if any(ast.unparse(base).rpartition(".")[2] in {*CASES, *found} for base in node.bases):
            found.add(node.name)
    return found


def given_classes(code: Iterable[Statement]) -> list[str]:
    """Names of the classes of data that the tests define: those that hold no test and assert nothing."""
    classes = [node for each in code for node in each.tree.body if isinstance(node, ast.ClassDef)]
    cases = test_cases([ast.Module(list(classes), [])])
    return [node.name for node in classes if node.name not in cases and not any(map(_tests, ast.walk(node)))]


def _tests(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert) or (isinstance(node, Function) and _named_test(node.name))


def called_at_top(tree: ast.Module) -> set[str]:
    """Names that statements outside of functions and classes call."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = (node for top in tree.body if not isinstance(top, definitions) for node in ast.walk(top))
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def _named_test(name: str) -> bool:
    return name.startswith("test_") or name == "test" or (name.startswith("test") and not name[4:5].islower())


def _of_pytest(node: ast.ClassDef, own: dict[str, ast.ClassDef]) -> bool:
    bases = _with_bases(node, own)
    methods = [each.name for base in bases for each in base.body if isinstance(each, Function)]
    return node.name.startswith("Test") and "__init__" not in methods and any(map(_named_test, methods))


def _with_bases(node: ast.ClassDef, own: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class behind its bases that are in the same code."""
    bases = [
        own[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in own and base.id != node.name
    ]
    return [each for base in bases for each in _with_bases(base, {k: v for k, v in own.items() if k != node.name})] + [
        node
    ]


def _methods(node: ast.ClassDef) -> list[Function]:
    return [method for method in node.body if isinstance(method, Function) and method.name.startswith("test")]


def _skipped(node: ast.stmt) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(each).partition("(")[0] in SKIPPED for each in decorators)


def _is_test(node: ast.stmt) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not isinstance(node, SETUP) and not docstring


def _without_runner(test: str) -> Statement:
    tree = ast.parse(test)
    body = [node for node in tree.body if not _is_runner(node)]
    counts = any(_is_test(node) for node in body)
    if len(body) == len(tree.body):
        return Statement(test, tree, counts=counts)
    tree.body = body
    return Statement(ast.unparse(tree), tree, counts=counts)


def _is_runner(node: ast.stmt) -> bool:
    """`if __name__ == "__main__":`, and calls that would run the whole file as a script."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test).replace('"', "'") == "__name__ == '__main__'"
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith(RUNNERS)
