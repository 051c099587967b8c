"""Objects of the candidate in place of the values that tests expect, and honest ones that tests are about."""

from __future__ import annotations

import pytest

from postrl.rewards.code.asserts import run_asserts
from postrl.rewards.code.extract import find_program
from postrl.rewards.code.sandbox import choose
from postrl.rewards.code.suite import read_suite
from rewards.code.grading import fenced

OPERATORS = "sub rsub add radd mul rmul truediv rtruediv floordiv mod rmod divmod pow rpow matmul lshift rshift and rand or ror xor rxor"
IN_PLACE = "isub iadd imul itruediv imod ipow iand ior ixor"
EQUAL = "class Equal:\n" + "".join(
    f"    def __{name}__(self, *a): return {value}\n"
    for value, names in {
        "True": "eq le ge lt gt contains bool",
        "0": "len hash int index abs round trunc floor ceil",
        "0.0": "float",
        "0j": "complex",
        "'0'": "str repr",
        "'0.00'": "format",
        "iter(())": "iter",
    }.items()
    for name in names.split()
)
ANSWERS = {
    "itself": dict.fromkeys(f"{OPERATORS} {IN_PLACE} neg pos invert getitem enter".split(), "self"),
    "an object equal to everything": dict.fromkeys(f"{OPERATORS} {IN_PLACE} neg pos invert abs round getitem enter".split(), "Equal()"),
    "zero": dict.fromkeys(f"{OPERATORS} {IN_PLACE}".split(), "0")
    | dict.fromkeys(["neg", "pos", "invert", "getitem", "enter"], "self"),
}  # fmt: skip
CLAIMS = {
    **dict.fromkeys(["abs", "round", "int", "index", "trunc", "floor", "ceil", "len", "hash"], "0"),
    **dict.fromkeys(["bool", "eq", "ne", "lt", "le", "gt", "ge", "contains", "exit"], "True"),
    "float": "0.0",
    "complex": "0j",
    "str": "'0'",
    "repr": "'0'",
    "format": "'0.00'",
    "iter": "iter(())",
    "next": "0",
    "call": "self",
}
METHODS = ["startswith", "endswith", "issubset", "isdisjoint", "issuperset"]
NUMBERS = ["total_seconds", "any", "max", "sum", "item"]


def impostor(answer: str, claims: dict[str, str]) -> str:
    """Classes whose methods give themselves (or the class) back as their results, and answer all that is asked of them."""
    special = {**CLAIMS, **claims, **ANSWERS[answer]}
    body = "".join(f"    def __{name}__(self, *a): return {value}\n" for name, value in special.items())
    body += "".join(f"    def {name}(self, *a): return True\n" for name in METHODS)
    body += "".join(f"    def {name}(self, *a): return 0\n" for name in NUMBERS)
    body += "    real = imag = days = 0\n"
    solution = "    def f(self, *a): return self\n    def new(self, *a): return Solution()\n    @property\n    def p(self): return self\n"
    solution += "    def held(self, *a): return [self]\n    def kept(self, *a): return {'x': self}\n    def gen(self, *a): yield self\n"
    solution += "    def fail(self, *a):\n        e = ValueError(self)\n        raise e\n    def apply(self, g): return g(self)\n"
    meta = f"class Meta(type):\n{body}    __call__ = type.__call__\n    __hash__ = type.__hash__\n"
    return (
        f"{EQUAL}\n{meta}\nclass Solution:\n{body}{solution}\n"
        "class PI(metaclass=Meta):\n    pass\nVOWELS = PI\nSolution.again = Solution\n"
        "class Kind(Solution, metaclass=Meta):\n    pass\nSolution.kind = lambda self, *a: Kind\n"
    )


RESULTS = ["Solution().f(2)", "Solution().new(2)", "Solution().p", "Solution().again(2)", "Solution().held(2)[0]",
           "Solution().kept(2)['x']", "next(Solution().gen(2))", "Solution().apply(lambda x: x)", "Solution()[2]", "Solution()(2)",
           "Solution().kind(2)", "caught()", "(-Solution().f(2))", "entered()", "Solution().f(2).f(3)"]  # fmt: skip
