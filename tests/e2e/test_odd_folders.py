"""A working folder full of files named like modules: a run there uses the reward and nothing else of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from e2e.runs import SMALL

pytestmark = pytest.mark.slow

MATH = '''
import math, pickle, random, subprocess, sys
from dataclasses import dataclass

from math_helpers import scale


@dataclass
class Weighed:
    value: float


def score(completions, completion_ids, **columns):
    """Needs Python's own math and random, its neighbour, its own class from a pickle, and a program beside it."""
    assert random.Random(0).random() and math.sqrt(4) == 2 and "PYTHONSAFEPATH" not in __import__("os").environ
    found = [Weighed(scale * sum(t % 7 for t in ids) / (7 * len(ids))) for ids in completion_ids]
    return [w.value for w in pickle.loads(pickle.dumps(found))]
'''
DECOYS = (
    "types",
    "random",
    "json",
    "torch",
    "numpy",
    "tokenizers",
    "sitecustomize",
    "conftest",
    "postrl",
    "accelerate",
)


@pytest.fixture(scope="module")
def decoyed(place, tmp_path_factory):
    """A workplace with decoys; each of them says so and ends who imports it."""
    there = place.copy(tmp_path_factory.mktemp("decoys") / "with decoys")
    for name in DECOYS:
        (there.folder / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the working folder was imported')\n")
    for name in ("wandb", "datasets", "transformers"):
        (there.folder / name).mkdir()
        (there.folder / name / "__init__.py").write_text(f"raise SystemExit('{name}/ was imported')\n")
    (there.folder / "math.py").write_text(MATH)
    (there.folder / "math_helpers.py").write_text("scale = 1.0\n")
    return there


def test_a_run_trains_with_a_reward_called_math_py_among_files_named_like_modules(decoyed):
    finished = decoyed.shell(f"postrl grpo {' '.join(SMALL)} --reward math.py:score --max-steps 2 --output-dir run")
    assert finished.code == 0, finished.err
    run = decoyed.run("run")
    assert run.steps() == [1, 2]
    assert run.metrics()[-1]["reward/mean"] > 0
    assert "was imported" not in finished.err + "".join(p.read_text() for p in run.path.glob("logs/*.log"))


def test_a_run_on_an_odd_machine_trains_and_says_what_is_odd(decoyed):
    """An ASCII terminal, a long TMPDIR, no home, few open files; settings with a mark and the line ends of Windows."""
    there = decoyed.folder
    (there / "großes.yaml").write_bytes("\ufeffsystem_prompt: Rechne größer →\r\nmax_steps: 1\r\n".encode())
    (there / "vorlage.jinja").write_bytes("\ufeff{% for m in messages %}«{{ m.content }}»{% endfor %}\r\n".encode())
    (there / "belohnung ü.py").write_text(
        "def score(completions, completion_ids, **rest):\n    print('größer →', completions)\n"
        "    open('gemerkt.txt', 'w').write('größer →')\n    return [float(len(set(ids))) for ids in completion_ids]\n",
        encoding="utf-8",
    )
    long = there / ("lang" * 20) / ("ü" * 20)
    long.mkdir(parents=True)
    finished = decoyed.shell(
        "ulimit -Sn 256; LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii HOME=/dev/null/home "
        f"TMPDIR='{long}' postrl grpo {' '.join(SMALL)} --config großes.yaml --chat-template vorlage.jinja "
        "--reward './belohnung ü.py:score' --output-dir 'läufe →'"
    )
    assert finished.code == 0, finished.err
    run = decoyed.run("läufe →")
    assert run.steps() == [1]
    assert finished.err.startswith("/dev/null/home/.cache cannot be written: caches go to ")
    assert "run folder: l\\xe4ufe ->" in finished.out
    assert run.rollouts()[0]["prompt"].startswith("«Rechne größer →»")
    assert "größer →" in (run.path / "logs" / "rewards.log").read_text(encoding="utf-8")
    assert (there / "gemerkt.txt").read_text(encoding="utf-8") == "größer →"


def test_the_server_and_what_it_starts_would_not_see_them_either(decoyed, monkeypatch):
    """The very command and environment of a server, with another module in the place of vLLM's."""
    from postrl.config import GRPOConfig
    from postrl.launch.adapters import FULL
    from postrl.launch.vllm import server_command

    monkeypatch.chdir(decoyed.folder)
    monkeypatch.setenv("PYTHONPATH", f":{os.environ.get('PYTHONPATH', '')}")
    config = GRPOConfig(model="tiny", dataset=["arithmetic"])
    argv, env = server_command(config, model="tiny", port=1, devices=[], token="", weights_dir="w", adapters=FULL)
    merged = {name: value for name, value in {**os.environ, **env}.items() if value is not None}
    child = "import json, random, torch, types, multiprocessing as m, sys; sys.exit('' in sys.path)"
    program = f"import sys, subprocess; sys.exit(subprocess.call([sys.executable, '-c', {child!r}]))"
    done = subprocess.run([*argv[: argv.index("-m")], "-c", program], env=merged, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert argv[0] == sys.executable
