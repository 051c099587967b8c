"""The tests of a data set row, read once: what they ask of the candidate and how they are to be run.

    suite = read_suite(["assert square(3) == 9"])          # suite.tested == ("square",)

Reading is done by Python's own parser; nothing is run here.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from postrl.rewards.code import collect, features
from postrl.rewards.code.prelude import NAMES
from postrl.rewards.code.verdict import NoSuite

REACHED, RAN = "_postrl_reached", "_postrl_ran"
AMBIENT = frozenset(vars(builtins)) | NAMES.keys()
"""Names that tests use without being about them."""
WRAPPERS = {
    "abs", "all", "any", "bool", "dict", "float", "int", "isinstance", "len", "list", "print", "range", "round",
    "set", "sorted", "str", "tuple",
}  # fmt: skip
"""Those that tests put around a result."""


@dataclass(frozen=True)
class Suite:
    """The tests of a row, ready to be run."""

    tests: tuple[tuple[str, bool], ...]
    """Code, and whether it counts: imports, definitions and assignments alone are no test."""
    tested: tuple[str, ...]
    """Names that the tests use and do not define: the candidate's."""
    required: tuple[str, ...]
    """Those that it has to define and the tests have to call: the entry point, or all."""
    constants: bool
    """Whether one of these may be a constant, which nobody calls."""
    classes: tuple[str, ...] = ()
    """Those that are written like a class."""
    helpers: str = ""
    """Functions of the starter code that the tests use, such as the inverse of the function to write."""
    given: tuple[str, ...] = ()
    """Classes that the tests define, for the candidate to make instances of (LeetCode's TreeNode)."""
    timed: bool = False
    """Whether each test has its own time, as those of scripts do, and not all of them together."""
    modules: tuple[str, ...] = ()
    """Names under which the tests import the candidate."""
    needs: tuple[str, ...] = ()
    """What the tests share with the candidate beyond values; see `features`."""


@lru_cache(512)
def read_suite(tests: tuple[str, ...], entry_point: str | None = None, starter: str | None = None) -> Suite:
    """Read the tests of a row.

    Args:
        tests: Python code, one item a test, run one after the other in one namespace.
        entry_point: the function or class to write. A test that defines `check` and does not call it (HumanEval) is
            called with it; without tests that name anything else it is what has to be called.
        starter: the code that the completion goes on with or repeats. What the tests use of its other functions is
            the data set's own, not the candidate's.

    Raises:
        NoSuite: a test that does not compile.
    """
    entry = _identifier(entry_point)
    _compiled(tests)
    code = collect.collect(tests)
    used, bound = _names(each.code for each in code)
    if entry and "check" in bound and not any("check" in collect.called_at_top(each.tree) for each in code):
        code.append(collect.Statement(f"check({entry_point})"))
    if entry and "candidate" in used - bound:
        code.insert(0, collect.Statement(f"candidate = {entry_point}", counts=False))
        bound.add("candidate")
    own = _helpers(starter, entry)
    modules, imported = _imported(code)
    tested = used - bound - AMBIENT - own.keys() - {"_postrl_run"} | imported
    if entry:
        tested.add(entry)
    called = _called(code) & AMBIENT - bound - WRAPPERS
    tested = tested or called  # a data set's own `sum`
    helpers = _source(own) if own.keys() & used else ""
    marks = _Marks()
    return Suite(
        tests=tuple((marks.marked(each), each.counts) for each in code),
        tested=tuple(sorted(tested)),
        required=(entry,) if entry else tuple(sorted(tested)),
        constants=not entry,
        classes=tuple(sorted(name for name in tested if name[0].isupper() and "_" not in name)),
        helpers=helpers,
        given=tuple(collect.given_classes([*code, collect.Statement(helpers)])),
        modules=tuple(sorted(modules)),
        needs=tuple(sorted(_needs(code, starter))),
    )


def _needs(code: Sequence[collect.Statement], starter: str | None) -> set[str]:
    for source in (starter or "", f"{starter}\n    pass\n"):  # all of it, or the head of a function
        if starter and _is_code(source):
            features.check_installed(ast.parse(source))
    return features.needs(code)


def _imported(code: Iterable[collect.Statement]) -> tuple[set[str], set[str]]:
    """Modules under test, and the names that tests take from them: `from solution import add`, `solution.add`."""
    names: set[str] = set()
    modules: set[str] = set()
    known: dict[str, str] = {}
    nodes = [node for each in code for node in each.nodes]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in features.CANDIDATE:
            modules.add(node.module)
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            known |= {
                alias.asname or alias.name: alias.name for alias in node.names if alias.name in features.CANDIDATE
            }
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            names.add(node.attr)
    return modules | {*known.values()}, names - {"*"}


def _identifier(entry_point: str | None) -> str:
    """`Solution().two_sum` asks for `Solution`."""
    head = (entry_point or "").partition(".")[0].partition("(")[0].strip()
    return head if head.isidentifier() else ""


