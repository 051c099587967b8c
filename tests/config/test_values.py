"""Settings from a YAML file. Values of the wrong type: tests/test_config.py, with the settings that they are for."""

from __future__ import annotations

import pytest

from postrl.config import GRPOConfig
from postrl.config.values import parse_yaml, read_yaml
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


def test_a_number_with_an_exponent_is_one_in_yaml_and_its_text_where_text_is_meant(tmp_path):
    assert parse_yaml("{a: 1e-6, b: [2E3, .5e1], c: e5, d: 0x1f}") == {
        "a": 1e-6,
        "b": [2000.0, 5.0],
        "c": "e5",
        "d": 31,
    }
    assert all(isinstance(value, float) for value in parse_yaml("[1e-6, -1e+2]"))
    (tmp_path / "c.yaml").write_text("learning_rate: 1e-6\nrevision: 1234e56\nmax_steps: 1e3\n", encoding="utf-8")
    config = GRPOConfig.from_yaml(tmp_path / "c.yaml")
    assert (config.learning_rate, config.revision, config.max_steps) == (1e-6, "1234e56", 1000)
    assert type(config.learning_rate) is float
