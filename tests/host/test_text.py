"""Text is UTF-8 whatever the locale says, and no character ends a command."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import postrl
from postrl.errors import UsageError
from postrl.host.text import read_text

ROOT = Path(postrl.__file__).parents[2]
TEXT_OPENERS = {"open": 1, "fdopen": 1, "read_text": None, "write_text": None, "NamedTemporaryFile": 0}
"""Functions that read or write text by the locale unless told; at which place they take a mode (of a method: one less)."""


def unsaid_encodings(tree: ast.AST):
    """Calls that open text, here or of a child, and leave the encoding to the locale."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in TEXT_OPENERS and "encoding" not in given and not _binary(node, given, name):
            yield node.lineno, name
        texts = [getattr(given.get(key), "value", None) for key in ("text", "universal_newlines")]
        if True in texts and "encoding" not in given:
            yield node.lineno, f"{name}(text=True)"


def _binary(node: ast.Call, given: dict, name: str) -> bool:
    """Whether a call opens bytes, or is of another kind of `open`."""
    of = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if name == "open" and of in ("os", "tree"):
        return True
    place = TEXT_OPENERS[name]
    if place is None:
        return not of  # host.text.read_text, which is told
    if name == "open" and of not in ("", "gzip"):
        place = 0
    mode = given.get("mode") or (node.args[place] if len(node.args) > place else None)
    if mode is None:
        return name == "NamedTemporaryFile"
    return not isinstance(mode, ast.Constant) or "b" in str(mode.value)


@pytest.mark.parametrize("folder", ["src/postrl", "templates", "benchmarks"])
def test_every_text_file_and_pipe_is_opened_with_its_encoding(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = {
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in files
        for line, name in unsaid_encodings(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    ["open(p)", "open(p, 'w')", "p.open()", "p.open('a')", "p.read_text()", "self.x.write_text(t)", "gzip.open(p, 'rt')",
     "os.fdopen(3, 'w')", "subprocess.run(c, text=True)", "NamedTemporaryFile('w')"],
)  # fmt: skip
def test_the_test_above_sees_what_it_is_for(source):
    assert [*unsaid_encodings(ast.parse(source))]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_text_of_a_person_may_have_a_mark_and_the_line_ends_of_windows(tmp_path, encoding, end):
    (tmp_path / "t").write_bytes(f"größe{end}→{end}".encode(encoding))
    assert read_text(tmp_path / "t", "it", "") == "größe\n→\n"


@pytest.mark.parametrize(("encoding", "name"), [("utf-16", "UTF-16"), ("latin-1", "not UTF-8 .byte 0xf6 at 2.")])
def test_another_encoding_is_refused_by_name(tmp_path, encoding, name):
    (tmp_path / "t").write_bytes("größe".encode(encoding))
    with pytest.raises(UsageError, match=f"the config file .* is {name}, and text files are read as UTF-8") as error:
        read_text(tmp_path / "t", "the config file", "")
    assert "iconv" in error.value.hint


PLAIN_LOCALES = (
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "POSIX"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1:strict"},
)


@pytest.mark.parametrize("locale", PLAIN_LOCALES)
def test_settings_and_their_messages_are_the_same_in_every_locale(tmp_path, locale):
    """A configuration with a mark, Windows line ends and letters that the terminal may not have."""
    (tmp_path / "größe.yaml").write_bytes(
        "\ufeffmodel: smollm2-135m\r\ndataset: arithmetic\r\n".encode() + b"engine: transformers\r\n"
    )
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    command = [sys.executable, "-m", "postrl", "grpo", "--config", "größe.yaml", "--output-dir", "läufe →", "--dry-run"]
    command = [os.fsencode(argument) for argument in command]
    done = subprocess.run(command, cwd=tmp_path, env={**unset, **locale}, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    first = done.stdout.splitlines()[0]
    assert first.startswith(b"run folder      l") and (b"->" in first or "→".encode() in first)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_end_no_command(closed):
    command = f"{shlex.quote(sys.executable)} -m postrl grpo --help {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_program_that_comes_from_a_pipe_is_not_started_again(tmp_path):
    locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-", "--version"]
    source = b"from postrl.cli import main; main()"
    done = subprocess.run(command, input=source, env=locale, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout[:7]) == (0, b"", b"postrl ")


def test_a_name_of_a_file_that_is_no_utf8_is_named_in_a_message(tmp_path):
    command = [sys.executable, "-m", "postrl", "grpo", "--config", b"\xff\xfe.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 2 and b"cannot read the config file" in done.stderr