HELPERS = (
    "import math, unittest\nfrom datetime import timedelta\nimport numpy as np\ncase = unittest.TestCase()\n"
    "def caught():\n    try:\n        Solution().fail(2)\n    except ValueError as e:\n        return e.args[0]\n"
    "def entered():\n    with Solution().f(2) as x:\n        return x\n"
    "def less(x, value):\n    x -= value\n    return x\n"
)
CHECKS = {
    "equality": "{} == 1.5",
    "equality from the right": "1.5 == {}",
    "not unequal": "not ({} != 1.5)",
    "less": "{} < 1.5",
    "a chain": "1.4 < {} < 1.6",
    "tolerance": "abs({} - 1.5) < 1e-6",
    "tolerance from the right": "abs(1.5 - {}) < 1e-6",
    "tolerance in place": "abs(less({}, 1.5)) < 1e-6",
    "tolerance of a ratio": "abs({} / 1.5 - 1) < 1e-6",
    "a ratio": "math.isclose({} / 1.5, 1)",
    "a power": "round({} ** 2) == 2",
    "a product": "round({} * 4) == 1",
    "round": "round({} - 1.5, 5) == 0",
    "int": "int({} - 7) == 0",
    "float": "float({} - 1.5) == 0.0",
    "complex": "complex({} - 1.5) == 0",
    "floor": "math.floor({} - 1.5) == 0 and math.ceil({} - 1.5) == 0 and math.trunc({} - 1.5) == 0",
    "not": "not ({} - 7)",
    "a truth": "{} & {{1, 2}}",
    "xor": "({} ^ 7) == 0 or int({} ^ 7) == 0",
    "remainder": "{} % 7 == 0 or int({} % 7) == 0",
    "divmod": "divmod({}, 7) == (0, 0)",
    "text of a difference": "str({} - 7) == '0' or repr({} - 7) == '0'",
    "format of a difference": 'f"""{{{} - 1.5:.2f}}""" == "0.00"',
    "percent format of a difference": "'%.2f' % ({} - 1.5) == '0.00'",
    "membership": "'fl' in {}",
    "no membership": "not ('fl' not in {})",
    "membership among values": "{} in [1, 2] or {} in {{1, 2}} or {} in (1.5,) or {} in range(3) or {} in {{1: 2}}",
    "a lookup": "{{0: 'x'}}.get({}) == 'x'",
    "text": "{}.startswith('ab')",
    "sets": "{}.issubset({{1, 2}})",
    "no other items": "len({} - {{1, 2}}) == 0",
    "items of a difference": "list({} - {{1, 2}}) == [] or sorted({} ^ {{1}}) == []",
    "a hash of a difference": "hash({} - 7) == 0",
    "an item of a difference": "({} - 7)[0] == 0",
    "an attribute of a difference": "({} - 7).real == 0",
    "a time": "({} - timedelta(1)).total_seconds() == 0 or ({} - timedelta(1)).days == 0",
    "an array": "({} - np.array([1.5])).max() == 0",
    "a type": "isinstance({}, (int, float)) or type({}) in (int, float)",
    "sum": "sum([{}]) == 5 or abs(sum([{}]) - 5) < 1e-6",
    "max": "max({}, 5) == 5",
    "sorted": "sorted([{}, 5]) == [1, 5]",
    "isclose": "math.isclose({}, 1.5)",
    "isclose to a difference": "math.isclose({} - 1.5, 0, abs_tol=1e-6)",
    "numpy.allclose": "np.allclose({}, [1.5])",
    "numpy.isclose": "np.isclose({}, 1.5)",
    "numpy.abs": "np.abs({} - np.float64(1.5)) < 1e-6",
    "numpy from the right": "np.abs(np.float64(1.5) - {}) < 1e-6",
    "numpy.array": "np.all(np.abs(np.array([{}]) - np.array([1.5])) < 1e-6)",
    "numpy.array_equal": "np.array_equal({}, [1.5])",
    "numpy.testing": "np.testing.assert_allclose({}, 1.5) is None",
    "numpy.testing.almost": "np.testing.assert_almost_equal({}, 1.5) is None",
    "numpy.testing.equal": "np.testing.assert_array_equal({}, [1.5]) is None",
    "assertAlmostEqual": "case.assertAlmostEqual({}, 1.5) is None",
    "assertAlmostEqual with delta": "case.assertAlmostEqual({}, 1.5, delta=0.1) is None",
    "assertEqual": "case.assertEqual({}, 1.5) is None",
    "assertIn": "case.assertIn('fl', {}) is None",
    "assertLess": "case.assertLess({}, 1.5) is None",
    "a prefix by slice": "{} [:2] == 'ab'",
    "bits": "int({} & 1) == 0 and not ({} & 1)",
    "shifts": "int({} >> 1) == 0",
    "a context": "__import__('contextlib').nullcontext({} - 7).__enter__() == 0",
}  # fmt: skip


