from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import postrl
from postrl.errors import UsageError
from postrl.host.python import child_environment, python
from postrl.rewards.builtin import BUILTINS, VERIFIERS
from postrl.rewards.registry import RewardSpec, load, parse_option, resolve, with_options
from postrl.rewards.shaping import format_reward, soft_overlong_punishment
from rewards.functions import length


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # so that what `load` adds to sys.path goes away after the test
    return tmp_path


def test_a_built_in_is_found_by_name():
    assert resolve("math") == RewardSpec("math", "builtin", "math")


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UsageError, match="no built-in reward 'maths'") as error:
        resolve("maths")
    assert "did you mean math?" in error.value.hint
    assert "file.py:function" in error.value.hint
    assert error.value.exit_code == 2


def test_a_function_in_a_file_is_found_without_running_the_file(folder):
    (folder / "my-rewards.py").write_text("raise SystemExit\ndef brevity(completions): return [0.0]\n")
    spec = resolve("my-rewards.py:brevity")
    assert (spec.name, spec.kind, spec.payload) == ("brevity", "file", f"{folder}/my-rewards.py:brevity")


def test_a_file_can_import_its_neighbours_and_hides_no_module(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "json.py").write_text("import json, near\nassert json.dumps\ndef f(): return near.value\n")
    (folder / "sub" / "near.py").write_text("value = 5\n")
    assert load(resolve("sub/json.py:f"))() == 5
    assert json.loads("1") == 1


def test_a_file_in_a_folder_imports_from_the_working_folder_last(folder):
    """In a worker, which starts with neither of them on its path."""
    (folder / "rewards").mkdir()
    (folder / "rewards" / "r.py").write_text("import mine, near\ndef f(): return mine.value, near.value\n")
    (folder / "rewards" / "near.py").write_text("value = 'beside'\n")
    (folder / "near.py").write_text("value = 'above'\n")
    (folder / "mine.py").write_text("value = 'above'\n")
    (folder / "types.py").write_text("raise SystemExit\n")
    code = "import sys; from postrl.rewards.registry import load, resolve; print(*load(resolve(sys.argv[1]))())"
    command = [*python(), "-c", code, "rewards/r.py:f"]
    env = {**child_environment(), "PYTHONPATH": str(Path(postrl.__file__).parents[1])}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("above beside\n", "")


FILE_NAMES = (
    "my rewards.py",
    "v1.2.py",
    "über-größe.py",
    "数.py",
    "./rewards.txt",
    "rewards.v2",
    "./noending",
    "class.py",
)


@pytest.mark.parametrize("name", FILE_NAMES)
def test_a_file_may_be_called_anything(folder, name):
    source = "from dataclasses import dataclass\nimport pickle\n@dataclass\nclass A:\n  x: int\n"
    (folder / name).write_text(source + "def f(): return pickle.loads(pickle.dumps(A(5))).x\n", encoding="utf-8")
    assert load(resolve(f"{name}:f"))() == 5


@pytest.mark.parametrize("name", ["math", "types", "random", "json", "torch", "numpy", "pytest", "postrl"])
def test_a_file_named_like_a_module_stands_beside_it(folder, name):
    (folder / f"{name}.py").write_text(f"import {name} as theirs\ndef f(): return theirs\n")
    assert load(resolve(f"{name}.py:f"))() is importlib.import_module(name)


def test_the_library_comes_before_what_lies_beside_a_module_and_the_module_before_installed_ones(folder, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(folder)])
    monkeypatch.delitem(sys.modules, "this", raising=False)
    (folder / "this.py").write_text("raise SystemExit('beside it')\n")
    (folder / "tomli_w.py").write_text("raise SystemExit('beside it')\n")
    (folder / "httpx.py").write_text("import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()): import this\n"
        "import tomli_w\ndef f(): return this.__file__, tomli_w.__file__\n")  # fmt: skip
    for name in [name for name in sys.modules if name.partition(".")[0] in ("httpx", "tomli_w")]:
        monkeypatch.delitem(sys.modules, name)
    found = load(resolve("httpx:f"))()
    monkeypatch.delitem(sys.modules, "httpx")
    assert not [path for path in found if path.startswith(str(folder))]


def test_a_module_of_the_library_is_named_by_its_file(folder):
    (folder / "math.py").write_text("def score(completions): return []\n")
    with pytest.raises(UsageError, match="math is a module of Python's own library") as error:
        resolve("math:score")
    assert "math.py:score" in error.value.hint


def test_a_file_that_imports_from_a_package_is_refused_with_the_way_out(folder):
    (folder / "r.py").write_text("from .helpers import x\ndef f(completions): return []\n")
    with pytest.raises(UsageError, match=r"r.py:1 imports from a package") as error:
        resolve("r.py:f")
    assert "`from helpers import x`" in error.value.hint


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("f = lambda completions: []", True),
        ("from os.path import join as f", True),
        ("from os.path import *", True),  # may define it: the worker will tell
        ("try:\n  import nothing\nexcept ImportError:\n  def f(): pass", True),
        ("class A:\n  def f(self): pass", False),
        ("def g():\n  f = 1", False),
        ("print(f)", False),
    ],
)
def test_a_function_counts_when_the_file_binds_its_name_at_the_top(folder, source, found):
    (folder / "r.py").write_text(source)
    if found:
        assert resolve("r.py:f").name == "f"
    else:
        with pytest.raises(UsageError, match="has no function 'f'"):
            resolve("r.py:f")


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("missing.py:f", "there is no file", "current folder"),
        ("r.py:brevty", "no function 'brevty'", "did you mean brevity?"),
        ("r.py", "names a file and no function", "r.py:function"),
        ("broken.py:f", "broken.py:2 is not valid Python", "python "),
        ("nowhere.to.be:f", "no module nowhere.to.be", "file.py:function"),
        ("package.inner:absent", "no function 'absent'", "it defines present"),
        ("package.inner.deeper:f", "no module package.inner.deeper", "installed"),
        (7, "a reward is a int: 7", "Python function"),
    ],
)
def test_a_wrong_reward_is_a_usage_error_with_the_way_out(folder, spec, message, hint):
    (folder / "r.py").write_text("def brevity(completions): return []\n")
    (folder / "broken.py").write_text("def f(completions):\n  return [\n")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("raise RuntimeError('must not be imported to look inside')\n")
    (folder / "package" / "inner.py").write_text("def present(completions): return []\n")
    with pytest.raises(UsageError, match=message) as error:
        resolve(spec)
    assert hint in error.value.hint


