"""Columns of tests as data sets store them: JSON text, arrays, and LiveCodeBench's compressed private tests."""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import re
import zlib
from typing import Any

from postrl.rewards.code.verdict import NoSuite

LARGEST = 256 << 20
"""Bytes that compressed tests may have."""
COMPRESSED = re.compile(r"\s*e[AFJN][A-Za-z0-9+/\s]+=*\s*")
"""Base64 of what begins like a zlib stream."""
OF_A_STRING = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}
"""What a pickled string consists of, beside the string."""


def decoded(tests: Any) -> Any:
    """Tests as lists, objects and text; what is neither JSON nor compressed stays as it is.

    Raises:
        NoSuite: compressed tests that hold more than text.
    """
    if hasattr(tests, "tolist"):
        tests = tests.tolist()
    if isinstance(tests, str) and len(tests) > 8 and COMPRESSED.fullmatch(tests):
        tests = _unpacked(tests)
    if isinstance(tests, str) and tests.lstrip()[:1] in ("[", "{"):
        try:
            tests = json.loads(tests)
        except ValueError:
            return tests
    if isinstance(tests, list):
        return [_with_metadata(test) for test in tests]
    return _with_metadata(tests)


def _with_metadata(test: Any) -> Any:
    """A test whose metadata are JSON text, with the object that this is."""
    if isinstance(test, dict) and isinstance(test.get("metadata"), str):
        return {**test, "metadata": decoded(test["metadata"])}
    return test


def _unpacked(text: str) -> str:
    """JSON text out of base64, zlib and pickle. A pickle is a program, which is never run: its opcodes are read, and those
    of a string are all that may be there."""
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(text), LARGEST)
        if stream.unconsumed_tail:
            raise NoSuite("compressed tests of more than 256 MiB")
    except (zlib.error, binascii.Error):
        return text
    if data[:1] in (b"[", b"{"):
        return data.decode()
    try:
        operations = [(code.name, value) for code, value, _ in pickletools.genops(data)]
    except Exception as error:  # whatever damaged data make of it
        raise NoSuite("compressed tests that are neither JSON nor a pickled string") from error
    strings = [value for name, value in operations if "UNICODE" in name]
    if len(strings) != 1 or not all(name in OF_A_STRING or "UNICODE" in name for name, _ in operations):
        raise NoSuite("compressed tests that are neither JSON nor a pickled string")
    return str(strings[0])
