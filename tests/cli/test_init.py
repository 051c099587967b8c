"""`postrl init`: what it writes, and what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from postrl.cli.init import NEXT, Template, scaffold, templates_folder
from postrl.errors import UsageError

TEMPLATES = get_args(Template)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_folder_is_written_listed_and_followed_by_two_commands(postrl, tmp_path, template):
    done = postrl("init", "mine", "--template", template)
    assert (done.returncode, done.stderr) == (0, "")
    written = sorted(path.name for path in (tmp_path / "mine").iterdir())
    assert {"README.md", "config.yaml", "data.jsonl"} < set(written)
    assert any(name.startswith("test_") for name in written)
    lines = done.stdout.splitlines()
    assert lines[: len(written)] == [f"wrote mine/{name}" for name in written]
    assert lines[len(written) :] == ["", "next:", f"  cd mine && {NEXT[template][0]}", f"  {NEXT[template][1]}"]


def test_every_template_that_exists_can_be_chosen():
    assert sorted(path.name for path in templates_folder().iterdir() if path.is_dir()) == sorted(TEMPLATES)


def test_an_installed_package_has_them_inside(tmp_path):
    """The layout of the wheel, as pyproject.toml says; run from there alone."""
    root = Path(__file__).parents[2]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    site = tmp_path / "site-packages"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / wheel["packages"][0], site / "postrl", ignore=ignore)
    for source, target in wheel["force-include"].items():
        shutil.copytree(root / source, site / target, ignore=ignore)
    program = "import postrl.cli, sys; sys.stdout.write(postrl.__file__ + '\\n'); postrl.cli.main(['init', 'mine'])"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == [str(site / "postrl" / "__init__.py"), "wrote mine/README.md"]
    assert (site / "postrl" / "rewards" / "cases" / "math.jsonl").is_file()


def test_only_files_are_copied_and_no_leftovers_of_a_test_run(tmp_path):
    assert all(path.suffix in {".py", ".md", ".yaml", ".jsonl"} for path in scaffold("a", "reward", here=tmp_path))


def test_a_file_that_exists_is_named_and_kept_unless_forced(postrl, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data.jsonl").write_text("mine\n")
    done = postrl("init", "mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert "mine already has data.jsonl" in done.stderr and "--force" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["data.jsonl"]
    assert (tmp_path / "mine" / "data.jsonl").read_text() == "mine\n"
    assert postrl("init", "mine", "--force").returncode == 0
    assert (tmp_path / "mine" / "data.jsonl").read_text() != "mine\n"


def test_files_beside_the_new_ones_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    scaffold("mine", "reward", here=tmp_path)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "/tmp/x", "a/b", "-x", ".hidden", "a b", "a\nb", "a;b", "é"])
def test_a_name_that_is_no_plain_folder_name_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="is not the name of a folder"):
        scaffold(name, "reward", here=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="mine exists and is not a folder"):
        scaffold("mine", "reward", here=tmp_path, force=True)


def test_a_template_that_does_not_exist_is_refused(postrl):
    done = postrl("init", "mine", "--template", "chess")
    assert done.returncode == 2
    assert "chess" in done.stderr and all(template in done.stderr for template in TEMPLATES)
