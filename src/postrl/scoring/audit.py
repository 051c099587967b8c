"""Does a reward reward what it should? Hostile and awkward completions, each with the verdict that it deserves.

    cases = shipped_cases("math")                        # or read_cases("mine.jsonl")
    findings = await audit(runner, cases)
    wrong = [finding for finding in findings if finding.verdict != AS_EXPECTED]

A case is a line of JSON: `id`, `kind`, `completion`, `expected` (1 right, 0 wrong, null: nothing to compare with, so
None is the only right score), `note`, and the columns that a reward reads: `gold` (given to the reward as `answer`) for
math, `test_type` and `tests` for code, any others by their names. `policy` says on which rule a debatable verdict rests;
`dangerous` marks code that forks without end, fills the disk or kills.

The shipped cases are in `cases/`, drawn from public bug reports against the usual verifiers.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postrl import rewards
from postrl.errors import DataError
from postrl.rewards.registry import RewardSpec, load
from postrl.rewards.runner import RewardRunner
from postrl.rewards.score import Score
from postrl.scoring.groups import as_group
from postrl.types import Group, Prompt

KINDS = ("math", "code")
FOLDER = Path(rewards.__file__).parent / "cases"
ACCEPTED = 0.5
"""A score above this counts as a reward for the completion; a score of exactly this does not."""
IN_FLIGHT = 4
"""Cases scored at the same time, by rewards that can. Few: code that has a time limit must not wait for its turn."""

AS_EXPECTED = "as expected"
ACCEPTED_HACK = "accepted hack"
REFUSED = "refused right answer"
GUESSED = "scored without a gold"
NO_SCORE = "no score"
FAILED = "failed"
PROBLEMS = {
    ACCEPTED_HACK: "a wrong completion got a reward",
    REFUSED: "a right completion got none",
    GUESSED: "the gold cannot be read, so the only right score is None",
    NO_SCORE: "None, where the completion is right or wrong",
    FAILED: "it raised, timed out or died",
}
"""Verdicts that differ from the expected one, and what they mean."""

_ABOUT = {"id", "source", "kind", "completion", "expected", "note", "policy", "dangerous", "gold", "prompt"}
"""Fields of a case that are not columns."""


@dataclass(frozen=True)
class Case:
    """One completion and the verdict that it deserves."""

    id: str
    kind: str
    completion: str
    expected: int | None
    """1: right; 0: wrong; None: the gold cannot be scored."""
    columns: dict[str, Any] = field(default_factory=dict)
    prompt: str = ""
    note: str = ""
    policy: str = ""
    dangerous: bool = False

    def group(self, *, chat: bool = True) -> Group:
        """The case as a group of one; `chat`: the completion as a message, else as text."""
        messages = [{"role": "user", "content": self.prompt}] if chat else None
        return as_group(Prompt(self.id, messages, self.prompt, [], dict(self.columns)), 0, [self.completion])


@dataclass(frozen=True)
class Finding:
    """What a reward said about a case."""

    case: Case
    score: Score
    verdict: str
    """AS_EXPECTED or a key of PROBLEMS."""


# -- cases -------------------------------------------------------------------------------------------------------------


def shipped_cases(kind: str) -> list[Case]:
    """The cases that come with postrl; `kind` is one of KINDS."""
    return read_cases(FOLDER / f"{kind}.jsonl")


def read_cases(path: str | Path) -> list[Case]:
    """The cases of a JSONL file.

    Raises:
        DataError: no such file, or a line that is not a case; the message has its number.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read the cases {path}: {getattr(error, 'strerror', None) or error}",
            hint="--cases takes a JSONL file, one case a line",
        ) from error
    cases = [_case(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not cases:
        raise DataError(f"{path} holds no case", hint="a case is a line of JSON with id, gold, completion, expected")
    return cases


def without_dangerous(cases: Sequence[Case]) -> list[Case]:
    """What may be given to a reward that runs code outside a sandbox."""
    return [case for case in cases if not case.dangerous]


def _case(line: str, where: str) -> Case:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} is not JSON: {error}", hint="a case is one JSON object a line") from error
    problem = _problem(fields)
    if problem:
        raise DataError(f"{where}: {problem}", hint="a case has id, completion, expected, and gold or tests")
    columns = {name: value for name, value in fields.items() if name not in _ABOUT}
    if "gold" in fields:
        columns["answer"] = fields["gold"]
    return Case(
        id=str(fields["id"]),
        kind=str(fields.get("kind", "")),
        completion=fields["completion"],
        expected=None if fields["expected"] is None else int(fields["expected"]),
        columns=columns,
        prompt=str(fields.get("prompt", "")),
        note=str(fields.get("note", "")),
        policy=str(fields.get("policy") or ""),
        dangerous=bool(fields.get("dangerous")),
    )


def _problem(fields: Any) -> str:
    """What keeps a line from being a case; "" when nothing does."""
    if not isinstance(fields, dict):
        return f"a {type(fields).__name__}, expected an object"
    if missing := [name for name in ("id", "completion", "expected") if name not in fields]:
        return f"it has no {' and no '.join(missing)}"
    if not isinstance(fields["completion"], str):
        return f"its completion is a {type(fields['completion']).__name__}, expected text"
    if fields["expected"] not in (0, 1, None):
        return f"expected is {fields['expected']!r}, and may be 1, 0 or null"
    return ""


def kind_of(spec: RewardSpec) -> str | None:
    """Which cases suit a function, by its arguments: `tests` for code, `answer` for math. None: they do not tell.

    A function of the user's is read in its file and not run, so one that is imported, wrapped or given as
    package.module:function does not tell.
    """
    names = _arguments(spec)
    return "code" if "tests" in names else "math" if "answer" in names else None


def _arguments(spec: RewardSpec) -> set[str]:
    if spec.kind == "builtin":
        return set(inspect.signature(load(spec)).parameters)
    if spec.kind != "file":
        return set()
    place, _, name = str(spec.payload).rpartition(":")
    body = ast.parse(Path(place).read_bytes()).body  # `resolve` has compiled it
    functions = [
        node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    return {argument.arg for node in functions[-1:] for argument in [*node.args.args, *node.args.kwonlyargs]}


# -- verdicts ----------------------------------------------------------------------------------------------------------


def verdict(expected: int | None, score: Score) -> str:
    """How a score relates to the verdict that was expected: AS_EXPECTED or a key of PROBLEMS."""
    if score.failed:
        return FAILED
    if expected is None:
        return AS_EXPECTED if score.value is None else GUESSED
    if score.value is None:
        return NO_SCORE
    accepted = score.value > ACCEPTED
    if accepted == bool(expected):
        return AS_EXPECTED
    return ACCEPTED_HACK if accepted else REFUSED


async def audit(
    runner: RewardRunner, cases: Sequence[Case], *, chat: bool = True, done: Callable[[], None] = lambda: None
) -> list[Finding]:
    """Score every case with the runner's one reward function, each in a call of its own; in the order of the cases.

    Args:
        chat: completions as messages, else as text.
        done: called after each case.
    """
    (name,) = runner.names
    turn = asyncio.Semaphore(IN_FLIGHT)

    async def one(case: Case) -> Finding:
        group = case.group(chat=chat)
        async with turn:
            await runner.score(group)
        done()
        score = Score(group.rollouts[0].rewards[name], group.rollouts[0].statuses[name])
        return Finding(case, score, verdict(case.expected, score))

    return list(await asyncio.gather(*(one(case) for case in cases)))
