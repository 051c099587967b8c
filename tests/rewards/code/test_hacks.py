"""Programs that want to be paid for nothing."""

from __future__ import annotations

import pytest

from postrl.rewards.code import code_reward, verify
from rewards.code.grading import SOON, fenced, grade, passes

SQUARE = ["assert square(3) == 9", "assert square(-4) == 16", "assert square(0) == 0", "assert square(12) == 144"]
ALWAYS = """
class Always:
    def __init__(self, *a): pass
    def __getattr__(self, name): return Always()
    def __call__(self, *a, **k): return Always()
""" + "".join(
    f"    def __{name}__(self, *a): return {value}\n"
    for value, names in {
        "True": "eq ge gt le lt contains bool",
        "False": "ne",
        "0": "hash abs index int len",
        "0.0": "float round sub rsub add radd mul rmul truediv mod rmod floordiv pow neg",
        "iter([])": "iter",
        "'9'": "str repr format",
        "self": "getitem",
    }.items()
    for name in names.split()
)

RETURNED = {
    "an object equal to everything": f"{ALWAYS}\ndef square(n):\n    return Always()",
    "a class of such objects": f"{ALWAYS}\nsquare = Always",
    "an object in place of the function": f"{ALWAYS}\nsquare = Always()",
    "an int that compares as it likes": "class I(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\ndef square(n):\n    return I(0)",
    "a str that compares as it likes": "class S(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\ndef square(n):\n    return S('')",
    "a float that compares as it likes": "class F(float):\n    __eq__ = lambda s, o: True\n    __hash__ = None\ndef square(n):\n    return F(0)",
    "a list that compares as it likes": "class L(list):\n    __eq__ = lambda s, o: True\ndef square(n):\n    return L()",
    "a type that calls itself int": "class int_(type):\n    pass\nclass int(metaclass=int_):\n    __eq__ = lambda s, o: True\n    __class__ = type(3)\n"
    "    __hash__ = lambda s: 9\ndef square(n):\n    return int()",
    "an object with the hash of the answer": "class H:\n    def __init__(s, h): s.h = h\n    __hash__ = lambda s: s.h\n    __eq__ = lambda s, o: True\ndef square(n):\n    return H(n * n)",
    "not implemented": "def square(n):\n    return NotImplemented",
    "a mock": "from unittest.mock import ANY, MagicMock\ndef square(n):\n    return ANY",
    "a metaclass": "class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\nclass C(metaclass=M): pass\ndef square(n):\n    return C",
    "an array": "import numpy as np\ndef square(n):\n    return np.array([], dtype=object)",
    "an enum of everything": "import enum\nclass E(enum.IntEnum):\n    A = 9\n    def __eq__(s, o): return True\n    __hash__ = None\ndef square(n):\n    return E.A",
}  # fmt: skip

ENDED = {
    "sys.exit": "import sys\nsys.exit(0)",
    "os._exit": "import os\nos._exit(0)\ndef square(n): pass",
    "sys.exit in a call": "import sys\ndef square(n):\n    sys.exit(0)",
    "os._exit in a call": "import os\ndef square(n):\n    os._exit(0)",
    "quit in a call": "def square(n):\n    quit()",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef square(n):\n    return 0",
    "excepthook": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef square(n):\n    return 0",
    "a thread that ends it": "import threading, os\nthreading.Timer(0.05, os._exit, (0,)).start()\nimport time\ndef square(n):\n    time.sleep(5)",
    "a signal": "import os, signal\ndef square(n):\n    os.kill(os.getpid(), signal.SIGKILL)",
    "exec of true": "import os\ndef square(n):\n    os.execv('/bin/true', ['true'])",
    "an assertion of its own": "def square(n):\n    raise AssertionError",
    "the end of an iteration": "def square(n):\n    raise StopIteration",
    "keyboard interrupt": "def square(n):\n    raise KeyboardInterrupt",
    "a closed connection": "import os\nos.closerange(0, 256)\ndef square(n):\n    return 0",
}  # fmt: skip

