"""Right programs that a strict harness must not fail, and wrong ones that differ by a type or a sign."""

from __future__ import annotations

import pytest

from rewards.code.grading import grade, passes

IMPORTS = """
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
"""

VALUES = [
    "None", "True", "0", "-7", "10**5000", "-(10**400)", "1.5", "-0.0", "float('inf')", "1e-320", "3+4j", "''",
    "'héllo 😀'", "'\\ud800'", "'a\\x00b'", "b'\\x00\\xff'", "bytearray(b'ab')", "()", "(1,)", "((1, 2), [3])", "[]",
    "[1, [2, [3]]]", "{1: 'a', (2, 3): [4]}", "set()", "{(1, 2), 'x'}", "frozenset({1, frozenset({2})})", "range(3)",
    "range(10**30, 0, -3)", "slice(1, None, 2)", "...", "int", "[str, list]", "Counter('abca')", "OrderedDict(a=1)",
    "defaultdict(list, {1: [2]})", "deque([1, 2], 2)", "Decimal('1.10')", "Decimal('NaN').is_nan()", "Fraction(1, 3)",
    "date(2024, 2, 29)", "datetime(2024, 2, 29, 1, 2, 3, 4)", "datetime(2024, 1, 1, tzinfo=timezone.utc)",
    "timedelta(1, 2, 3)", "{'a': 1}.keys()", "{'a': 1}.items()", "[*range(10_000)]", "'x' * 1_000_000",
    "[[0] * 100 for _ in range(100)]",
]  # fmt: skip


def test_values_cross_as_they_are():
    program = IMPORTS + "VALUES = [" + ", ".join(VALUES) + "]\ndef value(i):\n    return VALUES[i]\n"
    tests = [
        f"{IMPORTS}x = value({i})\ny = {value}\nassert type(x) is type(y) and repr(x) == repr(y) and x == y, x"
        for i, value in enumerate(VALUES)
    ]
    score = grade(program, *tests, partial=True)
    assert score.value == 1.0


NEARLY = [
    ("(1, 2)", "[1, 2]"),
    ("1", "'1'"),
    ("b'a'", "'a'"),
    ("float('nan')", "float('nan')"),
    ("[1, 2]", "(1, 2)"),
    ("{1, 2}", "[1, 2]"),
    ("iter([1])", "[1]"),
    ("'a'", "'A'"),
    ("{'a': 1}", "[('a', 1)]"),
    ("None", "False"),
    ("...", "None"),
    ("type('int', (), {})", "int"),
    ("OrderedDict([(1, 1), (2, 2)])", "OrderedDict([(2, 2), (1, 1)])"),
    ("Decimal('0.1')", "0.1"),
]


def test_nearly_is_not_equal():
    program = IMPORTS + "def f(i):\n    return [" + ", ".join(returned for returned, _ in NEARLY) + "][i]\n"
    tests = [f"{IMPORTS}assert f({i}) == {expected}" for i, (_, expected) in enumerate(NEARLY)]
    assert grade(program, *tests, partial=True).value == 0.0


