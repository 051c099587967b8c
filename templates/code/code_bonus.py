"""A bonus beside the built-in code reward: `--reward code --reward code_bonus.py:documented --reward-weights 1 --reward-weights 0.1`

The code reward runs the tests of the row, in a sandbox. A reward function of yours runs with your rights, so it must
never run what a model wrote: this one reads it.
"""

from __future__ import annotations

import ast
import re
from typing import Any

BLOCK = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LONGEST = 20_000
"""Characters of code that are read; parsing more is slow, and nothing here needs it."""


def documented(completions: list[Any], **columns: Any) -> list[float]:
    """1 for a completion whose code defines functions with a docstring each; else 0."""
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [float(has_docstrings(code_of(text))) for text in texts]


def code_of(text: str) -> str:
    """The last block of code, or the whole text when there is none."""
    blocks = BLOCK.findall(text.replace("\r\n", "\n"))
    return blocks[-1] if blocks else text


def has_docstrings(code: str) -> bool:
    if len(code) > LONGEST:
        return False
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # all that hostile text makes the parser raise
        return False
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return bool(functions) and all(ast.get_docstring(function) for function in functions)