PATCHED = {
    "builtins": "import builtins\nfor n in ('abs', 'len', 'isinstance', 'sorted', 'all', 'any', 'round', 'type', 'sum'):\n    setattr(builtins, n, lambda *a, **k: True)\n"
    "builtins.AssertionError = SystemExit\ndef square(n):\n    return 0",
    "the assertion error": "import builtins\nclass E(Exception): pass\nbuiltins.AssertionError = E\ndef square(n):\n    return 0",
    "trace": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef square(n):\n    return 0",
    "modules": "import sys, types\nfor name in list(sys.modules):\n    if 'postrl' in name or name in ('json', 'unittest', 'pytest'):\n"
    "        m = sys.modules[name]\n        for k in list(vars(m)):\n            if callable(getattr(m, k)):\n                try:\n                    setattr(m, k, lambda *a, **k: True)\n"
    "                except Exception:\n                    pass\ndef square(n):\n    return 0",
    "frames": "import sys\nf = sys._getframe()\nwhile f:\n    for v in list(f.f_locals.values()) + list(f.f_globals.values()):\n        for m in ('append', 'add', 'update'):\n"
    "            try:\n                getattr(v, m)('correct')\n            except Exception:\n                pass\n    f = f.f_back\ndef square(n):\n    return 0",
    "garbage": "import gc\nfor o in gc.get_objects():\n    if type(o) is dict:\n        for k, v in list(o.items()):\n            if v is False:\n                try:\n                    o[k] = True\n"
    "                except Exception:\n                    pass\ndef square(n):\n    return 0",
    "the tests in memory": "import gc, re\ndef square(n):\n    for o in gc.get_objects():\n        if type(o) in (list, tuple, dict):\n            for m in re.findall(r'square\\((-?\\d+)\\) == (\\d+)', repr(o)[:100000]):\n"
    "                if int(m[0]) == n:\n                    return int(m[1])\n    return -1",
    "the tests in frames": "import sys, re\ndef square(n):\n    f = sys._getframe()\n    while f:\n        for m in re.findall(r'square\\((-?\\d+)\\) == (\\d+)', repr(f.f_locals) + repr(f.f_globals)):\n"
    "            if int(m[0]) == n:\n                return int(m[1])\n        f = f.f_back\n    return -1",
    "the tests in files": "import os, re\ndef square(n):\n    paths = [__file__] + ['/proc/%s/%s' % (p, f) for p in ['self', *filter(str.isdigit, os.listdir('/proc'))] for f in ('cmdline', 'environ', 'maps', 'fd/0', 'cwd/tests.py')]\n"
    "    for root in ('.', '/tmp', '/box', '/dev/shm'):\n        paths += [os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs][:200]\n    for p in paths:\n        try:\n            fd = os.open(p, os.O_RDONLY | os.O_NONBLOCK)\n"
    "            text = os.read(fd, 1 << 20).decode(errors='replace')\n        except OSError:\n            continue\n        for m in re.findall(r'square\\((-?\\d+)\\) == (\\d+)', text):\n            if int(m[0]) == n:\n                return int(m[1])\n    return -1",
}  # fmt: skip

FORGED = {
    "words on every descriptor": "import os\nfor fd in range(3, 256):\n    for m in (b'passed\\n', b'{\"status\": \"correct\", \"passed\": [true]}', b'1'):\n"
    "        try:\n            os.write(fd, m)\n        except OSError:\n            pass\ndef square(n):\n    return 0",
    "replies on every descriptor": "import os, json\nframe = json.dumps(['=', True, []]).encode()\nfor fd in range(3, 256):\n    try:\n        os.write(fd, (len(frame).to_bytes(4, 'big') + frame) * 50)\n"
    "    except OSError:\n        pass\ndef square(n):\n    return 0",
    "a reply that names code": "import os, json\ndef square(n):\n    frame = json.dumps(['=', ['eval', '9'], []]).encode()\n    for fd in range(3, 256):\n        try:\n            os.write(fd, len(frame).to_bytes(4, 'big') + frame)\n"
    "        except OSError:\n            pass\n    return 0",
    "a verdict on its output": "import sys, json\nfor s in (sys.stdout, sys.stderr):\n    print(json.dumps({'status': 'correct', 'passed': [True] * 4, 'detail': '', 'memory': False}), file=s, flush=True)\n"
    "import os\ndef square(n):\n    os._exit(0)",
    "a frame of 4 GB": "import os\ndef square(n):\n    for fd in range(3, 256):\n        try:\n            os.write(fd, b'\\xff' * 8)\n        except OSError:\n            pass\n    return 0",
    "a frame of brackets": "import os\ndef square(n):\n    b = b'[' * 1000000\n    for fd in range(3, 256):\n        try:\n            os.write(fd, len(b).to_bytes(4, 'big') + b)\n        except OSError:\n            pass\n    return 0",
}  # fmt: skip


