"""Text is UTF-8, whatever the locale says; and a terminal that cannot show a character shows something else."""

from __future__ import annotations

import codecs
import locale
import os
import sys
from pathlib import Path

from postrl.errors import UsageError
from postrl.host.python import ENCODING, MODE

PLAIN = {
    "·": "|", "±": "+-", "…": "...", "→": "->", "×": "x", "–": "-", "—": "-", "’": "'", "‘": "'", "“": '"', "”": '"',
    "━": "-", "─": "-", "╸": "-", "╺": "-", "•": "*",
}  # fmt: skip
"""What stands for a character of ours where it cannot be shown."""
HANDLER = "postrl_plain"
RESTARTED = "POSTRL_RESTARTED"
"""Variable that keeps a command from starting again twice."""


def read_text(path: str | Path, what: str, hint: str) -> str:
    """A text file that a person has written: UTF-8, with or without a byte order mark, with any line ends.

    Raises:
        UsageError: it cannot be read, says `cannot read WHAT PATH: ...`; or it is in another encoding.
    """
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {what} {path}: {error.strerror}", hint=hint) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        found = "UTF-16" if wide else f"not UTF-8 (byte {data[error.start]:#04x} at {error.start})"
        raise UsageError(
            f"{what} {path} is {found}, and text files are read as UTF-8",
            hint=f"save it as UTF-8, such as with `iconv -f {'UTF-16' if wide else 'LATIN1'} -t UTF-8`",
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_template(path: str | Path) -> str:
    """The Jinja file of --chat-template. Raises UsageError as `read_text` does."""
    return read_text(path, "the chat template", "--chat-template takes a Jinja file")


def restart_in_utf8() -> None:
    """Start this command again in Python's UTF-8 mode, under the same pid, where the locale has another encoding.

    Then names of files mean the same in this process, in its children and in the run's files. The terminal keeps its own.
    """
    encodings = {codecs.lookup(name).name for name in (sys.getfilesystemencoding(), locale.getpreferredencoding(False))}
    cannot = RESTARTED in os.environ or not sys.executable or sys.argv[0] in ("", "-")  # a program that stdin has held
    if encodings == {"utf-8"} or cannot:
        return
    shown = f"{getattr(sys.stdout, 'encoding', None) or 'ascii'}:backslashreplace"
    environment = {**os.environ, MODE: "1", ENCODING: shown, RESTARTED: "1"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def forgive_streams() -> None:
    """Let no character that is written to this process's terminal or pipe raise; one that was closed takes all."""
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # else the next file that is opened has its number, and gets what children print
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False))
    codecs.register_error(HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=HANDLER)


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    shown = "".join(
        PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in error.object[error.start : error.end]
    )
    return shown, error.end
