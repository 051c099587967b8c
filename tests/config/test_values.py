"""Settings from a YAML file. Values of the wrong type: tests/test_config.py, with the settings that they are for."""

from __future__ import annotations

import pytest

from postrl.config.values import read_yaml
from postrl.errors import UsageError


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words", "a: [1"])
def test_a_file_that_holds_no_settings_is_refused(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UsageError, match="a line"):
        read_yaml(tmp_path / "c.yaml")


def test_a_missing_file_is_refused_with_its_path(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.yaml"):
        read_yaml(tmp_path / "nowhere.yaml")


def test_an_empty_file_has_no_settings(tmp_path):
    (tmp_path / "c.yaml").write_text("")
    assert read_yaml(tmp_path / "c.yaml") == {}


def test_a_file_cannot_run_code(tmp_path):
    (tmp_path / "c.yaml").write_text("run_name: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(UsageError, match="not valid YAML"):
        read_yaml(tmp_path / "c.yaml")