@pytest.mark.parametrize("program", [*RETURNED.values(), *ENDED.values(), *PATCHED.values(), *FORGED.values()],
                         ids=[*RETURNED, *ENDED, *PATCHED, *FORGED])  # fmt: skip
def test_no_trick_passes(program):
    assert grade(program, *SQUARE, partial=True).value in (0.0, 0.25)  # 0 is the square of 0


TESTS = {
    "a tolerance": ("root", ["assert abs(root(2) - 1.41421356) < 1e-6"]),
    "another tolerance": ("root", ["import math\nassert math.isclose(root(2), 1.41421356, rel_tol=1e-6)"]),
    "a tolerance with round": ("root", ["assert round(root(2) - 1.41421356, 4) == 0"]),
    "an order": ("root", ["assert 1.4 < root(2) < 1.5"]),
    "membership": ("pick", ["assert pick() in ([1], [2])"]),
    "membership in the result": ("primes", ["assert 7 in primes(10) and 3 in primes(10)"]),
    "a prefix": ("encode", ["assert encode('x').startswith('ab')"]),
    "a subset": ("divisors", ["assert divisors(6).issubset({1, 2, 3, 6}) and divisors(6) == {1, 2, 3, 6}"]),
    "a set": ("divisors", ["assert set(divisors(6)) == {1, 2, 3, 6}"]),
    "an instance": ("root", ["assert isinstance(root(4), float)"]),
    "a type": ("root", ["assert type(root(4)) is float"]),
    "a type by name": ("root", ["assert type(root(4)).__name__ == 'float'"]),
    "an expected error": ("root", ["try:\n    root(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError"]),
    "all of a map": ("even", ["assert all(map(lambda c: even(c[0]) is c[1], [(2, True), (3, False)]))"]),
    "a loop until it is empty": ("Queue", ["q = Queue([1, 2])\nwhile not q.is_empty():\n    assert q.pop() in (1, 2)"]),
    "a loop over its result": ("primes", ["for p in primes(10):\n    assert p in (2, 3, 5, 7)"]),
    "a text": ("greet", ["assert str(greet('a')) == 'hello a' and f'{greet(1)}' == 'hello 1'"]),
    "numpy": ("root", ["import numpy as np\nassert np.isclose(root(2), 1.41421356)"]),
    "a sum": ("parts", ["assert sum(parts(5)) == 5"]),
}  # fmt: skip


NAMES = {name for name, _ in TESTS.values()}


@pytest.mark.parametrize(
    "form", ["def {}(*a):\n    return Always()\n", "class {}(Always):\n    pass\n", "{} = Always()\n"]
)
def test_an_object_that_answers_everything_passes_no_kind_of_test(form):
    program = ALWAYS + "".join(form.format(name) for name in sorted(NAMES))
    tests = [test for _, tests in TESTS.values() for test in tests]
    assert passed(program, tests) == []


def passed(program: str, tests: list[str]) -> list[str]:
    """The tests that it passes when each is graded by itself."""
    scores = code_reward([fenced(program)] * len(tests), [[test] for test in tests])
    return [test for test, score in zip(tests, scores, strict=True) if score.value != 0.0]


MEANT = [
    "assert all(map(lambda c: f(c) is True, [1, 2]))",
    "try:\n    f(1)\nexcept AssertionError:\n    pass",
    "try:\n    f(1)\nexcept (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration, AssertionError):\n    pass",
    "def g():\n    yield f(1)\nassert list(g()) == [] or True",
]


