"""Which columns of rows hold the prompt and the reference answer, where nobody has said it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from postrl.rows.programming import code_columns

PROMPT, ANSWER = "prompt", "answer"
LIKELY = {
    PROMPT: ("question", "problem", "instruction", "query", "input", "task", "question_content",
             "instruct_prompt", "messages", "conversation", "conversations"),
    ANSWER: (
        "solution", "label", "target", "ground_truth", "final_answer", "expected_answer", "reference_answer", "reference", "gold",
    ),
}  # fmt: skip
"""What data sets call these columns when they do not call them prompt and answer; capitals make no difference."""


@dataclass(frozen=True)
class Guess:
    """The columns that were guessed; None: not guessed."""

    prompt: str | None = None
    answer: str | None = None

    def line(self, source: str) -> str:
        """Names what was guessed, for people; "" where nothing was."""
        parts = {PROMPT: self.prompt, ANSWER: self.answer}
        said = [f"{name} for {part} (--{part}-column chooses another)" for part, name in parts.items() if name]
        return f"{source} has no column {' and '.join(p for p in parts if parts[p])}; taken: {', '.join(said)}" * bool(
            said
        )


def guess(names: Sequence[str], rows: Sequence[Mapping[str, Any]], *, prompt: str | None, answer: str | None) -> Guess:
    """The columns that are the only likely ones.

    Args:
        prompt, answer: as they were given, so that there is nothing to guess; None: not given.
    """

    def only(part: str, given: str | None) -> str | None:
        found = [] if given is not None or part in names else likely(part, names, rows)
        return found[0] if len(found) == 1 and not _is_answered(_first(found[0], rows)) else None

    return Guess(only(PROMPT, prompt), only(ANSWER, answer))


def likely(part: str, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that may be meant by PROMPT or ANSWER. A prompt is text or messages."""
    programming = "tests" in names or (len(rows) and code_columns(rows[0]))
    if part == ANSWER and programming:  # what solves the task is a program, and its tests are what judges
        return []
    told = {name: name.strip().lower().replace(" ", "_") for name in names}
    found = [name for name in names if told[name] == part] or [name for name in names if told[name] in LIKELY[part]]
    return [name for name in found if part == ANSWER or isinstance(_first(name, rows), str | list)]


def _is_answered(value: Any) -> bool:
    """Whether a conversation ends with what the assistant says: to go on from there is seldom meant."""
    last: Any = value[-1] if isinstance(value, list) and value else None
    return isinstance(last, Mapping) and any(last.get(name) in ("assistant", "gpt") for name in ("role", "from"))


def _first(name: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    """What the first of the rows that has anything there has."""
    return next((row[name] for row in rows if row.get(name) is not None), None)
