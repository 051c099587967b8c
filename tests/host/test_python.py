"""Child processes and the folder that people work in: what lies there is never taken for a module."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from postrl.host.python import as_the_user_gave_it, child_environment, for_children, python

DECOY = "raise SystemExit('the decoy %s was imported')\n"
DECOYS = ("math", "types", "random", "json", "torch", "numpy", "wandb", "sitecustomize", "usercustomize", "postrl")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, full of files named like modules."""
    for name in DECOYS:
        (tmp_path / f"{name}.py").write_text(DECOY % name)
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").write_text(DECOY % "datasets")
    monkeypatch.chdir(tmp_path)
    return tmp_path


LOOK = (
    "import json, random, sys, types, math, importlib.util\n"
    "where = lambda name: importlib.util.find_spec(name).origin\n"
    "print(json.dumps([where(n) for n in ('types', 'random', 'json', 'torch', 'numpy', 'datasets', 'postrl')]))\n"
)


@pytest.mark.parametrize("given", [None, "", ":", ".", "./", ":/nowhere", "/nowhere:", "{here}", "/nowhere:{here}"])
def test_a_child_finds_no_module_in_the_working_folder_whatever_pythonpath_says(folder, monkeypatch, given):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTHONPATH", given.format(here=folder))
    found = _run([*python(), "-c", LOOK], child_environment())
    assert found and not [origin for origin in found if origin.startswith(str(folder))]


def test_nor_do_the_processes_that_a_child_starts(folder, monkeypatch):
    """As torchrun starts ranks, and multiprocessing what vLLM starts."""
    monkeypatch.setenv("PYTHONPATH", ":")
    program = (
        "import json, multiprocessing, subprocess, sys\n"
        f"sys.stdout.write(subprocess.run([sys.executable, '-c', {LOOK!r}], capture_output=True, text=True).stdout)\n"
    )
    assert not [o for o in _run([*python(), "-c", program], child_environment()) if o.startswith(str(folder))]
    spawned = (
        "import multiprocessing\n"
        "from multiprocessing.spawn import get_preparation_data\n"
        "import json; print(json.dumps(get_preparation_data('child')['sys_path']))\n"
    )
    assert str(folder) not in _run([*python(), "-c", spawned], child_environment())


def test_a_users_program_gets_back_what_the_user_had_set(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":/theirs")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")}
    first = child_environment()
    assert (first["PYTHONPATH"], first["PYTHONSAFEPATH"]) == ("/theirs", "1")
    for name, value in first.items():
        monkeypatch.setenv(name, value)
    second = {**os.environ, **for_children()}  # a child of a child
    as_the_user_gave_it(second)
    assert {name: second.get(name) for name in before} == before
    assert not [name for name in second if name.startswith("POSTRL_GIVEN")]


@pytest.mark.parametrize("search", ["", ":/nowhere"])
@pytest.mark.parametrize("command", [["-m", "postrl"], [os.path.join(os.path.dirname(sys.executable), "postrl")]])
def test_the_command_line_starts_among_decoys(folder, command, search):
    for name in ("types", "postrl", "sitecustomize", "usercustomize"):  # Python imports them before any line of ours
        (folder / f"{name}.py").unlink()
    command = [sys.executable, *command, "grpo", "--help"]
    env = {**os.environ, "PYTHONPATH": search}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: postrl grpo" in done.stdout


def test_postrl_itself_may_lie_in_the_working_folder(tmp_path, monkeypatch):
    """Run from the sources, without installing them."""
    import postrl.host.python as module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "OURS", str(tmp_path.resolve()))
    monkeypatch.setenv("PYTHONPATH", ".")
    assert for_children()["PYTHONPATH"] == "."


def _run(command, env):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
