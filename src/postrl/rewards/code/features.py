"""What tests ask of the process they run in that is not the candidate's: served, or refused by name.

    needs(code)        # {"streams"}: what the candidate prints is the tests' output, what it reads their input

An ordinary harness runs tests and candidate in one process, and tests count on it: they capture output, patch `input`,
seed generators, write files. Such tests are read for what they use. What is not in the tables here works as it is.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache

from postrl.rewards.code import collect
from postrl.rewards.code.places import packages
from postrl.rewards.code.prelude import MODULES
from postrl.rewards.code.verdict import NoSuite

Nodes = Sequence[ast.AST]
CANDIDATE = frozenset({"solution", "main", "candidate", "submission", "your_module"})
"""Modules from which tests import what they test, unless such a one is installed."""
LIBRARIES = frozenset({"numpy"})
"""Beside the standard library. Objects of others do not cross between the processes."""
SERVED = {
    "builtins.input": "streams", "builtins.print": "print", "sys.stdin": "streams", "sys.stdout": "streams",
    "sys.stderr": "streams",
}  # fmt: skip
"""What tests may patch: what the candidate does with it is done in their process."""
LENT = frozenset({"random", "numpy.random", "secrets", "time", "math", "uuid", "getpass", "platform"})
"""Modules of which tests may patch functions: the candidate's are called in their process, patched or not."""
LENT_ALSO = frozenset({"os.path.exists", "os.path.isfile", "os.path.isdir", "os.listdir"})
NEEDS = {
    **dict.fromkeys(("contextlib.redirect_stdout", "contextlib.redirect_stderr", "capsys", "capfd"), "streams"),
    **dict.fromkeys(("sys.stdin", "sys.stdout", "sys.stderr", "builtins.input", "builtins.print"), "streams"),
    **{name: f"both {name}" for name in ("random.seed", "numpy.random.seed", "sys.setrecursionlimit")},
    **dict.fromkeys(("builtins.open", "tempfile", "pathlib", "shutil", "glob", "os", "sqlite3", "tmp_path"), "files"),
}
REFUSED = frozenset(
    """
    subprocess multiprocessing socket socketserver http.server importlib ctypes gc atexit tracemalloc inspect.signature
    inspect.getsource inspect.getsourcelines inspect.getfullargspec inspect.getmembers inspect.getdoc inspect.getmodule
    inspect.isfunction inspect.ismethod inspect.isclass inspect.iscoroutinefunction inspect.isgeneratorfunction
    os.environ os.getenv os.putenv os.chdir os.system os.popen os.fork os.kill sys.argv sys.modules sys.settrace
    logging.getLogger logging.StreamHandler doctest
    unittest.skipIf unittest.skipUnless unittest.expectedFailure pytest.mark.skipif pytest.mark.xfail
    pytest.mark.usefixtures unittest.mock.AsyncMock unittest.mock.PropertyMock unittest.mock.create_autospec
    unittest.mock.mock_open pytest.MonkeyPatch.context unittest.mock.patch.dict unittest.mock.patch.multiple unittest.mock.seal
    """.split()  # noqa: SIM905
)
"""Names that tests use about the candidate's process, or its objects, in ways that are not served."""
METHODS = frozenset({"assertLogs", "assertNoLogs", "assertWarns", "assertWarnsRegex", "skipTest"})
"""The same, as methods of a unittest.TestCase."""
PYTEST = {"raises", "approx", "fixture", "mark", "param", "fail", "CaptureFixture", "MonkeyPatch", "FixtureRequest"}
FIXTURES = {"capsys", "capfd", "tmp_path", "monkeypatch"}
RAISES = {"raises", "assertRaises", "assertRaisesRegex"}
NEVER_RAISED = {"AssertionError", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException"}
"""Of the candidate these are the end of it, or none that a test may take for its own."""
MOCKS = {"unittest.mock.Mock", "unittest.mock.MagicMock"}
MOCK_OPTIONS = {"return_value", "side_effect", "name"}
MOCK_PARTS = {
    "return_value",
    "side_effect",
    "called",
    "call_count",
    "call_args",
    "call_args_list",
    "mock_calls",
    "reset_mock",
}


def needs(code: Sequence[collect.Statement]) -> set[str]:
    """What tests share with the candidate: streams, print, files, `both FUNCTION`, `lend FUNCTION`; harness where they
    define tests.

    Raises:
        NoSuite: they use what is not served.
    """
    nodes = [node for each in code for node in each.nodes]
    uses = Uses(nodes)
    found = {"harness"} if "pytest" in _check_imports(nodes) or _check_fixtures(code) else set()
    for name in sorted(uses.names):
        parts = name.split(".")
        prefixes = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        if refused := sorted(prefixes & (REFUSED | METHODS)):
            raise NoSuite(f"tests that use {refused[0]}")
        if parts[0] == "pytest" and len(parts) > 1 and parts[1] not in PYTEST:
            raise NoSuite(f"tests that use {'.'.join(parts[:2])}")
        found |= {NEEDS[prefix] for prefix in prefixes & NEEDS.keys()}
    found |= set(_patched(nodes, uses))
    _check_mocks(nodes, uses)
    _check_expected(nodes)
    return found | ({"streams"} if "print" in found else set())


def check_installed(tree: ast.Module) -> None:
    """Raise NoSuite where code imports a module that programs do not have here."""
    for name in _imports(list(ast.walk(tree))):
        if not _is_installed(name):
            raise NoSuite(f"code that imports {name}, which is not installed")


AMBIENT = (
    {name: name for name in MODULES}
    | {"np": "numpy"}
    | {name: f"builtins.{name}" for name in ("open", "input", "print")}
)
"""What names mean that nothing defines."""


class Uses:
    """The names that code uses, with the modules that they come from."""

    def __init__(self, nodes: Nodes) -> None:
        self.aliases = dict(AMBIENT)
        for node in nodes:
            if isinstance(node, ast.Import):
                tops = {(name := alias.name.partition(".")[0]): name for alias in node.names if not alias.asname}
                self.aliases |= tops | {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.ImportFrom):
                self.aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        self.names = {name for node in nodes if (name := self.dotted(node))}
        self.names |= {arg.arg for node in nodes if isinstance(node, ast.arguments) for arg in node.args} & FIXTURES

    def dotted(self, node: ast.AST) -> str:
        """`mock.patch` as unittest.mock.patch; "" for what is no name of a module."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, "")
        if isinstance(node, ast.Attribute) and (owner := self.dotted(node.value)):
            return f"{owner}.{node.attr}"
        return node.attr if isinstance(node, ast.Attribute) and node.attr in METHODS else ""


def _check_imports(nodes: Nodes) -> set[str]:
    """All modules that the tests import."""
    found = _imports(nodes)
    for name in sorted(found - sys.stdlib_module_names - {"pytest"}):
        installed = _is_installed(name)
        if name in CANDIDATE and not installed:
            continue
        if not installed:
            raise NoSuite(f"tests that import {name}, which is not installed")
        if name not in LIBRARIES:
            raise NoSuite(f"tests that import {name}, whose objects do not cross between tests and program")
    return found


def _imports(nodes: Nodes) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


@lru_cache(512)
def _is_installed(name: str) -> bool:
    return name in sys.stdlib_module_names or importlib.machinery.PathFinder.find_spec(name, packages()) is not None


def _patched(nodes: Nodes, uses: Uses) -> Iterable[str]:
    """What serves the things that tests patch."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = uses.dotted(node.func)
        if name == "warnings.catch_warnings" and any(keyword.arg == "record" for keyword in node.keywords):
            raise NoSuite("tests that record warnings")
        is_fixture = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "monkeypatch"
        if is_fixture and ast.unparse(node.func) != "monkeypatch.setattr":
            raise NoSuite(f"tests that use {ast.unparse(node.func)}")
        if not is_fixture and name not in ("unittest.mock.patch", "unittest.mock.patch.object"):
            continue
        target = _target(node.args, uses)
        if target in SERVED:
            yield SERVED[target]
        elif target in LENT_ALSO or target.rpartition(".")[0] in LENT:
            yield f"lend {target}"
        else:
            raise NoSuite(f"tests that patch {target}")


def _target(arguments: Sequence[ast.expr], uses: Uses) -> str:
    texts = [node.value if isinstance(node, ast.Constant) else None for node in arguments[:2]]
    if texts and isinstance(texts[0], str):
        return texts[0]
    if len(texts) == 2 and isinstance(texts[1], str):
        return f"{uses.dotted(arguments[0]) or ast.unparse(arguments[0])}.{texts[1]}"
    return "what they do not name"


def _check_mocks(nodes: Nodes, uses: Uses) -> None:
    """Mocks may be functions that the candidate calls; as objects with attributes they do not cross."""
    mocks: set[str] = set()
    handed = False
    for node in nodes:
        if isinstance(node, ast.Call) and uses.dotted(node.func) in MOCKS:
            options = {keyword.arg for keyword in node.keywords}
            handed |= bool(node.args) or not options <= MOCK_OPTIONS
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and uses.dotted(node.value.func) in MOCKS:
            mocks |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in mocks:
            handed |= node.attr not in MOCK_PARTS and not node.attr.startswith("assert_")
    if handed:
        raise NoSuite("tests that hand over mock objects")


def _check_expected(nodes: Nodes) -> None:
    """Exceptions expected of the candidate that mean something else between the processes, or that it cannot know."""
    own = {node.name for node in nodes if isinstance(node, ast.ClassDef) and _ends(node.bases, ("Error", "Exception"))}
    own -= {name for node in nodes if isinstance(node, ast.Raise) and node.exc for name in _words(node.exc)}
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in RAISES and node.args:
            if found := _words(node.args[0]) & NEVER_RAISED:
                raise NoSuite(f"tests that expect {min(found)}")
            if _words(node.args[0]) & own:
                raise NoSuite("tests that expect an exception of their own")
        elif isinstance(node, ast.ExceptHandler) and node.type and _words(node.type) & own:
            raise NoSuite("tests that expect an exception of their own")


def _words(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def _ends(bases: Sequence[ast.expr], ends: tuple[str, ...]) -> bool:
    return any(ast.unparse(base).endswith(ends) for base in bases)


# -- fixtures ------------------------------------------------------------------------------------------------------------


def _check_fixtures(code: Sequence[collect.Statement]) -> bool:
    """Whether there are tests to collect. Each argument of one is a fixture that is known or a parameter."""
    cases = collect.test_cases(each.tree for each in code)
    found = [test for each in code for test in collect.tests_of(each.tree, cases)]
    functions = [node for each in code for node in each.nodes if isinstance(node, collect.Function)]
    fixtures = [node for node in functions if _fixture(node)]
    known = {*FIXTURES, *(node.name for node in fixtures)}
    for each in found:
        if not each.unittest:
            own = _parameters([*each.node.decorator_list, *(each.owner.decorator_list if each.owner else [])])
            _check_arguments(each.node, known if own is None else known | own, anything=own is None)
    for node in fixtures:
        _check_arguments(node, known)
    return bool(found)


def _check_arguments(node: collect.Function, known: set[str], *, anything: bool = False) -> None:
    mocks = sum(
        ast.unparse(each).partition("(")[0].split(".")[-1] in ("patch", "object") for each in node.decorator_list
    )
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    names = names[: len(names) - len(node.args.defaults)]
    for name in names[mocks + (names[:1] == ["self"]) :]:
        if name not in known and not anything:
            raise NoSuite(f"tests with the fixture {name}")


def _fixture(node: collect.Function) -> bool:
    for each in node.decorator_list:
        call = each.func if isinstance(each, ast.Call) else each
        if ast.unparse(call) in ("pytest.fixture", "fixture"):
            if isinstance(each, ast.Call) and any(keyword.arg in ("params", "name") for keyword in each.keywords):
                raise NoSuite("tests with fixtures that have parameters")
            return True
    return False


def _parameters(decorators: Sequence[ast.expr]) -> set[str] | None:
    """The arguments that a test is parametrized with; None where they are not written out."""
    names: set[str] = set()
    for each in decorators:
        if not isinstance(each, ast.Call) or not ast.unparse(each.func).endswith("mark.parametrize") or not each.args:
            continue
        if any(keyword.arg == "indirect" for keyword in each.keywords):
            raise NoSuite("tests with fixtures that have parameters")
        try:
            value = ast.literal_eval(each.args[0])
        except ValueError:
            return None
        names |= {name.strip() for name in (value.split(",") if isinstance(value, str) else value)}
    return names
