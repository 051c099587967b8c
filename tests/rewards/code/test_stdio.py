from __future__ import annotations

import pytest

from postrl.rewards.code import code_reward, verify
from rewards.code.grading import SOON, fenced, grade_script

SUM = [("2 3\n", "5\n"), ("-1 1\n", "0\n"), ("10 20\n", "30\n")]

RIGHT = {
    "input": "a, b = map(int, input().split())\nprint(a + b)",
    "a guard": "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
    "read": "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
    "lines of stdin": "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))",
    "readlines": "from sys import stdin\nprint(sum(map(int, stdin.readlines()[0].split())))",
    "buffer": "import sys\nsys.stdout.buffer.write(b'%d\\n' % sum(map(int, sys.stdin.buffer.read().split())))",
    "open(0)": "print(sum(map(int, open(0).read().split())))",
    "os.read": "import os\nos.write(1, str(sum(map(int, os.read(0, 100).split()))).encode())",
    "io": "import io, os\nprint(sum(map(int, io.BytesIO(os.read(0, os.fstat(0).st_size or 100)).read().split())))",
    "redefined input": "import sys\ninput = lambda: sys.stdin.readline().rstrip()\nprint(sum(map(int, input().split())))",
    "redefined print": "import sys\ndef print(*a):\n    sys.stdout.write(' '.join(map(str, a)) + '\\n')\nprint(sum(map(int, input().split())))",
    "exit": "print(sum(map(int, input().split())))\nexit()",
    "sys.exit(0)": "import sys\nprint(sum(map(int, input().split())))\nsys.exit(0)",
    "os._exit after a flush": "import os\nprint(sum(map(int, input().split())), flush=True)\nos._exit(0)",
    "end at the end of input": "try:\n    while True:\n        print(sum(map(int, input().split())))\nexcept EOFError:\n    pass",
    "errors on stderr": "import sys\nprint('debug', file=sys.stderr)\nprint(sum(map(int, input().split())))",
    "a thread with a large stack": "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(64 << 20)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n"
    "def main():\n    f(20000)\n    print(sum(map(int, input().split())))\nt = threading.Thread(target=main)\nt.start()\nt.join()",
    "names of the prelude": "def solve(xs: List[int]) -> int:\n    return reduce(add := (lambda a, b: a + b), xs)\nprint(solve(list(map(int, input().split()))))",
    "globals": "n = 0\ndef add(x):\n    global n\n    n += x\nfor x in input().split():\n    add(int(x))\nprint(n)",
    "asyncio": "import asyncio\nasync def main():\n    print(sum(map(int, input().split())))\nasyncio.run(main())",
    "a subfolder and a file": "import os\nos.mkdir('d')\nopen('d/f', 'w').write(input())\nprint(sum(map(int, open('d/f').read().split())))",
    "without a newline": "print(sum(map(int, input().split())), end='')",
    "an exit handler": "import atexit\natexit.register(lambda: print(sum(map(int, s.split()))))\ns = input()",
}  # fmt: skip


@pytest.mark.parametrize("kind", RIGHT)
def test_all_ways_of_reading_and_writing(kind):
    assert grade_script(RIGHT[kind], SUM[0], SUM[1]).status == "correct"