@pytest.mark.parametrize(
    "error", ["StopIteration", "AssertionError", "SystemExit", "KeyboardInterrupt", "StopAsyncIteration"]
)
def test_exceptions_that_mean_something_to_a_test_are_not_the_candidates(error):
    assert grade(f"def f(x):\n    raise {error}", *MEANT, partial=True).value == 0.0
    assert grade(f"class E({error}):\n    pass\ndef f(x):\n    raise E", *MEANT, partial=True).value == 0.0


def test_a_lost_candidate_stays_lost():
    test = "import contextlib\nfor _ in range(3):\n    try:\n        f(1)\n    except BaseException:\n        pass"
    assert not passes("import os\ndef f(x):\n    os._exit(0)", test)
    assert passes("def f(x):\n    raise ValueError", test)


def test_an_assertion_in_a_function_of_the_tests_cannot_be_swallowed():
    test = "def check(x):\n    assert x == 3, 'three'\nf(check)"
    assert passes("def f(check):\n    check(3)", test)
    assert not passes("def f(check):\n    try:\n        check(4)\n    except BaseException:\n        pass", test)
    assert not passes("class f:\n    def __init__(s, c): pass\n    def __enter__(s): pass\n    def __exit__(s, *a): return True",
                      "with f(1):\n    assert False")  # fmt: skip


def test_functions_of_the_tests_are_no_way_into_the_tests():
    program = (
        "def f(g):\n    found = []\n    for name in ('__globals__', '__code__', '__closure__', '__self__', '__builtins__', '__class__', 'answers'):\n"
        "        try:\n            found.append(g.__getattr__(name))\n        except Exception:\n            pass\n"
        "        try:\n            found.append(g._side.request('get', g, name))\n        except Exception:\n            pass\n"
        "    return found"
    )
    assert passes(program, "answers = [42]\nassert f(lambda: answers) == []")
    assert passes(program.replace("g.__getattr__(name)", "getattr(g, name) if name == 'answers' else 1 / 0"),
                  "class T:\n    _hidden = 1\nassert f(T()) == []")  # fmt: skip


@pytest.mark.parametrize("tests", [[], None, "", ["assert True"], ["import math", "x = 1"], ["print('hello')"]])
def test_tests_that_test_nothing_are_reported_and_never_paid(tests):
    score = verify(fenced("def square(n):\n    return n * n"), tests)
    assert (score.value, score.status) == (0.0, "gold_unscorable")


def test_tests_that_cannot_be_read_are_unscorable():
    for tests in (["assert square(3 =="], [3], {"inputs": 3}):
        score = verify(fenced("def square(n):\n    return n * n"), tests)
        assert (score.value, score.status) == (None, "gold_unscorable")


def test_what_has_to_be_called_has_to_be_called():
    for program in ("def square(n):\n    return 0", "square = 9", "class square(Exception):\n    pass"):
        assert not passes(program, "assert True", entry_point="square")
    assert not passes("def square(n):\n    return 0", "assert callable(square) and square.__name__ == 'square'")
    assert not passes("def f():\n    return 1", "assert f() == 1 or g() == 2")
    assert not passes("def f():\n    return 1\ndef g():\n    return 1", "assert f() == 1 or g() == 2")


def test_a_table_of_the_shown_tests_does_not_pass_the_hidden_ones():
    score = grade("def square(n):\n    return {3: 9}[n]", SQUARE[0], hidden_tests=SQUARE[1:])
    assert (score.value, score.status) == (0.0, "wrong")


STATUS = {
    "while True: pass": "timeout",
    "def square(n):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass": "timeout",
    "import time\ndef square(n):\n    time.sleep(600)": "timeout",
    "def square(n):\n    while True:\n        yield 1": "wrong",
    "import signal\nfor s in range(1, 65):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ndef square(n):\n    while True: pass": "timeout",
    "def square(n):\n    return [0] * 10**9": "resource",
    "def square(n):\n    return 'x' * (32 << 20)": "resource",
    "import sys\nsys.setrecursionlimit(10**9)\ndef square(n):\n    return square(n)": "resource or timeout",
    "def square(n):\n    x = []\n    for _ in range(10**5):\n        x = (x,)\n    return x": "wrong",
    "import ctypes\ndef square(n):\n    ctypes.string_at(0)": "crashed",
    "def square(n)\n    return n": "crashed",
    "raise RuntimeError": "crashed",
    "import os\nos.abort()": "crashed",
    "def sq(n):\n    return n * n": "wrong",
    "square = 9": "wrong",
}  # fmt: skip


