"""Functions of the user's, found without being run, and run. What a reward may be: tests/rewards/test_registry.py."""

from __future__ import annotations

import sys

import pytest

from postrl.errors import UsageError
from postrl.user_code import find_function, load_function

SOURCE = "raise_when_run = 1 / 0\ndef f(x):\n    return x\n"


def test_a_function_is_found_without_running_its_file(tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    found = find_function(f"{tmp_path}/mine.py:f", "checker")
    assert (found.kind, found.target) == ("file", f"{tmp_path}/mine.py:f")
    with pytest.raises(ZeroDivisionError):
        load_function(found)


def test_text_of_another_form_names_no_function():
    assert [find_function(text, "checker") for text in ("math", ":f", "mine.py:", "")] == [None] * 4


def test_what_is_wrong_is_said_of_what_was_given(tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    for name, said in (("mine.py:g", "has no function 'g'"), ("other.py:f", "there is no file")):
        with pytest.raises(UsageError, match=rf"checker {tmp_path}/{name}: .*{said}"):
            find_function(f"{tmp_path}/{name}", "checker")


def test_a_file_called_like_a_module_of_python_gets_another_name(tmp_path):
    (tmp_path / "json.py").write_text("def f(x):\n    return 2 * x\n")
    function = load_function(find_function(f"{tmp_path}/json.py:f", "checker"))
    assert function(2) == 4
    assert function.__module__ == "user_json" and sys.modules["json"].__name__ == "json"
