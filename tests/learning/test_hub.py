"""Uploading the final model: what is refused early, and a hub that cannot be reached."""

from __future__ import annotations

import subprocess
import sys

import pytest

from postrl.errors import UsageError
from postrl.learning.hub import check_access


def test_without_an_upload_nothing_is_asked(monkeypatch, tmp_path):
    check_access(None)


def test_a_name_that_is_no_hub_id_is_refused(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    with pytest.raises(UsageError, match="push_to_hub is 'a/b/c', which is not a hub id"):
        check_access("a/b/c")


def test_nobody_logged_in_is_refused_before_the_run(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(UsageError, match="nobody is logged in") as refused:
        check_access("user/name")
    assert "hf auth login" in refused.value.hint


def test_a_token_lets_it_pass(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    check_access("user/name")


def test_a_hub_that_cannot_be_reached_says_how_to_upload_later(tmp_path):
    """In a process of its own: the hub's address is read when its library is imported."""
    (tmp_path / "config.json").write_text("{}")
    program = f"""
from pathlib import Path
from postrl.errors import PostrlError
from postrl.learning.hub import push_model
try:
    push_model(Path({str(tmp_path)!r}), "user/name")
except PostrlError as error:
    print(error)
"""
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_secret", "HOME": str(tmp_path), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("the model could not be uploaded to user/name: ")
    assert done.stdout.endswith(f"then `hf upload user/name {tmp_path}`\n")
    assert "hf_secret" not in done.stdout + done.stderr