def test_a_function_in_a_package_of_the_current_folder_is_found(folder):
    (folder / "herepackage").mkdir()
    (folder / "herepackage" / "inner.py").write_text("def present(completions): return [3.0]\n")
    spec = resolve("herepackage.inner:present")
    assert (spec.name, spec.kind) == ("present", "module")
    assert load(spec)([]) == [3.0]


class Longer:
    def __call__(self, completions):
        return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("function", "name"),
    [(length, "length"), (lambda completions: [], "<lambda>"), (partial(length), "length"), (Longer(), "Longer")],
)
def test_callables_are_named_as_trl_names_them(function, name):
    assert resolve(function).name == name


def test_a_closure_survives_the_wire():
    bonus = 2.5

    def with_bonus(completions):
        return [len(text) + bonus for text in completions]

    wire = json.loads(json.dumps(resolve(with_bonus).to_wire()))
    assert load(RewardSpec.from_wire(wire))(["abc"]) == [5.5]


@pytest.mark.parametrize("spec", ["math", length])
def test_the_wire_keeps_a_spec_as_it_is(spec):
    spec = resolve(spec)
    assert RewardSpec.from_wire(json.loads(json.dumps(spec.to_wire()))) == spec
    assert resolve(spec) is spec


def test_a_callable_that_cannot_be_pickled_is_named():
    lock = threading.Lock()

    def locked(completions):
        with lock:
            return [0.0] * len(completions)

    with pytest.raises(UsageError, match="reward function locked cannot be sent") as error:
        resolve(locked)
    assert "inside the function" in error.value.hint


def test_a_model_is_refused_with_a_way_out():
    class Model:
        forward = save_pretrained = __call__ = length

    with pytest.raises(UsageError, match="is a model"):
        resolve(Model())


# -- built-ins and their options ---------------------------------------------------------------------------------------


def test_a_built_in_given_as_a_function_is_what_its_name_is():
    assert resolve(soft_overlong_punishment) == resolve("soft_overlong")
    options = {"think_open": "[", "think_close": "]"}
    assert resolve(partial(format_reward, **options)) == RewardSpec("format", "builtin", "format", options=options)
    assert resolve(partial(format_reward, ["x"])).kind == "pickle"


@pytest.mark.parametrize("name", ["format", "soft_overlong", "cosine", "repetition", "arithmetic"])
def test_every_row_of_the_table_is_a_function(name):
    assert callable(load(resolve(name)))


def test_verifiers_can_tell_which_rows_they_can_score():
    assert all(BUILTINS[name].scorable for name in VERIFIERS)
    assert BUILTINS["arithmetic"].scorable({"answer": "7"})
    assert not BUILTINS["arithmetic"].scorable({"answer": "seven"})
    assert not BUILTINS["arithmetic"].scorable({})
    assert BUILTINS["math"].scorable({"answer": "#### 7"})
    assert not BUILTINS["math"].scorable({"answer": ""})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64), ("0.5", 0.5), ("1e-6", 1e-6), ("-2.5e3", -2500.0), ("true", True), ("null", None), ("", None),
        ("code", "code"), ("'64'", "64"), ("<think>", "<think>"), ("[THINK]", "[THINK]"), ("{", "{"), ("a=b", "a=b"),
        ("#", "#"), ("2024-05-06", "2024-05-06"), ("nan", "nan"),
    ],
)  # fmt: skip
def test_the_value_of_an_option_is_a_yaml_scalar_or_text(text, value):
    name, key, found = parse_option(f"my.reward.key={text}")
    assert (name, key, found) == ("my.reward", "key", value)
    assert type(found) is type(value)


@pytest.mark.parametrize("arg", ["cache=64", "soft_overlong.cache", ".cache=64", "soft_overlong.=64", "a.b c=1", ""])
def test_an_option_of_another_form_is_refused(arg):
    with pytest.raises(UsageError, match="reward_arg is") as error:
        parse_option(arg)
    assert "NAME.KEY=VALUE" in error.value.hint


def test_options_go_to_the_reward_that_they_name():
    specs = with_options(
        [resolve("math"), resolve("soft_overlong")], ["soft_overlong.cache=8", "soft_overlong.cache=9"]
    )
    assert [spec.options for spec in specs] == [{}, {"cache": 9}]
    with pytest.raises(UsageError, match="names the reward 'soft'; this run has math, soft_overlong"):
        with_options(specs, ["soft.cache=8"])


def test_options_travel_with_the_spec():
    (spec,) = with_options([resolve(length)], ["length.x=1"])
    assert RewardSpec.from_wire(json.loads(json.dumps(spec.to_wire()))) == spec
