"""A working folder full of files named like modules: a run there uses the reward and nothing else of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from e2e.runs import SMALL

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