FAILED = {
    "constant": ("print(5)", "wrong"),
    "nothing": ("input()", "wrong"),
    "defined and not called": ("def solve():\n    print(sum(map(int, input().split())))", "wrong"),
    "more lines": ("print(sum(map(int, input().split())))\nprint(1)", "wrong"),
    "a late error": ("print(sum(map(int, input().split())))\nraise RuntimeError", "crashed"),
    "a late exit status": ("import sys\nprint(sum(map(int, input().split())))\nsys.exit(3)", "crashed"),
    "a late message": ("import sys\nprint(sum(map(int, input().split())))\nsys.exit('error')", "crashed"),
    "a signal": ("import os\nprint(sum(map(int, input().split())), flush=True)\nos.kill(os.getpid(), 9)", "crashed"),
    "syntax": ("print(", "crashed"),
    "one read too many": ("print(sum(map(int, input().split())))\ninput()", "crashed"),
    "expected files": ("import glob\nfor p in glob.glob('*') + glob.glob('../*') + glob.glob('/tmp/*') + glob.glob('/proc/*/fd/*'):\n    try:\n        print(open(p).read())\n"
                       "    except Exception:\n        pass", "wrong"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAILED)
def test_how_scripts_fail(kind):
    program, status = FAILED[kind]
    score = grade_script(program, *SUM)
    assert (score.value, score.status) == (0.0, status)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("while True: pass", "timeout"),
        ("import sys\nwhile True: sys.stdin.readline()", "timeout"),
        ("import time\nprint(5, flush=True)\ntime.sleep(600)", "timeout"),
        ("while True: print('x' * 4000)", "resource"),
        ("x = [0] * 10**9", "resource"),
    ],
)
def test_limits(program, status):
    assert grade_script(program, *SUM, test_timeout=SOON, memory_gb=0.5).status == status


def test_nothing_expected_is_met_by_nothing_only():
    assert grade_script("x = 1", ("1\n", "")).value == 1.0
    assert grade_script("raise ValueError", ("1\n", "")).value == 0.0
    assert grade_script("print(1)", ("1\n", "")).value == 0.0


def test_text_is_utf8_and_long_input_is_fed():
    assert grade_script("print(input()[::-1])", ("ü😀\n", "😀ü\n")).value == 1.0
    assert grade_script("import sys\nprint(len(sys.stdin.read()))", ("x" * 3_000_000, "3000000")).value == 1.0
    assert grade_script("print(5)", ("x" * 3_000_000, "5")).value == 1.0  # input that is not read
    assert grade_script("print('x' * 2_000_000)", ("", "x" * 2_000_000)).value == 1.0


def test_a_checker_decides_where_many_answers_are_right():
    def factors(given: str, printed: str, expected: str) -> bool:
        a, b = map(int, printed.split())
        return a * b == int(given) and a > 1 and b > 1

    assert grade_script("n = int(input())\nprint(n // 2, 2)", ("12\n", "3 4\n"), checker=factors).value == 1.0
    assert grade_script("print(12, 1)", ("12\n", "3 4\n"), checker=factors).value == 0.0
    assert grade_script("print('3 x 4')", ("12\n", "3 4\n"), checker=factors).status == "wrong"


def test_a_checker_may_be_named(tmp_path):
    (tmp_path / "check.py").write_text("def anything(given, printed, expected):\n    return True\n")
    assert grade_script("print(1)", ("12\n", "3 4\n"), checker=f"{tmp_path}/check.py:anything").value == 1.0


def test_partial_credit_and_hidden_tests():
    tests = [{"input": given, "output": expected} for given, expected in SUM]
    assert verify(fenced("print(5)"), tests[:1], "stdio").value == 1.0
    assert verify(fenced("print(5)"), tests[:1], "stdio", hidden_tests=tests[1:]).value == 0.0
    assert verify(fenced("print(5)"), tests[:1], hidden_tests=tests[1:2], partial=True).value == 0.5


def test_lists_of_lines_and_of_columns():
    assert verify("a = input()\nprint(a)\nprint(input())", [{"input": ["1", "2"], "output": ["1", "2"]}]).value == 1.0
    assert verify("print(input())", {"inputs": ["1", "2"], "outputs": ["1", "2"]}).value == 1.0


def test_each_completion_meets_the_tests_of_its_own_row_in_order():
    tests = [[{"input": "", "output": str(i)}] for i in range(6)]
    scores = code_reward([fenced(f"print({i if i % 2 else -1})") for i in range(6)], tests, ["stdio"] * 6)
    assert [score.value for score in scores] == [0.0, 1.0] * 3


def test_prose_is_no_answer():
    assert verify("I do not know.", [{"input": "", "output": "1"}], "stdio").status == "no_answer"