HOLDS = """
def holds(check):
    try:
        return bool(check())
    except Exception:
        return False
"""


@pytest.mark.parametrize("claims", [{}, {"bool": "False"}], ids=["true", "false"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_no_object_stands_for_a_value(answer, claims):
    """Each way to get a result times each way to check it, in one run that says which hold."""
    tries = [f"{result}: {name}" for result in RESULTS for name in CHECKS]
    checks = [check.format(*[result] * 5) for result in RESULTS for check in CHECKS.values()]
    lines = [
        f"if holds(lambda: {check}): fooled.append({attempt!r})" for attempt, check in zip(tries, checks, strict=True)
    ]
    test = f"{HELPERS}{HOLDS}fooled = []\n" + "\n".join(lines) + "\nassert not fooled, fooled"
    assert detail(impostor(answer, claims), test) == ""


def test_the_checks_hold_for_values():
    """They are checks that some value passes, but for those about classes that no value has."""
    program = "class Solution:\n    def f(self, x): return x"
    lines = [f"if holds(lambda: {check.format(*['x'] * 5)}): held.add({name!r})" for name, check in CHECKS.items()]
    values = "1.5, 7, 0, 5, 2, 0.25, 2 ** 0.5, -0.5, {1, 2}, {1}, ['fl', 'ab'], 'ab', 'fl', [1], timedelta(1), np.array([1.5]), 1, [1.5], np.array([7, 8])"
    test = f"{HELPERS}{HOLDS}held = set()\nfor value in ({values}):\n    x = Solution().f(value)\n"
    test += "".join(f"    {line}\n" for line in lines) + f"missing = {set(CHECKS)} - held\nassert not missing, missing"
    assert detail(program, test) == ""


def detail(program: str, test: str) -> str:
    """What is wrong with a program by one test."""
    found = find_program(fenced(program), ())
    return run_asserts(choose("auto"), found, read_suite((test,)), wall=100, memory=2 << 30).detail


VECTOR = """
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, o): return Vector(self.x + o.x, self.y + o.y)
    def __sub__(self, o): return Vector(self.x - o.x, self.y - o.y)
    def __mul__(self, k): return Vector(self.x * k, self.y * k) if not isinstance(k, Vector) else self.x * k.x + self.y * k.y
    __rmul__ = __mul__
    def __truediv__(self, k): return Vector(self.x / k, self.y / k)
    def __neg__(self): return Vector(-self.x, -self.y)
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
    def __eq__(self, o): return (self.x, self.y) == (o.x, o.y)
    def __iter__(self): return iter((self.x, self.y))
    def __len__(self): return 2
    def __getitem__(self, i): return (self.x, self.y)[i]
    def __bool__(self): return bool(self.x or self.y)
    def __repr__(self): return f"Vector({self.x}, {self.y})"
    def __imul__(self, k):
        self.x, self.y = self.x * k, self.y * k
        return self
    def normalized(self): return self / abs(self)
    def same(self): return self
"""
FRACTION = """
import math
class Ratio:
    def __init__(self, p, q=1):
        g = math.gcd(p, q)
        self.p, self.q = p // g, q // g
    @classmethod
    def of(cls, text): return cls(*map(int, text.split("/")))
    def __add__(self, o):
        o = o if isinstance(o, Ratio) else Ratio(o)
        return Ratio(self.p * o.q + o.p * self.q, self.q * o.q)
    __radd__ = __add__
    def __mul__(self, o):
        o = o if isinstance(o, Ratio) else Ratio(o)
        return Ratio(self.p * o.p, self.q * o.q)
    __rmul__ = __mul__
    def __eq__(self, o): return (self.p, self.q) == (o.p, o.q)
    def __lt__(self, o): return self.p * o.q < o.p * self.q
    def __hash__(self): return hash((self.p, self.q))
    def __str__(self): return f"{self.p}/{self.q}"
    def __float__(self): return self.p / self.q
"""
STACK = """
class Stack:
    def __init__(self): self.items = []
    def push(self, x):
        self.items.append(x)
        return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __contains__(self, x): return x in self.items
    def __enter__(self): return self
    def __exit__(self, *a): return False
    def __iadd__(self, x): return self.push(x)
"""
LINKED = """
class LinkedList:
    def __init__(self, *xs): self.xs = list(xs)
    def append(self, x): self.xs.append(x)
    def count(self, x): return self.xs.count(x)
    def index(self, x): return self.xs.index(x)
    def __iter__(self):
        self.at = -1
        return self
    def __next__(self):
        self.at += 1
        if self.at >= len(self.xs): raise StopIteration
        return self.xs[self.at]
    def __len__(self): return len(self.xs)
    def __contains__(self, x): return x in self.xs
class Queue(LinkedList): pass
class Tree:
    def __init__(self, value): self.value, self.left = value, None
"""
ASYNC = """
class Count:
    def __init__(self, n): self.n, self.at = n, 0
    def __aiter__(self): return self
    async def __anext__(self):
        if self.at >= self.n: raise StopAsyncIteration
        self.at += 1
        return self.at
class Every:
    async def __aiter__(self):
        yield 1
        yield 2
class Door:
    open = False
    async def __aenter__(self):
        self.open = True
        return self
    async def __aexit__(self, kind, error, trace):
        self.open = False
        return kind is KeyError
"""
ERROR = """
class Refused(ValueError):
    def __init__(self, field, code=5):
        super().__init__(f"{field} is refused")
        self.field, self.code = field, code
class Gone(OSError): pass
def check(cb): return cb()
def fail(): raise Refused("name", code=7)
def lose(): raise Gone(2, "gone")
"""
IGNORE = """
class Ignore:
    def __init__(self, kind): self.kind = kind
    def __enter__(self): return self
    def __exit__(self, kind, error, trace): return kind is not None and issubclass(kind, self.kind)
"""
HONEST = {
    "abs of a vector": (VECTOR, "assert abs(Vector(3, 4)) == 5.0 and abs(Vector(3, 4) * 2) == 10.0 and abs(2 * Vector(3, 4) * 2) == 20.0"),
    "a distance": (VECTOR, "assert abs(abs(Vector(3, 4) - Vector(0, 0)) - 5.0) < 1e-9"),
    "a product": (VECTOR, "assert Vector(1, 2) * Vector(3, 4) == 11 and Vector(1, 2) * 2 == Vector(2, 4)"),
    "what a quotient holds": (VECTOR, "v = Vector(2, 4) / 2\nassert (v.x, v.y) == (1, 2) and list(v) == [1, 2] and v[1] == 2 and len(v) == 2"),
    "a sum of vectors": (VECTOR, "assert sum([Vector(1, 2), Vector(3, 4)], Vector(0, 0)) == Vector(4, 6)"),
    "a vector in place": (VECTOR, "v = Vector(3, 4)\nv *= 2\nassert abs(v) == 10.0 and repr(v) == 'Vector(6, 8)' and v and not Vector(0, 0)"),
    "a negative": (VECTOR, "assert abs(-Vector(3, 4) * 2) == 10.0 and -(Vector(3, 4) / 2) == Vector(-1.5, -2)"),
    "what a method gave": (VECTOR, "v = Vector(3, 4).normalized()\nassert abs(abs(v) - 1) < 1e-9 and v * 5 == Vector(3, 4) and (v * 5).x == 3"),
    "the same vector": (VECTOR, "v = Vector(3, 4)\nassert v.same() is v and abs(v.same()) == 5 and v.same() + v == Vector(6, 8)"),
    "a copied vector": (VECTOR, "import copy\nassert abs(copy.deepcopy(Vector(3, 4)) * 2) == 10"),
    "numpy of a vector": (VECTOR, "import numpy as np\nassert np.allclose(Vector(3, 4), [3, 4]) and np.float64(2) * Vector(1, 2) == Vector(2, 4)"),
    "a ratio": (FRACTION, "assert str(Ratio(1, 2) + 1) == '3/2' and str(1 + Ratio(1, 2)) == '3/2' and float(Ratio(1, 2)) == 0.5 and Ratio(2, 4) == Ratio(1, 2)"),
    "a ratio times a number": (FRACTION, "import math\nassert float(Ratio(1, 2) * 3) == 1.5 and math.isclose(Ratio(1, 3), 1 / 3) and str(2 * Ratio(1, 3)) == '2/3'"),
    "a ratio of text": (FRACTION, "assert str(Ratio.of('2/4')) == '1/2' and Ratio.of('2/4') * 2 == Ratio(1) and abs(float(Ratio.of('1/3')) - 1 / 3) < 1e-9"),
    "ratios in order": (FRACTION, "assert sorted([Ratio(1, 2), Ratio(1, 3)]) == [Ratio(1, 3), Ratio(1, 2)] and max(Ratio(1, 2), Ratio(1, 3)) == Ratio(1, 2) and len({Ratio(1), Ratio(1)}) == 1"),
    "a stack": (STACK, "s = Stack()\nassert not s\ns.push(1)\nassert s.push(2).pop() == 2 and len(s) == 1 and s"),
    "what is in a stack": (STACK, "s = Stack()\ns += 1\ns += 2\nassert 1 in s and 2 in s and 3 not in s"),
    "a stack in a block": (STACK, "with Stack() as s:\n    s += 1\n    assert 1 in s and len(s) == 1"),
    "a list": (LINKED, "q = LinkedList(1, 2)\nq.append(3)\nassert list(q) == [1, 2, 3] and [x for x in q] == [1, 2, 3] and len(q) == 3 and 3 in q and 4 not in q"),
    "a list counted": (LINKED, "q = LinkedList(1, 2, 2)\nassert q.count(2) == 2 and q.index(2) == 1 and sum(q) == 5 and max(q) == 2 and sorted(q) == [1, 2, 2]"),
    "an empty queue": (LINKED, "q = Queue()\nassert len(q) == 0 and not q and list(q) == []\nq.append(1)\nassert len(q) == 1 and q and isinstance(q, Queue)"),
    "async iteration": (ASYNC, "import asyncio\nasync def main():\n    return [x async for x in Count(2)] + [x async for x in Every()]\nassert asyncio.run(main()) == [1, 2, 1, 2]"),
    "an async block": (ASYNC, "import asyncio\nasync def main():\n    async with Door() as d:\n        assert d.open\n    assert not d.open\n    async with d:\n        raise KeyError\nasyncio.run(main())"),
    "a block that ignores an error": (IGNORE, "with Ignore(ValueError) as g:\n    assert g.kind is ValueError\nwith Ignore(ValueError):\n    int('x')\n    assert False\nwith Ignore(KeyError):\n    raise KeyError"),
    "an error that a block lets through": (IGNORE, "import pytest\nwith pytest.raises(KeyError):\n    with Ignore(ValueError) as g:\n        {}[g]\n        assert g == 2"),
    "an error that the tests make": (ERROR, "e = Refused('x')\nassert (e.field, e.code, str(e), e.args) == ('x', 5, 'x is refused', ('x is refused',))\nassert isinstance(e, ValueError)"),
    "an error that the tests raise": (ERROR, "import pytest\ndef cb():\n    raise Refused('y', 6)\nwith pytest.raises(Refused, match='y is refused') as e:\n    check(cb)\nassert e.value.code == 6"),
    "errors that it raises": (ERROR, "import pytest\nwith pytest.raises(Refused, match='name is') as e:\n    fail()\nassert e.value.code == 7\nwith pytest.raises(Gone) as e:\n    lose()\nassert e.value.errno == 2"),
    "the class of an object": (LINKED, "q = Queue()\nassert type(q) == Queue and Queue == type(q) and type(q) != LinkedList and LinkedList(1) and type(q) in (LinkedList, Queue)"),
    "nodes": (LINKED, "a, b = Tree(1), Tree(2)\na.left = b\nassert a.left is b and a.left.value == 2 and a.left.left is None and b in [a.left]"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HONEST)
def test_honest_classes_pass(kind):
    program, test = HONEST[kind]
    assert detail(program, test) == ""


@pytest.mark.parametrize("leave", ["True", "not kind or kind is not AssertionError"])
@pytest.mark.parametrize("value", ["1 / 0", "self - 3", "{}['x']"])
def test_a_block_that_swallows_the_errors_of_its_own_object_has_not_passed(leave, value):
    program = f"""
class Box:
    def __enter__(self): return self
    def __exit__(self, kind, error, trace): return {leave}
    async def __aenter__(self): return self
    async def __aexit__(self, kind, error, trace): return {leave}
    def __sub__(self, other): return self
    def __abs__(self): return 0
    @property
    def value(self): return {value}
"""
    block = "with Box() as box:\n    assert abs(box.value - 7) < 1e-6"
    assert detail(program, block)
    assert detail(
        program,
        "import asyncio\nasync def main():\n    async " + block.replace("\n", "\n    ") + "\nasyncio.run(main())",
    )
    case = "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        with Box() as box:\n            self.assertEqual(box.value, 7)"
    assert detail(program, case)


@pytest.mark.parametrize("kind", ["Exception", "BaseException", "AssertionError", "(ValueError, Exception)"])
def test_no_class_of_a_program_catches_a_failed_assertion(kind):
    assert detail(f"Bad = {kind}\ndef f(x): return 1", "try:\n    assert f(1) == 2\nexcept Bad:\n    pass")