HONEST = {
    "identity of bools": ("def f(n):\n    return n > 3", "assert f(4) is True\nassert f(3) is False"),
    "none": ("def f():\n    pass", "assert f() is None"),
    "a sorted list in place": ("def f(xs):\n    xs.sort()", "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]"),
    "a nested list in place": (
        "def f(grid):\n    grid[1][0] = 9\n    grid.append([7])",
        "g = [[1], [2]]\nrow = g[1]\nassert f(g) is None\nassert g == [[1], [9], [7]] and g[1] is row",
    ),
    "a dict, a set and a deque in place": (
        "def f(d, s, q):\n    d['k'].add(1)\n    s.discard(2)\n    q.rotate(1)",
        "from collections import deque\nd, s, q = {'k': set()}, {2, 3}, deque([1, 2, 3])\nf(d, s, q)\n"
        "assert (d, s, q) == ({'k': {1}}, {3}, deque([3, 1, 2]))",
    ),
    "changed before it raised": (
        "def f(xs):\n    xs.append(1)\n    raise KeyError('x')",
        "x = []\ntry:\n    f(x)\nexcept KeyError as e:\n    assert e.args == ('x',)\nelse:\n    assert False\nassert x == [1]",
    ),
    "the same object comes back": ("def f(xs):\n    return xs", "x = [1]\nassert f(x) is x"),
    "shared and cyclic": (
        "def f():\n    a = [1]\n    a.append(a)\n    b = {}\n    return a, [b, b]",
        "a, (b, c) = f()\nassert a[1] is a and b is c",
    ),
    "an argument in itself": ("def f(a):\n    return a[0] is a", "a = []\na.append(a)\nassert f(a) is True"),
    "generator": ("def f(n):\n    while n:\n        yield n\n        n -= 1", "import types\ng = f(3)\n"
                  "assert isinstance(g, types.GeneratorType)\nassert next(g) == 3 and list(g) == [2, 1] and list(g) == []"),
    "generator that is sent to": ("def f():\n    x = yield 1\n    yield x * 2", "g = f()\nnext(g)\nassert g.send(4) == 8"),
    "endless generator": ("import itertools\ndef f():\n    return itertools.count(5)\ndef g():\n    n = 0\n    while True:\n"
                          "        yield n\n        n += 1",
                          "from itertools import islice\nassert list(islice(f(), 3)) == [5, 6, 7]\n"
                          "assert list(islice(g(), 2)) == [0, 1]"),
    "map, zip, filter": ("def f(xs):\n    return map(str, xs)\ndef g(a, b):\n    return zip(a, b)",
                         "assert list(f([1, 2])) == ['1', '2']\nassert dict(g('ab', [1, 2])) == {'a': 1, 'b': 2}"),
    "a generator handed back": ("def gen():\n    yield 1\n    yield 2\ndef total(xs):\n    return sum(xs)",
                                "assert total(gen()) == 3"),
    "callable argument": ("def f(g, x):\n    return g(g(x))", "assert f(lambda x: x + 3, 1) == 7\nassert f(abs, -1) == 1\n"
                          "assert f(str.upper, 'a') == 'A'"),
    "callable that changes its argument": ("def f(g):\n    x = [1]\n    g(x)\n    return x", "assert f(lambda x: x.append(2)) == [1, 2]"),
    "sort by a key of the tests": ("def f(xs, key):\n    return sorted(xs, key=key)",
                                   "assert f(['bb', 'a'], len) == ['a', 'bb']\nassert f([1, 2], lambda x: -x) == [2, 1]"),
    "class as argument": ("def f(xs, kind):\n    return [x for x in xs if isinstance(x, kind)]", "assert f([1, 'a'], int) == [1]"),
    "iterator argument": ("def f(xs):\n    return sum(xs) + len(list(xs))", "assert f(x * x for x in [1, 2]) == 5\nassert f(iter([1])) == 1"),
    "closure": ("def counter():\n    n = 0\n    def inc():\n        nonlocal n\n        n += 1\n        return n\n    return inc",
                "c = counter()\nassert c() == 1 and c() == 2 and counter()() == 1 and callable(c)"),
    "decorator of a function of the tests": (
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def g(*a, **k):\n        return 2 * f(*a, **k)\n    return g",
        "@twice\ndef add(a, b=1):\n    return a + b\nassert add(1) == 4 and add(1, b=2) == 6 and add.__name__ == 'add'",
    ),
    "memoised recursion through the tests": (
        "def memo(f):\n    cache = {}\n    def g(n):\n        if n not in cache:\n            cache[n] = f(n)\n        return cache[n]\n    return g",
        "@memo\ndef fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nassert fib(15) == 610",
    ),
    "state of an object": ("class Stack:\n    def __init__(self, *xs):\n        self.items = list(xs)\n    def push(self, x):\n        self.items.append(x)\n"
                           "    def pop(self):\n        return self.items.pop()\n    def __len__(self):\n        return len(self.items)\n"
                           "    def __contains__(self, x):\n        return x in self.items\n    def __iter__(self):\n        return iter(self.items)\n"
                           "    def __getitem__(self, i):\n        return self.items[i]\n    def __repr__(self):\n        return f'Stack({self.items})'",
                           "s = Stack(1)\ns.push(2)\nassert len(s) == 2 and 2 in s and 3 not in s and list(s) == [1, 2]\nassert s[-1] == 2 and s[:1] == [1]\n"
                           "assert repr(s) == 'Stack([1, 2])' and s.items == [1, 2] and isinstance(s, Stack) and not isinstance(3, Stack)\n"
                           "s.items = [5]\nassert s.pop() == 5 and not s and type(s).__name__ == 'Stack' and hasattr(s, 'push') and not hasattr(s, 'x')"),
    "equality and hash of a class": (
        "from dataclasses import dataclass\n@dataclass(frozen=True, order=True)\nclass P:\n    x: int\n    y: int = 0\ndef swap(p):\n    return P(p.y, p.x)",
        "assert P(1) == P(1, 0) and P(1) != P(2) and swap(P(1, 2)) == P(2, 1) and len({P(1), P(1), P(2)}) == 2\n"
        "assert sorted([P(2), P(1)])[0] == P(1) and P(1) < P(2) and {P(1): 'a'}[P(1)] == 'a' and [P(1)] == [P(1)]",
    ),
    "arithmetic of a class": (
        "class Vec:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n    def __add__(self, o):\n        return Vec(self.x + o.x, self.y + o.y)\n"
        "    def __mul__(self, k):\n        return Vec(self.x * k, self.y * k) if not isinstance(k, Vec) else self.x * k.x + self.y * k.y\n"
        "    __rmul__ = __mul__\n    def __eq__(self, o):\n        return (self.x, self.y) == (o.x, o.y)\n    def __abs__(self):\n        return (self.x ** 2 + self.y ** 2) ** 0.5\n"
        "    def __neg__(self):\n        return Vec(-self.x, -self.y)\n    def __str__(self):\n        return f'<{self.x}, {self.y}>'",
        "a, b = Vec(1, 2), Vec(3, 4)\nassert a + b == Vec(4, 6) and a * 2 == Vec(2, 4) and 2 * a == Vec(2, 4) and a * b == 11\n"
        "assert abs(b) == 5.0 and -a == Vec(-1, -2) and str(a) == '<1, 2>' and f'{a * 3}' == '<3, 6>' and (a * 2).x == 2\na += b\nassert a == Vec(4, 6)",
    ),
    "class methods, properties, class attributes": (
        "class A:\n    count = 0\n    def __init__(self, n):\n        self.n = n\n        A.count += 1\n    @classmethod\n    def of(cls, text):\n        return cls(int(text))\n"
        "    @staticmethod\n    def twice(x):\n        return 2 * x\n    @property\n    def double(self):\n        return 2 * self.n\nclass B(A):\n    pass",
        "assert A.of('3').double == 6 and A.twice(4) == 8 and A.count == 1 and issubclass(B, A) and isinstance(B(1), A)",
    ),
    "linked list": ("class Node:\n    def __init__(self, v, next=None):\n        self.v, self.next = v, next\ndef rev(n):\n    p = None\n    while n:\n        n.next, p, n = p, n, n.next\n    return p",
                    "n = rev(Node(1, Node(2)))\nassert n.v == 2 and n.next.v == 1 and n.next.next is None and n.next is n.next"),
    "a class of the tests": ("def depth(t):\n    return 0 if t is None else 1 + max(depth(t.left), depth(t.right))\ndef flip(t):\n    t.left, t.right = t.right, t.left",
                             "class Tree:\n    def __init__(self, left=None, right=None):\n        self.left, self.right = left, right\nt = Tree(Tree(Tree()))\n"
                             "assert depth(t) == 3\nflip(t)\nassert t.left is None and depth(t.right) == 2"),
    "enum": ("import enum\nclass C(enum.Enum):\n    RED = 1\ndef f():\n    return C.RED", "assert f() == C.RED and f() is C.RED and f().value == 1 and C(1) is C.RED"),
    "namedtuple": ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f():\n    return P(1, 2)", "assert f() == (1, 2) and f().x == 1 and P(1, 2) == f()"),
    "context manager": ("import contextlib\nlog = []\n@contextlib.contextmanager\ndef f():\n    yield 5\n    log.append('out')",
                        "with f() as x:\n    assert x == 5 and log == []\nassert True"),
    "suppressing": ("class Quiet:\n    def __enter__(self):\n        return self\n    def __exit__(self, kind, error, trace):\n        return kind is ValueError", "with Quiet():\n    int('x')\nassert True"),
    "raises": ("class Own(ValueError):\n    def __init__(self, code):\n        super().__init__(f'code {code}')\n        self.code = code\ndef f(x):\n    raise Own(x)",
               "try:\n    f(3)\nexcept Own as e:\n    assert e.code == 3 and str(e) == 'code 3' and isinstance(e, ValueError)\nelse:\n    assert False\n"
               "try:\n    f(3)\nexcept ValueError:\n    pass"),
    "raises what python raises": ("def f(x):\n    return {}[x]\ndef g():\n    return 'é'.encode('ascii')\ndef h():\n    return 1 / 0",
                                  "for call, kind in [(lambda: f(1), KeyError), (g, UnicodeEncodeError), (h, ZeroDivisionError)]:\n"
                                  "    try:\n        call()\n    except kind:\n        continue\n    raise RuntimeError\nassert True"),
    "an exception of the tests goes through": ("def retry(f):\n    for _ in range(2):\n        try:\n            return f()\n        except KeyError:\n            pass\n    return f()",
                                               "class Own(Exception):\n    pass\ncalls = []\ndef f():\n    calls.append(1)\n    raise KeyError if len(calls) < 2 else Own('x')\n"
                                               "try:\n    retry(f)\nexcept Own as e:\n    assert e.args == ('x',) and len(calls) == 2\nelse:\n    assert False"),
    "coroutine": ("import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1\nasync def g():\n    yield 1\n    yield 2",
                  "import asyncio\nassert asyncio.run(f(1)) == 2\nasync def main():\n    return [x async for x in g()] + list(await asyncio.gather(f(1), f(2)))\nassert asyncio.run(main()) == [1, 2, 2, 3]"),
    "deep recursion": ("import sys\nsys.setrecursionlimit(20000)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)", "assert f(9000) == 9000"),
    "annotations without imports": ("def f(xs: List[int]) -> Optional[int]:\n    return reduce(lambda a, b: a + b, xs)\n@dataclass\nclass P:\n    x: int", "assert f([1, 2]) == 3\nassert P(1).x == 1"),
    "a name of the prelude that it defines itself": ("def gcd(a, b):\n    return 'mine'\ndef f():\n    return gcd(1, 2)", "assert f() == 'mine'"),
    "pow with three arguments": ("from math import *\ndel pow\ndef f():\n    return pow(2, 10, 1000)", "assert f() == 24"),
    "solution class for a plain call": ("class Solution:\n    def add(self, a, b):\n        return a + b", "assert add(1, 2) == 3"),
    "solution class": ("class Solution:\n    def twoSum(self, nums: List[int], t: int) -> List[int]:\n        return [0, 1]", "assert Solution().twoSum([2, 7], 9) == [0, 1]"),
    "the main guard does not run": ("def f():\n    return __name__\nif __name__ == '__main__':\n    f = input()", "assert f() != '__main__'"),
    "input at import would fail, prints do not": ("print('x' * 2_000_000)\ndef f():\n    print('y')\n    return 1", "assert f() == 1"),
    "numpy results": ("import numpy as np\ndef f():\n    return np.float64(1.5), np.int64(2), np.bool_(True), np.arange(3)",
                      "import numpy as np\na, b, c, d = f()\nassert abs(a - 1.5) < 1e-9 and b == 2 and c and (d == [0, 1, 2]).all() and np.allclose(d, [0, 1, 2])"),
    "numpy without an import": ("def f(xs):\n    return np.array(xs).sum()", "assert f([1, 2]) == 3"),
    "a constant": ("LIMIT = 5\ndef f():\n    return LIMIT", "assert LIMIT == 5 and f() == 5"),
    "round, len, sorted, tuple of results": ("def f():\n    return [3.14159, 2]", "assert round(f()[0], 2) == 3.14 and len(f()) == 2 and sorted(f()) == [2, 3.14159] and tuple(f()) == (3.14159, 2)"),
    "tests that print": ("def f():\n    return 1", "print('x' * 100000)\nassert f() == 1"),
    "a default factory": ("from collections import defaultdict\ndef f():\n    return defaultdict(lambda: 7)", "assert f()['x'] == 7"),
    "a loop over its items": ("def f():\n    return [1, 2]", "for x in f():\n    assert x > 0"),
    "re.Match": ("import re\ndef f(s):\n    return re.match('(a+)', s)", "assert f('aab').group(1) == 'aa' and f('b') is None"),
    "docstring and name": (
        'def f(x: int = 3) -> int:\n    """Adds one."""\n    return x + 1',
        "assert f.__doc__ == 'Adds one.' and f.__name__ == 'f' and f.__defaults__ == (3,) and f() == 4",
    ),
    "threads that call functions of the tests": (
        "from concurrent.futures import ThreadPoolExecutor\ndef f(g, xs):\n    with ThreadPoolExecutor(4) as pool:\n        return list(pool.map(g, xs))",
        "assert f(lambda x: x * x, range(40)) == [x * x for x in range(40)]",
    ),
    "threads of the tests": (
        "n = 0\ndef f(x):\n    global n\n    n += 1\n    return [x] * 100",
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as pool:\n    assert list(pool.map(f, range(40))) == [[x] * 100 for x in range(40)]\nassert f(1)",
    ),
    "a copy": ("class A:\n    def __init__(self):\n        self.x = [1]", "import copy\na = A()\nb = copy.deepcopy(a)\nb.x = 2\nassert a.x == [1] and copy.copy(a).x == [1]"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HONEST)
def test_honest_programs_pass(kind):
    program, test = HONEST[kind]
    assert grade(program, test).status == "correct"


def test_hidden_tests_count():
    table = "def square(n):\n    return {3: 9}[n]"
    assert passes(table, "assert square(3) == 9")
    assert not passes(table, "assert square(3) == 9", hidden_tests=["assert square(4) == 16"])


def test_helpers_of_the_starter_are_not_the_candidates():
    starter = 'def encode(s):\n    return s[::-1]\n\ndef decode(s):\n    """Undo encode."""\n'
    test = "assert decode(encode('ab')) == 'ab' and encode('ab') == 'ba'"
    row = {"entry_point": "decode", "starter": starter}
    assert passes("def decode(s):\n    return encode(s)", test, **row)
    assert not passes("def encode(s):\n    return s\ndef decode(s):\n    return s", test, **row)


def test_partial_credit_is_the_share_of_tests():
    program = "def f(n):\n    return n if n < 3 else 1 / 0"
    tests = ["import math", "assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3", "assert f(0) == 0"]
    assert grade(program, *tests, partial=True).value == 0.75
    assert grade(program, *tests).value == 0.0
    assert grade("def f(n):\n    return 1", "assert True", "assert True", partial=True, entry_point="f").value == 0.0
    assert (
        grade(
            "import os\ndef f(n):\n    os._exit(0) if n else 0\n    return 0",
            "assert f(0) == 0",
            "assert f(1) == 1",
            partial=True,
        ).value
        == 0.5
    )