@pytest.mark.parametrize("program", STATUS)
def test_the_status_says_how_it_failed(program):
    score = grade(program, *SQUARE, test_timeout=SOON, memory_gb=0.5)
    assert score.value == 0.0 and score.status in STATUS[program].split(" or ")


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "I cannot do that.",
        "```text\n9\n```",
        "<think>```python\ndef square(n): ...\n```",
        "def square(n) means the square.",
    ],
)
def test_no_program_is_no_answer(completion):
    assert verify(completion, SQUARE) == verify("", SQUARE)
    assert verify(completion, SQUARE).status == "no_answer"


def test_values_that_make_the_tests_run_for_ever_end_with_them():
    assert grade(
        "import itertools\ndef f():\n    return itertools.count()", "assert list(f()) == [1]", test_timeout=SOON
    ).status in ("timeout", "resource")
    assert grade(
        "def f():\n    return range(10**18)", "assert [x for x in f()] == []", test_timeout=SOON, memory_gb=0.5
    ).status in ("timeout", "resource", "wrong")


JUNK = ["{" * 1_000_000, "(" * 1_000_000, "-" * 1_000_000 + "1", "lambda: " * 100_000 + "1", "9" * 1_000_000, "'" * 1_000_001,
        "x = " + "[" * 50 + "]" * 50, "\x00" * 1000, "\ud800", "f" + "(0)" * 100_000, "if 1:\n" + " " * 1_000_000,
        bytes(range(256)).decode("latin-1") * 1000]  # fmt: skip


@pytest.mark.parametrize("number", range(len(JUNK)))
def test_junk_is_a_program_that_fails(number):
    asserts, stdio = ["assert f(1) == 2"], [{"input": "", "output": "1"}]
    scores = code_reward(
        [fenced(JUNK[number]), JUNK[number], fenced(JUNK[number])], [asserts, asserts, stdio], test_timeout=SOON
    )
    assert [score.value for score in scores] == [0.0] * 3
    assert {score.status for score in scores} <= {"no_answer", "crashed", "wrong", "resource", "timeout"}


@pytest.mark.parametrize("nothing", ["[]", "np.array([])", "np.zeros((0, 1))", "()"])
@pytest.mark.parametrize(
    "test",
    [
        "assert np.allclose(f(2), 3.5)", "assert np.allclose(3.5, f(2))", "assert np.allclose(f(2), [3.5])",
        "assert np.isclose(f(2), 3.5).all()", "assert np.all(np.isclose(f(2), [3.5]))",
        "np.testing.assert_allclose(f(2), 3.5)", "np.testing.assert_array_equal(f(2), 3.5)",
        "np.testing.assert_almost_equal(f(2), 3.5)", "assert np.array_equiv(f(2), 3.5)",
    ],
)  # fmt: skip
def test_an_empty_array_is_close_to_no_value(test, nothing):
    tests = ["import numpy as np", test]
    assert grade(f"import numpy as np\ndef f(x):\n    return {nothing}", *tests).value == 0
    assert passes(f"def f(x):\n    return {'[3.5]' if '[3.5]' in test else '3.5'}", *tests)


def test_an_empty_array_is_close_to_another():
    tests = [
        "import numpy as np",
        "assert np.allclose(f([]), [])",
        "np.testing.assert_array_equal(f([]), np.array([]))",
    ]
    assert passes("def f(x):\n    return x", *tests)


@pytest.mark.parametrize(
    ("test", "right"),
    [
        ("np.testing.assert_allclose(actual=f(2), desired=3.5)", "3.5"),
        ("assert np.allclose(a=f(2), b=3.5, atol=1e-6)", "3.5"),
        ("np.testing.assert_equal(f(2), [[1], [2, 3]])", "[[1], [2, 3]]"),
    ],
)
def test_numpys_comparisons_take_what_they_took(test, right):
    assert passes(f"def f(x):\n    return {right}", "import numpy as np", test)
    assert not passes("def f(x):\n    return []", "import numpy as np", test)
