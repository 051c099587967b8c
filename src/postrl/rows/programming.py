"""The columns of public data sets of programming tasks, as the reward `code` names them.

    code_columns({"question": "...", "input_output": '{"fn_name": "add", ...}'})        # {"tests": '{"fn_name": ...'}

A row that has `tests` already keeps them. What the columns hold is read by the reward, not here.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

TESTS = ("tests", "input_output", "public_test_cases", "verification_info", "test", "test_list")
"""Columns that hold tests, the first of which counts."""


def code_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """`tests`, `hidden_tests`, `entry_point` and `starter` as far as the row has them under other names; nothing for a row
    that is not a programming task."""
    name = next((name for name in TESTS if _holds_tests(name, row.get(name))), None)
    if name is None:
        return {}
    found = {
        "tests": _tests(name, row),
        "hidden_tests": row.get("private_test_cases") if name == "public_test_cases" else None,
        "entry_point": _object(row.get("metadata")).get("func_name"),
        "starter": _starter(row),
    }
    return {column: value for column, value in found.items() if value and not row.get(column)}


def _holds_tests(name: str, value: Any) -> bool:
    if name == "test":  # may be anything
        return isinstance(value, str) and "assert" in value and _is_code(value)
    if name == "verification_info":
        return "test_cases" in _object(value)
    return bool(value)


def _tests(name: str, row: Mapping[str, Any]) -> Any:
    if name == "verification_info":
        return _object(row[name])["test_cases"]
    return statements(row) if name == "test_list" else row[name]


def statements(row: Mapping[str, Any]) -> list[str]:
    """MBPP's assert statements, each behind the code that prepares it."""
    setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or [])
    tests = [*row["test_list"], *(row.get("challenge_test_list") or [])]
    return [f"{setup}\n{test}" if setup else test for test in tests]


def _starter(row: Mapping[str, Any]) -> Any:
    """Code that comes before the program: a column of its own, or a prompt that is code."""
    prompt = row.get("prompt")
    return row.get("starter_code") or row.get("code_prompt") or (prompt if _is_code(prompt) else None)


def _is_code(text: Any) -> bool:
    """Whether it is Python that defines something, or the head of such."""
    if not isinstance(text, str) or not ("def " in text or "class " in text):
        return False
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _object(value: Any) -> Mapping[str, Any]:
    """An object, which may be JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}