def _names(sources: Iterable[str]) -> tuple[set[str], set[str]]:
    """Names that the code reads from its module, and names that it binds there."""
    used: set[str] = set()
    bound: set[str] = set()
    tables = [symtable.symtable(source, "<tests>", "exec") for source in sources]
    while tables:
        table = tables.pop()
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if top or symbol.is_global():
                binds = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
                (bound if binds else used).add(symbol.get_name())
                if symbol.is_referenced():
                    used.add(symbol.get_name())
        tables += table.get_children()
    return used, bound


def _compiled(tests: Iterable[str]) -> None:
    """Raise NoSuite where a test is no code."""
    try:
        for test in tests:
            compile(test, "<tests>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoSuite(f"a test is not valid Python: {error}") from error


def _called(code: Iterable[collect.Statement]) -> set[str]:
    """Names that are called directly."""
    nodes = (node for each in code for node in each.nodes)
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def _helpers(starter: str | None, entry: str) -> dict[str, ast.stmt]:
    """The starter's definitions other than those to write, by name; nothing where it is no code by itself."""
    if not _is_code(starter or ""):
        return {}
    tree = ast.parse(starter or "")
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0]: node for alias in node.names}
        elif isinstance(node, collect.Function | ast.ClassDef) and node.name != entry and not _to_write(node):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


def _to_write(node: ast.stmt) -> bool:
    """Whether it is a function without a body, or a class with such a method: that is what a completion is to fill in."""
    return any(isinstance(each, collect.Function) and all(map(_is_nothing, each.body)) for each in ast.walk(node))


def _is_nothing(node: ast.stmt) -> bool:
    """A docstring, `...`, `pass`, `raise NotImplementedError`."""
    if isinstance(node, ast.Raise):
        return node.exc is not None and "NotImplementedError" in ast.unparse(node.exc)
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _is_code(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _source(definitions: dict[str, ast.stmt]) -> str:
    nodes = list(dict.fromkeys(definitions.values()))
    return "\n".join(ast.unparse(node) for node in nodes)


# -- assertions in loops and `with` --------------------------------------------------------------------------------------

SWALLOWS = ("raises", "suppress", "assertRaises", "assertRaisesRegex", "assertWarns", "warns")
"""Contexts of the tests that an exception is expected in."""


class _Marks(ast.NodeTransformer):
    """Puts statements into the tests that note that a loop or a `with` with assertions was reached and that these ran. A
    candidate that ends `while not queue.is_empty():` before its first round, or whose `__exit__` swallows its own
    exception, has not passed what is inside."""

    count = 0
    ends_early = False
    """Inside of a `with` that the tests may leave before its end."""

    def marked(self, test: collect.Statement) -> str:
        """The test with marks; itself where there is no assertion in a loop or a `with`."""
        if not any(
            isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith) for node in test.nodes
        ):
            return test.code
        first = self.count
        tree = self.visit(ast.parse(test.code))
        return test.code if first == self.count else ast.unparse(ast.fix_missing_locations(tree))

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.AST]:
        return self._block(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST | list[ast.AST]:
        return self._block(node)

    def visit_While(self, node: ast.While) -> ast.AST | list[ast.AST]:
        return self._block(node)

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.AST]:
        return self._context(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST | list[ast.AST]:
        return self._context(node)

    def _context(self, node: ast.With | ast.AsyncWith) -> ast.AST | list[ast.AST]:
        if not self.ends_early and not _may_end_early(node):
            return self._block(node)
        before, self.ends_early = self.ends_early, True
        self.generic_visit(node)
        self.ends_early = before
        return node

    def _block(self, node: ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith) -> ast.AST | list[ast.AST]:
        first = self.count
        node.body = self._with_marks(node.body)
        if first == self.count:
            return node
        return [_note(REACHED, range(first, self.count)), node]

    def _with_marks(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Only what every round comes to: not what stands under a condition or in a `try`."""
        marked: list[ast.stmt] = []
        for node in body:
            asserts = isinstance(node, ast.Assert) or _is_assertion(node)
            new = self.visit(node)
            marked += new if isinstance(new, list) else [new]
            if asserts:  # behind it: a value that cannot be had is no assertion that held
                marked.append(_note(RAN, range(self.count, self.count + 1)))
                self.count += 1
        return marked


def _may_end_early(node: ast.With | ast.AsyncWith) -> bool:
    """Whether the tests themselves leave the body before its end."""
    calls = [item.context_expr.func for item in node.items if isinstance(item.context_expr, ast.Call)]
    leaving = (ast.Raise, ast.Return, ast.Break, ast.Continue)
    return any(ast.unparse(call).rpartition(".")[2] in SWALLOWS for call in calls) or any(
        isinstance(each, leaving) or (isinstance(each, ast.Assert) and isinstance(each.test, ast.Constant))
        for each in ast.walk(node)
    )


def _is_assertion(node: ast.stmt) -> bool:
    """`self.assertEqual(...)`"""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).startswith("self.assert")


def _note(name: str, numbers: range) -> ast.stmt:
    return ast.parse(f"{name}.update({list(numbers)})").body[0]
