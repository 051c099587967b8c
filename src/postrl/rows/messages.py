"""The messages of a conversation, as rows hold them and as chat templates want them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from postrl.errors import DataError
from postrl.rows.plain import plain_cell
from postrl.types import Messages


def of_columns(prompt: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a dict that has a list for each key, as `datasets.Sequence` leaves them; or the one that it is."""
    if not isinstance(prompt["role"], list):
        return [prompt]
    cells = [cell if isinstance(cell, list) else [] for cell in prompt.values()]
    return [dict(zip(prompt, message, strict=True)) for message in zip_longest(*cells)]


def without_nulls(value: Any) -> Any:
    """The value without keys that are null, at any depth. A null in a list is one of its items."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return list(map(without_nulls, value)) if isinstance(value, list) else value


def content_text(where: str, role: str, content: Any) -> str:
    """The content as text; parts that are text, as APIs take them, are joined by line ends."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    kinds = [part.get("type", "text") if isinstance(part, dict) else "" for part in parts]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    told = [text for text in texts if isinstance(text, str)]
    if parts and len(told) == len(parts) and {*kinds} <= {"text", ""}:
        return "\n".join(told)
    if other := [kind for kind in kinds if kind not in ("text", "")]:
        raise DataError(
            f"{where} ({role}) holds a part of the type {other[0]}, expected text", hint="prompts are text alone here"
        )
    found = "no content" if content is None else f"a {type(content).__name__} as content"
    raise DataError(f"{where} ({role}) has {found}, expected text", hint="leave the message out, or give it a content")


def tool_call(call: Any) -> Any:
    """A tool call whose arguments are a dict: templates write them as JSON, and JSON text would be quoted twice."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str) and isinstance(read := read_cell(arguments, "", ""), dict):
        return {**call, "function": {**call["function"], "arguments": read}}
    return call


def in_form(messages: Messages, plain: bool, nothing: str | None) -> Messages:
    """The messages with the arguments of tool calls as JSON text unless `plain`, and `nothing` as the content of calls that
    say nothing else: some templates write calls only where there is no content."""

    def written(call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if plain or not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
            return call
        return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}

    return [
        {**message, "content": message["content"] or nothing, "tool_calls": [*map(written, message["tool_calls"])]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def parsed_cell(row: Mapping[str, Any], name: str, row_id: str) -> Any:
    """A cell, read where it is JSON: Arrow has no column for tools of several shapes."""
    value = row.get(name)
    return found if isinstance(value, str) and (found := read_cell(value, row_id, name)) is not None else value


def read_cell(text: str, row_id: str, column: str) -> Any:
    """The plain value that a cell's text is as JSON; None where it is not JSON."""
    try:
        return plain_cell(json.loads(text), row_id, column)
    except (ValueError, RecursionError):
        return None
